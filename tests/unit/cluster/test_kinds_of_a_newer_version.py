"""What a newer version has put into an object does not keep older parts from reading it: an upgrade takes a while.

The definitions of our kinds come first, and the API server fills their new fields with defaults in every object.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from cedana_sched.cluster.coordinator.policies import ClusterPolicies
from cedana_sched.cluster.coordinator.record_objects import resource_of, to_object, to_record
from cedana_sched.cluster.coordinator.storage_probe import storage_configuration_of
from cedana_sched.cluster.node.node_pods import NodePods
from cedana_sched.kube.builtin_kinds import Metadata
from cedana_sched.kube.own_kinds.cached_policy import CachedPolicy
from cedana_sched.kube.own_kinds.order_exchange import NamedPod, OrderedObject, OrderedSpec
from cedana_sched.model import codec
from cedana_sched.model.policy import CheckpointPolicy, OnRestoreFailure, Retention
from cedana_sched.model.preemption import WorkloadRef
from cedana_sched.model.records import Record
from cedana_sched_webhooks import validation
from cedana_sched_webhooks.admission import Answer
from tests.unit.cluster.coordinator.test_objects_of_records import CHECKPOINT, HOLD, RESTORE
from tests.unit.webhooks.admission_builders import creation, knowledge

POLICY = {"deadlineSeconds": 90.5, "onRestoreFailure": "Fail", "retention": {"keepLast": 7}}
READ = CheckpointPolicy(
    deadline_seconds=90.5, on_restore_failure=OnRestoreFailure.FAIL, retention=Retention(keep_last=7)
)
STORAGES: list[dict[str, Any]] = [
    {"posix": {"path": "/lab"}},
    {"s3": {"bucket": "lab", "endpoint": "https://s3.example", "secret": {"name": "keys"}}},
]


def newer(value: Any) -> Any:
    """The same with one field more in each table of it."""
    if isinstance(value, dict):
        return {key: newer(inner) for key, inner in value.items()} | {"fieldOfANewerRelease": {"deep": [1]}}
    return [newer(one) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize("record", [CHECKPOINT, HOLD, RESTORE], ids=["checkpoint", "hold", "restore"])
def test_the_coordinator_reads_its_records(record: Record) -> None:
    body = msgspec.json.decode(msgspec.json.encode(to_object(record, "cedana-system")))
    body |= {"spec": newer(body["spec"]), "status": newer(body["status"])}
    assert to_record(resource_of(record), body) == record


@pytest.mark.parametrize("record", [CHECKPOINT, RESTORE], ids=["checkpoint", "restore"])
def test_a_coordinator_reads_what_a_newer_one_has_written_into_the_log(record: Record) -> None:
    written = newer(msgspec.json.decode(codec.encode(record)))
    assert codec.decode(msgspec.json.encode(written), type(record)) == record


def test_policies_count_as_they_are() -> None:
    policies = ClusterPolicies(cast("Any", None), 3_600)
    policies._informer._put(CachedPolicy(Metadata("p"), newer(POLICY)))
    assert policies.policy_named("p", "lab") == READ
    of_webhooks = knowledge(policies=[CachedPolicy(Metadata("p"), newer(POLICY))]).policy_for_pods("p", "lab").policy
    assert of_webhooks.model_dump() == READ.model_dump()


def test_an_agent_does_as_the_policy_of_a_return_says() -> None:
    spec = OrderedSpec("r", NamedPod("u"), policy=msgspec.Raw(msgspec.json.encode(newer(POLICY))))
    feed = SimpleNamespace(restores=[OrderedObject(Metadata("r", "lab"), spec)])
    pods = NodePods(cast("Any", None), "node-1", cast("Any", feed))
    assert pods.restore_failure_policy(WorkloadRef("u", "lab", "p", "node-1")) is OnRestoreFailure.FAIL


@pytest.mark.parametrize("spec", STORAGES, ids=["posix", "s3"])
def test_storages_are_where_they_are(spec: dict[str, Any]) -> None:
    assert storage_configuration_of(newer(spec)) == storage_configuration_of(spec)


@pytest.mark.parametrize(
    ("plural", "spec"), [("checkpointpolicies", POLICY), *(("checkpointstorages", one) for one in STORAGES)]
)
def test_the_webhooks_of_before_refuse_nothing_that_the_api_server_has_filled_in(
    plural: str, spec: dict[str, Any]
) -> None:
    check = validation.checks_by_kind(3_600)[plural]
    assert validation.validate_write(creation({"metadata": {"name": "x"}, "spec": newer(spec)}), check) == Answer(
        "valid"
    )


def test_a_field_that_nobody_knows_is_an_error_in_a_persons_file() -> None:
    with pytest.raises(ValueError, match="fieldOfANewerRelease"):
        CheckpointPolicy.model_validate(newer(POLICY))
