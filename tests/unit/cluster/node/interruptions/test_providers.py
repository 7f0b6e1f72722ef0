"""Each provider is detected, read, configured and described: who adds one is led to all places."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import get_args

from cedana_sched.cluster.configuration import AUTO, InterruptionsConfiguration
from cedana_sched.cluster.node.interruptions.providers import PROVIDERS
from cedana_sched.model.objects.node_interruption import InterruptionSource

REPOSITORY = Path(__file__).parents[5]
CONFIGURED = {"none", AUTO, *PROVIDERS}
_SECTION = re.compile(r"^### Spot nodes$(.*?)^#", re.DOTALL | re.MULTILINE)
_ROW = re.compile(r"^\| `(\w+)` \|", re.MULTILINE)


def test_all_sources_but_the_kubelet_are_providers() -> None:
    assert set(PROVIDERS) == set(InterruptionSource) - {InterruptionSource.KUBELET}


def test_agents_accept_each() -> None:
    assert set(get_args(InterruptionsConfiguration.model_fields["provider"].annotation)) == CONFIGURED


def test_the_chart_accepts_each() -> None:
    schema = json.loads((REPOSITORY / "manifests/chart/values.schema.json").read_text())
    interruptions = schema["properties"]["agent"]["properties"]["interruptions"]
    assert set(interruptions["properties"]["provider"]["enum"]) == CONFIGURED


def test_the_page_has_a_row_for_each() -> None:
    (section,) = _SECTION.findall((REPOSITORY / "docs/operations.md").read_text())
    assert set(_ROW.findall(section)) == set(PROVIDERS)
