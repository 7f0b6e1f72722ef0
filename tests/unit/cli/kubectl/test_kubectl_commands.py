"""What `kubectl cedana` shows of a cluster, as a table and as data."""

from __future__ import annotations

import json
from typing import Any

import pytest
import structlog
import yaml

from cedana_sched.cli.kubectl.main import app
from cedana_sched.kube.errors import ApiUnavailableError, NotServedError, RefusedByServerError
from cedana_sched.kube.resources import CHECKPOINT_POLICIES, PODS
from cedana_sched.model.objects import names
from cedana_sched.testing import FakeApi

from .conftest import Kubectl, put_checkpoint, put_event, put_hold, put_pod, put_restore, refuse_watch

GIB = 1 << 30
TRANSFER = {"readBytes": 2 * GIB, "zeroBytes": GIB // 2, "storedBytes": GIB // 4}


def data(result: Any) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_list_shows_each_protected_pod_and_its_newest_snapshot(api: FakeApi, kubectl: Kubectl) -> None:
    put_pod(api)
    put_pod(api, "other", "lab", annotations={names.INDEX: "1"})
    put_checkpoint(api, "md-1", "Ready", 1, transfer=TRANSFER)
    put_checkpoint(api, "md-2", "Ready", 2, transfer=TRANSFER)
    put_checkpoint(api, "md-3", "Failed")
    (pod,) = data(kubectl("list", "-o", "json"))
    assert (pod["name"], pod["id"], pod["snapshot"], pod["snapshots"]) == ("md-0", "md", "md/0@2", 2)
    assert (pod["read_bytes"], pod["checkpointable"], pod["node"]) == (2 * GIB, None, "n1")
    assert {one["namespace"] for one in data(kubectl("list", "-A", "-o", "json"))} == {"bio", "lab"}
    shown = kubectl("list").stdout
    assert shown.splitlines()[0].split()[:4] == ["NAMESPACE", "POD", "ID", "INDEX"]
    assert "2.00 GiB" in shown


def test_list_shows_what_stands_in_the_way(api: FakeApi, kubectl: Kubectl) -> None:
    obstacle = {"type": names.CHECKPOINTABLE, "status": "False", "reason": "UsesIoUring", "message": "io\x1b_uring"}
    put_pod(api, conditions=[obstacle])
    (pod,) = data(kubectl("list", "-o", "json"))
    assert (pod["checkpointable"], pod["obstacle"]) == (False, "io?_uring")
    assert "Checkpointable:   no: io?_uring" in kubectl("inspect", "md-0").stdout


def test_inspect_shows_the_history_of_the_identity(api: FakeApi, kubectl: Kubectl) -> None:
    put_pod(api)
    put_checkpoint(api, "md-1", "Ready", 1, transfer=TRANSFER)
    put_restore(api, "restore-1", "Running", snapshot={"id": "md", "generation": 1})
    put_event(api, "md-0", "ColdStart", "Started without checkpoint")
    details = data(kubectl("inspect", "md-0", "-o", "json"))
    assert {one["kind"] for one in details["operations"]} == {"Checkpoint", "Restore"}
    assert [(one["reason"], one["count"], one["at"]) for one in details["events"]] == [("ColdStart", 2, None)]
    shown = kubectl("inspect", "md-0").stdout
    assert "Newest snapshot:  md/0@1, 2.00 GiB" in shown
    assert "! - ColdStart (2 times): Started without checkpoint" in shown


def test_inspect_knows_when_events_of_the_newer_api_happened(api: FakeApi, kubectl: Kubectl) -> None:
    put_pod(api)
    series = {"count": 7, "lastObservedTime": "2026-05-01T11:20:00.000000Z"}
    begun = "2026-05-01T11:10:00.000000Z"
    put_event(api, "md-0", "Repeated", "again", count=None, eventTime=begun, series=series)
    put_event(api, "md-0", "Once", "then", count=None, eventTime=begun)
    put_event(api, "md-0", "Older", "before", count=3, lastTimestamp="2026-05-01T11:00:00Z")
    events = data(kubectl("inspect", "md-0", "-o", "json"))["events"]
    assert [(one["reason"], one["count"]) for one in events] == [("Older", 3), ("Once", 1), ("Repeated", 7)]


def test_inspect_cuts_a_long_event(api: FakeApi, kubectl: Kubectl) -> None:
    put_pod(api)
    put_event(api, "md-0", "Long", "x" * 500_000)
    shown = kubectl("inspect", "md-0").stdout
    assert "Long (2 times): xxx" in shown
    assert len(shown) < 3_000


def test_event_of_several_lines_is_one_line(api: FakeApi, kubectl: Kubectl) -> None:
    put_pod(api)
    put_event(api, "md-0", "Unhealthy", "probe failed:\n\tno \x1b answer\n")
    assert kubectl("inspect", "md-0").stdout.endswith("Unhealthy (2 times): probe failed: no ? answer\n")


@pytest.mark.parametrize("phase", ["Pending", "Succeeded"])
def test_pod_that_does_not_run_has_no_work_at_risk(api: FakeApi, kubectl: Kubectl, phase: str) -> None:
    put_pod(api, phase=phase)
    assert "At risk:          -\n" in kubectl("inspect", "md-0").stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("inspect", "gone"), "POD: 'gone' is no pod of namespace bio"),
        (("inspect", "plain"), "POD: 'plain' is not protected"),
        (("policy", "gone"), "POLICY: 'gone' is no CheckpointPolicy"),
    ],
)
def test_object_that_does_not_exist_is_named(
    api: FakeApi, kubectl: Kubectl, arguments: tuple[str, ...], said: str
) -> None:
    api.put(PODS, {"metadata": {"name": "plain", "namespace": "bio"}, "spec": {}, "status": {"phase": "Running"}})
    result = kubectl(*arguments)
    assert (result.exit_code, result.stdout) == (3, "")
    assert said in result.stderr
    assert "remedy: see" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("list", "-A", "-n", "bio"), "--namespace: 'bio' does not go with --all-namespaces"),
        (("inspect", "md-0", "-A"), "POD: 'md-0' is in one namespace"),
        (("list", "-o", "xml"), "Invalid value for '--output'"),
    ],
)
def test_contradicting_options_are_named(kubectl: Kubectl, arguments: tuple[str, ...], said: str) -> None:
    result = kubectl(*arguments)
    assert result.exit_code == 2
    assert said in result.stderr


