"""What an image is made of: which files count, and that a change of one of them is a change of the image."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import cedana_sched
from tests.cluster.errors import ClusterError
from tests.cluster.images.catalog import Image, find_images
from tests.cluster.images.inputs import IgnoreRules, inputs_digest


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one product image, one test image and files that no image needs."""
    product, test = tmp_path / "manifests/images/agent", tmp_path / "tests/e2e/images/toolbox"
    for folder in (product, test, tmp_path / "cedana_sched", tmp_path / ".venv/lib"):
        folder.mkdir(parents=True)
    (product / "Containerfile").write_text("FROM debian:trixie-slim AS one\nFROM one\nCOPY cedana_sched /\n")
    (product / "Containerfile.dockerignore").write_text("*\n!cedana_sched\n**/__pycache__\n")
    (test / "Containerfile").write_text("FROM scratch\nCOPY run.py /\n")
    (test / "run.py").write_text("pass")
    (tmp_path / "cedana_sched/main.py").write_text("pass")
    (tmp_path / ".venv/lib/module.py").write_text("pass")
    return tmp_path


def image(repository: Path, name: str) -> Image:
    return find_images(repository)[name]


def test_names_and_contexts_follow_from_the_folder(repository: Path) -> None:
    agent, toolbox = image(repository, "agent"), image(repository, "toolbox")
    assert agent.tag == f"ghcr.io/cedana/cedana-sched-agent:{cedana_sched.__version__}"
    assert agent.context == repository
    assert toolbox.tag == "localhost/test/toolbox:dev"
    assert toolbox.context == repository / "tests/e2e/images/toolbox"


def test_a_test_image_may_be_built_from_the_repository_and_laid_only_where_it_is_wanted(repository: Path) -> None:
    assert not image(repository, "toolbox").is_on_demand
    containerfile = repository / "tests/e2e/images/toolbox/Containerfile"
    containerfile.write_text("# context: repository\n# laid: on demand\nFROM scratch\n")
    assert image(repository, "toolbox").context == repository
    assert image(repository, "toolbox").is_on_demand


def test_two_of_one_name_are_refused(repository: Path) -> None:
    (repository / "tests/e2e/images/toolbox").rename(repository / "tests/e2e/images/agent")
    with pytest.raises(ClusterError, match="have the same name"):
        find_images(repository)


def change_content(repository: Path) -> None:
    (repository / "cedana_sched/main.py").write_text("changed")


def change_mode(repository: Path) -> None:
    (repository / "cedana_sched/main.py").chmod(0o755)


def add_file(repository: Path) -> None:
    (repository / "cedana_sched/new.py").touch()


def add_link(repository: Path) -> None:
    (repository / "cedana_sched/link").symlink_to("nowhere")


def change_containerfile(repository: Path) -> None:
    with (repository / "manifests/images/agent/Containerfile").open("a") as file:
        file.write("USER 1000\n")


@pytest.mark.parametrize("change", [change_content, change_mode, add_file, add_link, change_containerfile])
def test_a_change_of_what_it_is_made_of_counts(repository: Path, change: Callable[[Path], None]) -> None:
    before = inputs_digest(image(repository, "agent"))
    change(repository)
    assert inputs_digest(image(repository, "agent")) != before


def test_nothing_else_counts(repository: Path) -> None:
    before = inputs_digest(image(repository, "agent"))
    (repository / ".venv/lib/module.py").write_text("changed")
    (repository / "new").touch()
    (repository / "cedana_sched/__pycache__").mkdir()
    (repository / "cedana_sched/__pycache__/main.pyc").touch()
    (repository / "cedana_sched/main.py").touch()
    assert inputs_digest(image(repository, "agent")) == before


@pytest.mark.parametrize(
    ("patterns", "path", "excluded"),
    [
        ("*", "a", True),
        ("*\n!a", "a/b/c", False),
        ("*\n!a\na/b", "a/b/c", True),
        ("*.pyc", "a/b.pyc", False),
        ("**/*.pyc", "a/b.pyc", True),
        ("**/*.pyc", "b.pyc", True),
        ("/build/", "build/x", True),
        ("build", "builder", False),
        ("# build\n\nx?", "xy", True),
        ("a.b", "aXb", False),
        ("v[12]", "v2", True),
    ],
)
def test_patterns_mean_what_docker_says(patterns: str, path: str, excluded: bool) -> None:
    assert IgnoreRules(patterns).excludes(path) == excluded


