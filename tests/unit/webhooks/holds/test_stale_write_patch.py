"""A scheduler's write that is allowed at last, and older than our mark."""

from __future__ import annotations

from typing import Any

import pytest

from cedana_sched.model.objects import names
from cedana_sched_webhooks.holds.stale_write_patch import patch_for_stale_write

READY = {"type": "Ready", "status": "True"}
INITIALIZED = {"type": "Initialized", "status": "True", "observedGeneration": 1}
EVICTED = [{"type": "Ready", "status": "False"}, {"type": "DisruptionTarget", "status": "True"}]
MARKED = {names.EVICTION_REQUESTED: "{}", names.ID: "md"}


def pod(version: str, *conditions: dict[str, Any], annotations: dict[str, str], **status: Any) -> dict[str, Any]:
    metadata = {"uid": "u", "resourceVersion": version, "annotations": annotations, "managedFields": [version]}
    return {"metadata": metadata, "status": {"phase": "Running", "conditions": list(conditions), **status}}


BEFORE = pod("8", READY, INITIALIZED, annotations=MARKED, hostIPs=[{"ip": "10.0.0.1"}])
UNMARKED = {names.ID: "md"}


def eviction(version: str = "7", **changes: Any) -> dict[str, Any]:
    """By a client of an older version, which knows neither `observedGeneration` nor `hostIPs`."""
    conditions = changes.pop("conditions", [{"type": "Initialized", "status": "True"}, *EVICTED])
    return pod(version, *conditions, annotations=changes.pop("annotations", UNMARKED), **changes)


def test_what_only_the_mark_has_outdated_is_renewed() -> None:
    assert patch_for_stale_write(BEFORE, eviction()) == (
        {"op": "replace", "path": "/metadata/resourceVersion", "value": "8"},
        {"op": "add", "path": "/metadata/annotations", "value": MARKED},
    )


def test_what_is_fresh_needs_nothing() -> None:
    assert patch_for_stale_write(BEFORE, eviction("8", annotations=MARKED)) == ()


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"phase": "Succeeded"}, id="another phase"),
        pytest.param({"annotations": {names.ID: "other"}}, id="another annotation"),
        pytest.param({"conditions": [{"type": "Initialized", "status": "False"}, *EVICTED]}, id="another condition"),
        pytest.param({"conditions": EVICTED}, id="a condition that it has not seen"),
        pytest.param({"containerStatuses": []}, id="what is not there any more"),
    ],
)
def test_what_something_else_has_outdated_stays_so(changes: dict[str, Any]) -> None:
    assert patch_for_stale_write(BEFORE, eviction(**changes)) == ()