def test_status_shows_what_is_in_progress_alone(api: FakeApi, kubectl: Kubectl) -> None:
    put_checkpoint(api, "md-1", "Ready", 1, transfer=TRANSFER)
    put_checkpoint(api, "md-2", "Dumping", transfer={"readBytes": GIB})
    put_restore(api, "restore-1", "Staging", snapshot={"id": "md", "generation": 1}, transfer={"readBytes": GIB})
    put_restore(api, "restore-0", "Running")
    put_hold(api, "h1", "Holding")
    put_hold(api, "h0", "Released", "Committed")
    found = {one["name"]: one for one in data(kubectl("status", "-o", "json"))}
    assert found.keys() == {"md-2", "restore-1", "h1"}
    assert (found["md-2"]["done_bytes"], found["md-2"]["total_bytes"]) == (GIB, 2 * GIB)
    assert found["restore-1"]["total_bytes"] == 2 * GIB - GIB // 2, "empty pages are not fetched"
    assert found["h1"]["pod"] == "Job/md"
    assert "Dumping" in kubectl("status").stdout


def test_nothing_in_progress_is_a_note_on_stderr(kubectl: Kubectl) -> None:
    result = kubectl("status")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "nothing is held, saved or restored now\n"


def test_hold_counts_the_verdicts(api: FakeApi, kubectl: Kubectl) -> None:
    put_hold(api, "h0", "Released", "Committed", "Committed", "Evict")
    (hold,) = data(kubectl("hold", "-o", "json"))
    assert hold["verdicts"] == {"Committed": 2, "Evict": 1}
    assert "2 Committed, 1 Evict" in kubectl("hold").stdout