@pytest.mark.parametrize(
    ("patterns", "folder", "pruned"),
    [
        ("*\n!src", ".venv", True),
        ("*\n!src/deep", "src", False),
        ("*\n!src/deep", "src/other", True),
        ("*\n!**/*.py", ".venv", False),
        ("!x", "src", False),
    ],
)
def test_a_folder_is_skipped_only_when_nothing_in_it_can_count(patterns: str, folder: str, pruned: bool) -> None:
    assert IgnoreRules(patterns).prunes(folder) == pruned


def test_wheels_that_a_containerfile_names_count(repository: Path) -> None:
    containerfile = repository / "manifests/images/agent/Containerfile"
    containerfile.write_text("# wheels: runtime.txt other.txt\nFROM debian:trixie-slim\n")
    with pytest.raises(ClusterError, match=r"Containerfile names wheels of .*/runtime\.txt, which does not exist"):
        inputs_digest(image(repository, "agent"))
    for name in ("runtime.txt", "other.txt"):
        (repository / name).write_text("msgspec==1\n")
    before = inputs_digest(image(repository, "agent"))
    (repository / "other.txt").write_text("msgspec==2\n")
    assert inputs_digest(image(repository, "agent")) != before


@pytest.mark.parametrize("text", ["FROM debian:trixie-slim AS a\nFROM a\n", "from --platform=linux/amd64 scratch\n"])
def test_bases_that_can_be_had(repository: Path, text: str) -> None:
    toolbox = image(repository, "toolbox")
    toolbox.containerfile.write_text(text)
    toolbox.check_bases()


@pytest.mark.parametrize(("text", "named"), [("FROM golang:1.26 AS build\n", "golang:1.26"), ("RUN true\n", "no FROM")])
def test_a_base_that_cannot_be_had_is_named(repository: Path, text: str, named: str) -> None:
    toolbox = image(repository, "toolbox")
    toolbox.containerfile.write_text(text)
    with pytest.raises(ClusterError, match=f"{toolbox.containerfile}.*{named}"):
        toolbox.check_bases()


PRODUCT = "# comment\nARG BASE=debian:trixie-slim{digest}\nFROM ${{BASE}} AS one\nFROM one AS two\nFROM ${{BASE}}\n"


@pytest.mark.parametrize("digest", ["", f"@sha256:{'0' * 64}"])
def test_a_base_that_is_named_by_digest_elsewhere_is_the_root_made_here(repository: Path, digest: str) -> None:
    agent = image(repository, "agent")
    agent.containerfile.write_text(PRODUCT.format(digest=digest))
    agent.check_bases()
    assert agent.build_arguments == {"BASE": "docker.io/library/debian:trixie-slim"}


def test_the_agent_of_tests_has_debians_criu_of_today_where_the_pinned_one_is_gone() -> None:
    assert find_images()["agent"].build_arguments["CRIU_PACKAGES"] == "served"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("FROM debian:trixie-slim\n", "debian:trixie-slim, for which nobody who builds it can name a digest"),
        (PRODUCT.format(digest="") + "FROM debian:trixie-slim\n", "can name a digest"),
        ("FROM ${BASE}\n", "which no registry"),
        (PRODUCT.format(digest="") + "FROM ${OTHER}\n", "which no registry"),
    ],
)
def test_a_shipped_image_begins_with_what_can_be_named_by_digest(repository: Path, text: str, named: str) -> None:
    agent = image(repository, "agent")
    agent.containerfile.write_text(text)
    with pytest.raises(ClusterError, match=re.escape(named)):
        agent.check_bases()


def test_an_image_without_that_argument_is_given_none(repository: Path) -> None:
    assert image(repository, "toolbox").build_arguments == {}


def test_every_image_of_this_repository_can_be_built_here() -> None:
    images = find_images()
    assert "toolbox" in images
    for each in images.values():
        each.check_bases()
