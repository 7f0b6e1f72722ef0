"""Two replicas of one component are not on one node, also after a rollout."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TEMPLATES = Path(__file__).parents[3] / "manifests/chart/templates"
HELPER = (TEMPLATES / "_helpers.tpl").read_text().split('{{- define "cedana.spread" -}}')[1].split("{{- end -}}")[0]


def test_only_replicas_of_the_same_revision_count() -> None:
    """Else the new replicas are kept apart from the old ones, and both may be on one node once these are gone."""
    assert "matchLabelKeys: [pod-template-hash]" in HELPER


def test_replicas_are_spread_over_nodes_and_zones_where_there_are_several() -> None:
    assert re.search(r"range list (.*) \}\}", HELPER)[1] == '"kubernetes.io/hostname" "topology.kubernetes.io/zone"'  # type: ignore[index]
    assert "whenUnsatisfiable: ScheduleAnyway" in HELPER


@pytest.mark.parametrize(
    "path", sorted(path for path in TEMPLATES.rglob("*.yaml") if "kind: Deployment\n" in path.read_text())
)
def test_each_deployment_is_spread(path: Path) -> None:
    assert 'include "cedana.spread"' in path.read_text()
