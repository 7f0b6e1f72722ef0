"""Which requests were refused because of a hold, and from when until when they could be: the audit log's word."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from cedana_sched.model.objects.names import EVICTION_REQUESTED
from tests.cluster.fixtures.audit import Write
from tests.e2e.product.chaos.account import time_of

HELD = "Held for checkpoint by cedana"
WEBHOOKS = 2
"""Replicas; where no mark can be written, each counts from the first attempt that it sees."""
TAKEN_UP_SECONDS = 30.0
"""So long an eviction is refused before there is a hold (`UNANNOUNCED_SECONDS` of the webhooks)."""

Named: TypeAlias = tuple[str, str]
"""Namespace and name: of the Job that is not to be suspended, or the pod that is not to be evicted."""


def refusals(writes: Sequence[Write]) -> Mapping[tuple[str, Named], Sequence[float]]:
    """When each object's eviction was refused (epoch seconds), in order; by resource (`pods`, `jobs`) and name."""
    found: defaultdict[tuple[str, Named], list[float]] = defaultdict(list)
    for write in writes:
        if write.code == 429 and HELD in write.message:
            resource = write.resource.partition("/")[0]
            found[resource, (write.namespace, write.name)].append(write.received.timestamp())
    return {name: sorted(moments) for name, moments in found.items()}


def spans(writes: Sequence[Write]) -> Mapping[Named, Sequence[tuple[float, float]]]:
    """From when until when each object was held: as its PreemptionHold said when it was made."""
    victims: defaultdict[str, set[str]] = defaultdict(set)
    for write in _created(writes, "checkpoints"):
        if hold := write.body["spec"].get("holdUID"):
            victims[hold].add(write.body["spec"]["podRef"]["name"])
    found: defaultdict[Named, list[tuple[float, float]]] = defaultdict(list)
    for write in _created(writes, "preemptionholds"):
        spec, deadline = write.body["spec"], write.body.get("status", {}).get("deadline")
        if deadline is None:
            continue
        span = (time_of(spec["creationTime"]), time_of(deadline))
        held = (spec.get("heldObjectRef") or {}).get("name")
        for name in victims[spec["uid"]] | ({held} if held else set()):
            found[write.namespace, name].append(span)
    return found


def pods_being_saved(writes: Sequence[Write]) -> Sequence[tuple[float, float]]:
    """From when until when any pod was held that its scheduler evicts by itself, as its PreemptionHold said."""
    created = [write.body for write in _created(writes, "preemptionholds")]
    of_pods = [
        body for body in created if not body["spec"].get("heldObjectRef") and "deadline" in body.get("status", {})
    ]
    return [(time_of(body["spec"]["creationTime"]), time_of(body["status"]["deadline"])) for body in of_pods]


def unmarked(writes: Sequence[Write]) -> Mapping[Named, Sequence[float]]:
    """When the mark of a pod's eviction could not be written, as where a webhook of somebody else's does not answer."""
    found: defaultdict[Named, list[float]] = defaultdict(list)
    for write in writes:
        is_of_pod = write.resource == "pods" and write.verb == "patch"
        if is_of_pod and write.code >= 500 and EVICTION_REQUESTED in str(write.body):
            found[write.namespace, write.name].append(write.received.timestamp())
    return found


def _created(writes: Sequence[Write], resource: str) -> list[Write]:
    return [one for one in writes if one.resource == resource and one.verb == "create" and one.code == 201]
