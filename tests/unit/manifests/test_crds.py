"""The definitions of our kinds hold what the models say, and nothing that an API server refuses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from cedana_sched.model.objects.names import CATEGORY, GROUP, VERSION
from tools import write_crds
from tools.structural_schema import structural

DEFINITIONS: dict[str, dict[str, Any]] = {
    kind.resource.kind: yaml.safe_load(write_crds.written(kind)) for kind in write_crds.KINDS
}
KINDS = pytest.mark.parametrize("kind", DEFINITIONS)


def version_of(kind: str) -> dict[str, Any]:
    (version,) = DEFINITIONS[kind]["spec"]["versions"]
    return dict(version)


def schema_of(kind: str) -> dict[str, Any]:
    return dict(version_of(kind)["schema"]["openAPIV3Schema"])


def nodes(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, field in schema.get("properties", {}).items():
        yield from nodes(field, f"{path}.{name}")
    for name in ("items", "additionalProperties"):
        if name in schema:
            yield from nodes(schema[name], f"{path}[]")


def test_no_definition_is_stale() -> None:
    assert write_crds.stale() == [], "run 'make docs'"


def test_a_changed_and_a_foreign_definition_are_noticed(tmp_path: Path) -> None:
    for path, text in write_crds.files(tmp_path).items():
        path.write_text(text)
    changed, foreign = next(iter(write_crds.files(tmp_path))), tmp_path / "tickets.sched.cedana.ai.yaml"
    changed.write_text(changed.read_text().replace("Namespaced", "Cluster"))
    foreign.write_text("kind: CustomResourceDefinition\n")
    assert write_crds.stale(tmp_path) == [changed, foreign]


@KINDS
def test_every_node_is_what_an_api_server_calls_structural(kind: str) -> None:
    for path, node in nodes(schema_of(kind)):
        assert not {"$ref", "anyOf", "allOf", "oneOf", "title", "const", "prefixItems"} & set(node), path
        assert "type" in node, path
        assert node["type"] != "array" or "items" in node, path
        assert node["type"] != "object" or path in {"", ".metadata"} or {
            "properties", "additionalProperties", "x-kubernetes-preserve-unknown-fields"
        } & set(node), path  # fmt: skip


@KINDS
def test_people_find_a_kind_by_its_short_name_and_category(kind: str) -> None:
    spec = DEFINITIONS[kind]["spec"]
    assert (spec["group"], version_of(kind)["name"]) == (GROUP, VERSION)
    assert spec["names"]["categories"] == [CATEGORY]
    short = {"Checkpoint": "cckpt", "PreemptionHold": "phold", "Restore": "crst"}
    short |= {"CheckpointPolicy": "cpol", "CheckpointStorage": "cstore"}
    assert spec["names"]["shortNames"] == [short[kind]]
    assert spec["scope"] == ("Cluster" if kind in {"CheckpointPolicy", "CheckpointStorage"} else "Namespaced")


@KINDS
def test_columns_and_selectable_fields_are_fields(kind: str) -> None:
    version = version_of(kind)
    fields = {path for path, _ in nodes(schema_of(kind))} | {".metadata.creationTimestamp"}
    shown = [column["jsonPath"] for column in version["additionalPrinterColumns"]]
    assert {path.replace("[?(@.type=='Ready')]", "[]") for path in shown} <= fields
    assert {field["jsonPath"] for field in version.get("selectableFields", ())} <= fields


def test_a_restore_shows_in_the_first_line_whether_it_began_anew() -> None:
    columns = {column["name"]: column for column in version_of("Restore")["additionalPrinterColumns"]}
    assert columns["Cold"]["jsonPath"] == ".status.cold"
    assert not columns["Cold"].get("priority"), "only -o wide shows it"
    assert schema_of("Restore")["properties"]["status"]["properties"]["message"]["type"] == "string"


@KINDS
def test_conditions_are_merged_by_their_type(kind: str) -> None:
    found = [node for path, node in nodes(schema_of(kind)) if path.endswith(".conditions")]
    assert all(node["x-kubernetes-list-map-keys"] == ["type"] for node in found)
    assert bool(found) is (kind != "CheckpointPolicy")


def test_what_a_step_of_the_coordinator_is_about_is_never_changed() -> None:
    for kind in ("Checkpoint", "PreemptionHold", "Restore"):
        rules = schema_of(kind)["properties"]["spec"]["x-kubernetes-validations"]
        assert "self == oldSelf" in {rule["rule"] for rule in rules}


@KINDS
def test_nothing_is_filled_in_where_only_we_write(kind: str) -> None:
    status = schema_of(kind)["properties"].get("status", {"type": "object"})
    assert [path for path, node in nodes(status) if "default" in node] == []


def test_descriptions_come_from_docstrings_of_the_class_and_of_those_it_inherits_from() -> None:
    policy = schema_of("CheckpointPolicy")["properties"]["spec"]["properties"]
    assert policy["deadlineSeconds"]["description"].startswith("Longest time from the signal")
    oldest = policy["retention"]["properties"]["maxAgeSeconds"]["description"]
    assert "`keepLast`" in oldest, "a field is named as it stands in objects"


def test_alternatives_are_refused() -> None:
    class Either(BaseModel):
        value: int | str

    with pytest.raises(ValueError, match="supports no alternatives"):
        structural(Either)


GOOD_UID = "0a1b2c3d-0000-4000-8000-000000000001"
WORDS = {
    "uid": (f"{GOOD_UID}@2026-11-20T10:00:00.000+00:00~2026-11-20T10:00:01Z.{GOOD_UID}.1", "../../etc/cron.d/x"),
    "holdUID": (f"{GOOD_UID}@2026-11-20T10:00:00Z", "a/b"),
    "pod.uid": (GOOD_UID, "../victim"),
    "pod.name": ("md-0.lab", "../md-0"),
    "pod.nodeName": ("ip-10-0-0-1.ec2.internal", "n/1"),
    "identity.id": ("md_run.1", ".."),
    "identity.container": ("main", "a/b"),
    "wanted.id": ("md-run", "../md-run"),
}


@pytest.mark.parametrize("kind", ["Checkpoint", "PreemptionHold", "Restore"])
def test_words_that_become_paths_are_matched(kind: str) -> None:
    spec = schema_of(kind)["properties"]["spec"]
    found = 0
    for path, (good, strange) in WORDS.items():
        node = spec
        for part in path.split("."):
            node = node.get("properties", {}).get(part, {})
        if not node:
            continue
        found += 1
        pattern = node["pattern"]
        assert pattern.startswith("^(")
        assert pattern.endswith(")$"), "or a part would do"
        assert re.search(pattern, good), path
        assert not re.search(pattern, strange), path
        assert len(good) <= node["maxLength"], path
    assert found >= 1


@pytest.mark.parametrize("kind", ["Checkpoint", "PreemptionHold", "Restore"])
def test_what_was_ordered_is_never_changed(kind: str) -> None:
    rules = schema_of(kind)["properties"]["spec"]["x-kubernetes-validations"]
    assert "self == oldSelf" in {rule["rule"] for rule in rules}


@pytest.mark.parametrize("kind", ["Checkpoint", "PreemptionHold"])
def test_no_deadline_is_later_than_any_policy_allows(kind: str) -> None:
    [rule] = schema_of(kind)["x-kubernetes-validations"]
    assert "self.status.deadline <= self.spec.creationTime + duration('172800s')" in rule["rule"]
    times = (schema_of(kind)["properties"][part]["properties"] for part in ("spec", "status"))
    times_of_ours = {"creationTime", "deadline"}
    assert [time["format"] for part in times for name, time in part.items() if name in times_of_ours] == [
        "date-time", "date-time"
    ]  # fmt: skip
