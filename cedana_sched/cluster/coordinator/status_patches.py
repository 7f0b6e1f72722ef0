"""Merge patch of the coordinator's part of an object's status."""

from __future__ import annotations

from cedana_sched.cluster.coordinator.record_objects import resource_of, status_of
from cedana_sched.kube.client import Object
from cedana_sched.kube.resources import CHECKPOINTS, PREEMPTION_HOLDS, RESTORES
from cedana_sched.model import codec
from cedana_sched.model.objects.checkpoint import CheckpointStatus
from cedana_sched.model.objects.preemption_hold import PreemptionHoldStatus
from cedana_sched.model.objects.restore import RestoreStatus
from cedana_sched.model.orders import Order
from cedana_sched.model.records import Record

_AGENTS_PART = {"order", "answer"}
_STATUS_FIELDS = {
    resource.kind: sorted(model.wire_name(field) for field in model.model_fields.keys() - agents)
    for resource, model, agents in (
        (CHECKPOINTS, CheckpointStatus, _AGENTS_PART),
        (PREEMPTION_HOLDS, PreemptionHoldStatus, _AGENTS_PART),
        (RESTORES, RestoreStatus, _AGENTS_PART | {"transfer", "replaced_by"}),
    )
}


def status_patch(record: Record, order: Order | None, order_number: int) -> Object:
    """Return the patch; a merge patch keeps omitted fields, so fields without a value are null."""
    complete, fields = status_of(record), _STATUS_FIELDS[resource_of(record).kind]
    status = {name: complete.get(name) for name in fields}
    if order is not None:
        status["order"] = encode_numbered_order(order_number, order)
    return status


def encode_numbered_order(number: int, order: Order) -> Object:
    """Encode an order as stored in an object."""
    return {"number": number, "order": codec.to_builtins(order)}
