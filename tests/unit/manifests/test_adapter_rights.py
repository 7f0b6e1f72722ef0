"""The chart gives an adapter the rights that its own page of them asks for, and no others."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import yaml

ROOT = Path(__file__).parents[3]
TEMPLATES = ROOT / "manifests" / "chart" / "templates"
FRAGMENTS = sorted(ROOT.glob("adapters/*/rbac.yaml"))
CLUSTER_ROLE = re.compile(r"^kind: ClusterRole\n.*?^(rules:\n.*?)^---$", re.MULTILINE | re.DOTALL)

Rights: TypeAlias = set[tuple[str, str, str]]
"""API group, resource, verb."""


def rights(rules: list[dict[str, Any]]) -> Rights:
    return {right for rule in rules for right in itertools.product(rule["apiGroups"], rule["resources"], rule["verbs"])}


def given_by(template: Path) -> Rights:
    """By the ClusterRole in a template, whose rules depend on no value."""
    if not template.exists():
        return set()
    (found,) = CLUSTER_ROLE.findall(template.read_text())
    return rights(yaml.safe_load(found)["rules"])


def test_all_adapters_say_what_they_need() -> None:
    assert {fragment.parent.name for fragment in FRAGMENTS} == {"armada", "kubernetes", "kueue", "volcano"}


@pytest.mark.parametrize("fragment", FRAGMENTS, ids=lambda fragment: fragment.parent.name)
def test_the_chart_gives_what_is_asked_for(fragment: Path) -> None:
    asked = rights(yaml.safe_load(fragment.read_text())["rules"])
    given = given_by(TEMPLATES / fragment.parent.name / "rbac.yaml")
    anyway = given_by(TEMPLATES / "coordinator" / "rbac.yaml")
    assert ("", "pods", "patch") in anyway
    assert asked <= given | anyway
    assert given <= asked, "more than it needs"
