"""What the notices on a Node say: our agent's annotation, and taints of aws-node-termination-handler. Pure.

Taints of Karpenter and the Cluster Autoscaler are no notices: both evict through `pods/eviction`, wait for it, and may
change their mind before. Nor are those of a candidate (`DeletionCandidateOfClusterAutoscaler`).

Source: aws-node-termination-handler, `pkg/node/node.go`. It taints only with `taintNode`; the value names the
event.
"""

from __future__ import annotations

from typing import Final

import msgspec

from cedana_sched.kube.builtin_kinds import Node
from cedana_sched.model.objects.node_interruption import InterruptionKind, notice_key, read_interruption

_TERMINATION_HANDLER: Final = "aws-node-termination-handler"
_KINDS_OF_TAINTS: Final = {
    f"{_TERMINATION_HANDLER}/spot-itn": InterruptionKind.TERMINATION,
    f"{_TERMINATION_HANDLER}/asg-lifecycle-termination": InterruptionKind.TERMINATION,
    f"{_TERMINATION_HANDLER}/scheduled-maintenance": InterruptionKind.MAINTENANCE,
    f"{_TERMINATION_HANDLER}/rebalance-recommendation": InterruptionKind.RISK,
}


class NodeNotice(msgspec.Struct, frozen=True):
    """One notice about a node.

    `key` differs between notices, and is part of uids; `ends_at` is in seconds since the epoch, None if unknown.
    """

    key: str
    source: str
    kind: InterruptionKind
    ends_at: float | None

    @property
    def ends_node(self) -> bool:
        """Whether the node certainly ends."""
        return self.kind is not InterruptionKind.RISK


def notice_of(node: Node | None) -> NodeNotice | None:
    """Return the notice to act on; the agent's, which has a time, before a taint of the same. No node has none."""
    if node is None:
        return None
    notices = [*_annotated(node), *_tainted(node)]
    return next((one for one in notices if one.ends_node), notices[0] if notices else None)


def _annotated(node: Node) -> list[NodeNotice]:
    read = read_interruption(node.metadata.annotations)
    return [] if read is None else [NodeNotice(read.key, read.source, read.kind, read.ends_at)]


def _tainted(node: Node) -> list[NodeNotice]:
    return [
        NodeNotice(notice_key(taint.key, taint.value), _TERMINATION_HANDLER, kind, None)
        for taint in node.spec.taints
        if (kind := _KINDS_OF_TAINTS.get(taint.key)) is not None
    ]