def test_policy_shows_the_written_fields(api: FakeApi, kubectl: Kubectl) -> None:
    spec = {"deadlineSeconds": 300, "retention": {"keepLast": 5}}
    api.put(CHECKPOINT_POLICIES, {"metadata": {"name": "hourly"}, "spec": spec})
    assert data(kubectl("policy", "-o", "json")) == [{"name": "hourly", "spec": spec}]
    assert yaml.safe_load(kubectl("policy", "hourly", "-o", "yaml").stdout) == [{"name": "hourly", "spec": spec}]
    assert kubectl("policy").stdout.splitlines()[1].split() == ["hourly", "5m00s", "-", "-", "-", "-", "5"]


def test_missing_right_is_named(api: FakeApi, kubectl: Kubectl, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(resource: Any, *_: Any, **__: Any) -> Any:
        raise RefusedByServerError(f"{resource.plural} is forbidden", status=403, reason="Forbidden")

    monkeypatch.setattr(api, "list_each", refuse)
    result = kubectl("list", "-o", "json")
    assert (result.exit_code, result.stdout) == (4, "")
    error = json.loads(result.stderr)
    assert error["message"] == "needs list on checkpoints.sched.cedana.ai in namespace bio"
    assert error["remedy"]


@pytest.mark.parametrize("arguments", [("list",), ("status",), ("hold",), ("policy",), ("policy", "hourly")])
def test_cluster_without_our_kinds_is_named(
    api: FakeApi, kubectl: Kubectl, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    async def find_none(*_: Any, **__: Any) -> Any:
        raise NotServedError("404 page not found", status=404)

    async def get_none(*_: Any, **__: Any) -> Any:
        raise ApiUnavailableError("404 page not found", status=404)  # as the client makes of it

    monkeypatch.setattr(api, "list_each", find_none)
    monkeypatch.setattr(api, "get", get_none)
    result = kubectl(*arguments)
    assert result.exit_code == 2
    assert "selects a cluster that does not serve our kinds" in result.stderr


def test_pod_whose_identity_was_spoiled_is_not_left_out_silently(api: FakeApi, kubectl: Kubectl) -> None:
    put_pod(api)
    put_pod(api, "odd", annotations={names.INDEX: "-1"})
    result = kubectl("list")
    assert ("md-0" in result.stdout, "odd" in result.stdout) == (True, False)
    assert result.stderr == "warning: Pod bio/odd is left out, its annotations name no identity: it is not saved\n"


@pytest.mark.parametrize("format_", ["table", "json"])
def test_object_that_cannot_be_read_hides_no_other(api: FakeApi, kubectl: Kubectl, format_: str) -> None:
    put_pod(api)
    put_pod(api, "odd", startTime="\x1bnever")
    put_checkpoint(api, "odd-1", "Unheard")
    put_checkpoint(api, "md-1", "Dumping")
    result = kubectl("list", "-o", format_)
    assert (result.exit_code, "md-0" in result.stdout) == (0, True)
    assert "warning: Pod bio/odd is left out, it cannot be read: " in result.stderr
    assert "warning: Checkpoint bio/odd-1 is left out, it cannot be read: " in result.stderr
    assert "\x1b" not in result.stderr
    assert "md-1" in kubectl("status", "-o", "json").stdout


def test_every_command_has_the_options_of_the_cluster() -> None:
    assert {one.name for one in app.registered_commands} == {"list", "inspect", "status", "hold", "policy", "doctor"}


def test_logs_of_a_watch_go_to_stderr(api: FakeApi, kubectl: Kubectl, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data alone is on stdout."""
    monkeypatch.setattr(api, "stream", refuse_watch)
    configured = structlog.get_config()
    try:
        result = kubectl("status", "--watch", "-o", "json")
    finally:
        structlog.configure(**configured)
    assert (result.exit_code, result.stdout) == (4, "")
    assert "watch broken" in result.stderr
