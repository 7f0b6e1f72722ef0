"""What a new pod is to continue from, and on which nodes it can."""

from __future__ import annotations

import msgspec

from cedana_sched.kube.objects import PartialObject
from cedana_sched.model.compatibility import Compatibility
from cedana_sched.model.errors import UsageError
from cedana_sched.model.identity import Identity, SnapshotRef
from cedana_sched.model.objects import names
from cedana_sched_webhooks.identity import Replica
from cedana_sched_webhooks.knowledge import Knowledge, Shelf
from cedana_sched_webhooks.objects import Checkpoint


class Continuation(msgspec.Struct, frozen=True):
    """`generation` is None while the snapshot is in flight. `source` is None when we know no Checkpoint of it."""

    replica: Replica
    generation: int | None
    source: Checkpoint | None = None

    def __str__(self) -> str:
        return str(self.replica) if self.generation is None else f"{self.replica}@{self.generation}"


def continuation_of(namespace: str, replica: Replica, knowledge: Knowledge) -> Continuation | None:
    """The snapshot in flight if there is one, else the newest; None for a first start."""
    checkpoints = knowledge.checkpoints_of(namespace, replica)
    if flying := next((one for one in checkpoints if one.in_flight), None):
        return Continuation(replica, None, flying)
    newest = max(checkpoints, key=lambda one: one.generation or 0, default=None)
    if newest is None or newest.generation is None:
        return None
    return Continuation(replica, newest.generation, newest)


def asked_for(namespace: str, text: str, knowledge: Knowledge) -> Continuation:
    """The snapshot that a pod's annotation names: `<id>/<index>@<generation>`; without a generation what there is.

    Raises:
        UsageError: it names none.
    """
    field = f"metadata.annotations[{names.RESTORES}]"
    try:
        identity, generation = _parse(f"{namespace}/{text}")
    except UsageError as error:
        remedy = "write <id>/<index>@<generation>, as 'kubectl get checkpoints' shows it"
        raise UsageError(field, text, "names no snapshot", remedy=remedy) from error
    replica = Replica(identity.id, identity.index)
    if generation is None:
        found = continuation_of(namespace, replica, knowledge)
        if found is None:
            remedy = "see 'kubectl get checkpoints', or leave the annotation out"
            raise UsageError(field, text, "has no snapshot", remedy=remedy)
        return found
    known = knowledge.checkpoints_of(namespace, replica)
    source = next((one for one in known if one.generation == generation), None)
    return Continuation(replica, generation, source)


def _parse(text: str) -> tuple[Identity, int | None]:
    if "@" not in text:
        return Identity.parse(text), None
    snapshot = SnapshotRef.parse(text)
    return snapshot.identity, snapshot.generation


def cpus_that_can_continue(checkpoint: Checkpoint, nodes: Shelf[PartialObject]) -> tuple[str, ...] | None:
    """Values of the nodes' label `names.NODE_CPU` that can, in order; None when it is not known what it asks for."""
    needed = _facts_of_its_node(checkpoint, nodes)
    if needed is None:
        return None
    able = {
        label
        for node in nodes
        if (label := node.metadata.labels.get(names.NODE_CPU))
        and (facts := _facts(node)) is not None
        and not needed.reasons_against(facts)
    }
    return tuple(sorted(able))


def _facts_of_its_node(checkpoint: Checkpoint, nodes: Shelf[PartialObject]) -> Compatibility | None:
    node = nodes.get(checkpoint.spec.pod.node_name)
    if node is not None:
        return _facts(node)
    cpu = checkpoint.metadata.labels.get(names.NODE_CPU)
    twins = (one for one in nodes if cpu and one.metadata.labels.get(names.NODE_CPU) == cpu)
    return next((facts for one in twins if (facts := _facts(one)) is not None), None)


def _facts(node: PartialObject) -> Compatibility | None:
    """What its agent says of it; None when it says nothing, or what a newer agent says."""
    try:
        return msgspec.json.decode(node.metadata.annotations.get(names.NODE_FACTS, ""), type=Compatibility)
    except msgspec.DecodeError:
        return None
