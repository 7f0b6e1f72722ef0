"""A release is made whole or not at all: the branch, its tags, the working tree and the files in build/release."""

from __future__ import annotations

import subprocess
import tarfile
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest

from tools.release import ReleaseError, build_chart, release

DAY = date(2031, 2, 3)


def git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True).stdout.strip()


def state(root: Path) -> tuple[str, ...]:
    """All that a failed release leaves alone."""
    refs, files = git(root, "for-each-ref"), sorted(str(path) for path in (root / "build").rglob("*"))
    return refs, git(root, "status", "--porcelain"), git(root, "worktree", "list"), *files


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "repository"
    contents = {
        ".gitignore": "/build/\n",
        "CHANGELOG.md": "# Changelog\n\n## [Unreleased]\n\n- A change.\n",
        "cedana_sched/__init__.py": '"""A package."""\n\n__version__ = "0.1.0"\n',
        "manifests/chart/Chart.yaml": "name: cedana-sched\nversion: 0.1.0\nappVersion: 0.1.0\n",
        "manifests/chart/templates/a.yaml": "a: 1\n",
    }
    for name, text in contents.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "build").mkdir()
    git(root, "init", "--quiet", "--initial-branch=main")
    git(root, "config", "user.name", "Somebody")
    git(root, "config", "user.email", "somebody@example.com")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message=first")
    return root


def build_note(tree: Path, folder: Path) -> None:
    """Write which commit it is made of, as images do, which refuse a tree with changes."""
    assert git(tree, "status", "--porcelain") == ""
    (folder / "note").write_text(git(tree, "rev-parse", "HEAD"))


def fail(*_: Path) -> None:
    raise ReleaseError("no")


def interrupt(*_: Path) -> None:
    raise KeyboardInterrupt


def passes(_: Path) -> None: ...


def test_a_release_is_a_tagged_commit_and_the_files_that_are_made_of_it(root: Path) -> None:
    (root / "build/release").mkdir()
    (root / "build/release/of-before").touch()
    folder = release(root, "0.2.0", DAY, (build_note, build_chart), passes)
    commit = git(root, "rev-parse", "main")
    assert git(root, "rev-parse", "v0.2.0^{commit}") == commit
    assert git(root, "log", "-1", "--format=%s") == "release: publish 0.2.0"
    assert git(root, "show", "--name-only", "--format=", commit).splitlines() == [
        "CHANGELOG.md",
        "cedana_sched/__init__.py",
        "manifests/chart/Chart.yaml",
    ]
    assert git(root, "status", "--porcelain") == ""
    assert '"0.2.0"' in (root / "cedana_sched/__init__.py").read_text()
    assert folder == root / "build/release"
    assert sorted(path.name for path in folder.iterdir()) == ["SHA256SUMS", "cedana-sched-0.2.0.tgz", "note"]
    assert (folder / "note").read_text() == commit
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=folder, check=True)
    assert [path.name for path in (root / "build").iterdir()] == ["release"]
    assert len(git(root, "worktree", "list").splitlines()) == 1


def test_the_chart_of_a_commit_has_the_same_bytes_each_time(root: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
        build_chart(root, folder)
        (root / "manifests/chart/templates/a.yaml").touch()
        (root / "manifests/chart/untracked").touch()
    name = "cedana-sched-0.1.0.tgz"
    assert (first / name).read_bytes() == (second / name).read_bytes()
    with tarfile.open(first / name) as archive:
        assert archive.getnames() == ["cedana-sched/Chart.yaml", "cedana-sched/templates/a.yaml"]


@pytest.mark.parametrize("build", [fail, interrupt])
def test_a_build_that_fails_changes_nothing(root: Path, build: Callable[[Path, Path], None]) -> None:
    before = state(root)
    with pytest.raises((ReleaseError, KeyboardInterrupt)):
        release(root, "0.2.0", DAY, (build_note, build), passes)
    assert state(root) == before


def test_a_branch_that_has_moved_meanwhile_is_left_and_not_tagged(root: Path) -> None:
    def commit_too(*_: Path) -> None:
        git(root, "commit", "--quiet", "--allow-empty", "--message=meanwhile")

    with pytest.raises(ReleaseError, match="merge"):
        release(root, "0.2.0", DAY, (commit_too,), passes)
    assert git(root, "log", "-1", "--format=%s") == "meanwhile"
    assert git(root, "tag") == ""
    assert list((root / "build").iterdir()) == []


def test_what_cannot_be_released_is_refused_before_anything_is_built(root: Path) -> None:
    def refused(version: str, why: str) -> None:
        before = state(root)
        with pytest.raises(ReleaseError, match=why):
            release(root, version, DAY, (interrupt,), passes)
        assert state(root) == before

    refused("0.0.9", "lower")
    git(root, "tag", "v0.3.0")
    refused("0.3.0", "exists already")
    (root / "new").touch()
    refused("0.2.0", "has changes")
    (root / "new").unlink()
    git(root, "checkout", "--quiet", "-b", "other")
    refused("0.2.0", "this is other")
    git(root, "checkout", "--quiet", "main")
    with pytest.raises(ReleaseError, match=r"^no$"):
        release(root, "0.2.0", DAY, (interrupt,), fail)
