"""Every name that we put on somebody else's object, and the group of our own."""

from __future__ import annotations

from typing import Final

GROUP: Final = "sched.cedana.ai"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
CATEGORY: Final = "cedana"

ADMISSION_CHECK_CONTROLLER: Final = f"{GROUP}/checkpoint-restore"
"""`controllerName` of the AdmissionCheck with which an admin opts a ClusterQueue in."""

# What opts a pod in; written by people, by an adapter into a pod template, or by the pod webhook.
ID: Final = f"{GROUP}/id"
"""Annotation of a pod or pod template: the identity's id. The environment variable wins over it."""
DERIVED: Final = f"{GROUP}/derived"
"""Annotation of a pod or pod template: `true` where the id is its controller's own, so that nothing can ever continue
from its snapshots once that is gone; they go with it."""
INDEX: Final = f"{GROUP}/index"
"""Annotation of a pod: the replica's number."""
WANTED: Final = f"{GROUP}/snapshot"
"""Annotation of a pod or pod template: the very snapshot to continue from, as `id[/index]@generation`."""
CONTINUES: Final = f"{GROUP}/continues"
"""Annotation of a pod or pod template: `true` where whoever writes it knows that the store has a snapshot of it, which
another cluster may have taken, so that no Checkpoint here tells of it."""
PROTECT: Final = f"{GROUP}/protect"
"""Annotation of a scheduler's queue, where that is the place for it: `true` protects all pods of the queue; `POLICY`
beside it names their CheckpointPolicy."""
POLICY: Final = f"{GROUP}/policy"
"""Annotation of a pod or pod template: name of the CheckpointPolicy. Of a pod that is there: the one that counts."""
QUEUE_POLICY: Final = f"{GROUP}/queue-policy"
"""Annotation of a pod or pod template, written by an adapter: name of the CheckpointPolicy that an admin has given the
queue of the pod. Unless that one says `podsMayChoose`, it counts whatever `POLICY` says."""

# What the pod webhook writes.
NAMESPACE_UID: Final = f"{GROUP}/namespace-uid"
"""Annotation of a pod: the uid of its namespace, unless the admin shares the namespace's name."""
PROTECTED: Final = f"{GROUP}/protected"
"""Label of every pod whose preemption is made harmless; its value is `true`. `false`: see `REFUSED`."""
REFUSED: Final = f"{GROUP}/not-protected"
"""Annotation of a pod whose protection was asked for and refused: why, and what to do."""
PREPARED_LATE: Final = f"{GROUP}/prepared-late"
"""On a pod that no webhook has seen at its creation: `true`; the coordinator protects it as far as it can."""
RESTORES: Final = f"{GROUP}/restores"
"""Annotation of a pod that shall continue from a snapshot: it has our init container and our runtime class."""
ANY_INDEX: Final = "*"
"""In `RESTORES`, for a pod that nothing tells apart from its siblings: the coordinator is to choose the number."""
HOLD_TOKEN: Final = f"{GROUP}/hold-token"
"""Annotation of a pod: the secret part of its preStop path, so that nobody else can end its hold."""
GRACE: Final = f"{GROUP}/grace-seconds"
"""Annotation of a pod: its termination grace period before the webhook raised it, which the agent keeps to."""
ASKS: Final = f"{GROUP}/asks-before-end"
"""Annotation of a pod whose deletion may be a preemption that is told by another way, a moment later: its preStop waits
until somebody says which it is, by a Checkpoint of the pod or by `RELEASED`. See `ASKS_ALWAYS`, `ASKS_IF_EVICTED`."""
ASKS_ALWAYS: Final = "always"
ASKS_IF_EVICTED: Final = "if-evicted"
"""Only where a scheduler's condition `DisruptionTarget` stands on the pod."""
RESTORE_GATE: Final = f"{GROUP}/restore"
"""Scheduling gate of a pod whose snapshot is in flight."""
RUNTIME_CLASS: Final = "cedana"
RESTORE_CONTAINER: Final = "cedana-restore"
"""Name of the injected init container."""
RESTORE_COMMAND: Final = "cedana-sched-restore-wait"
"""What it runs."""
RESTORE_VOLUME: Final = "cedana-restore"
"""Name of the injected emptyDir by which the agent talks to that container."""

# What whoever hears first of an eviction writes.
EVICTING: Final = f"{GROUP}/evicting"
"""Annotation of a pod that its scheduler wants to evict, and that is held; see `EvictionMark`."""

# What the coordinator and the adapters write.
NODE: Final = f"{GROUP}/node"
"""Label of a Checkpoint or Restore: the node whose agent it is addressed to."""
SETTLED: Final = f"{GROUP}/settled"
"""Label of a Checkpoint or Restore that the coordinator has forgotten, because nothing more happens to it; its value is
`true`, or `removing` where an agent is told to remove the snapshot of a Checkpoint that was deleted."""
REMOVING: Final = "removing"
SNAPSHOT: Final = f"{GROUP}/snapshot"
"""Finalizer of a Checkpoint: what it describes is in the store, and goes before it."""
RELEASED: Final = f"{GROUP}/released"
"""Annotation of a held object: name of the PreemptionHold that is over, so that the next attempt goes through. Of a pod
that asks before its end: `LET_GO`."""
LET_GO: Final = "let-go"

# What the agent writes on its node.
NODE_READY: Final = f"{GROUP}/ready"
"""Label of a node that its agent has prepared, so that workloads can be dumped and continued; its value is `true`. It
stays while the agent is dead."""
NODE_CPU: Final = f"{GROUP}/cpu"
"""Label of a node: digest of its CPU's features; nodes of equal value can continue each other's snapshots."""
NODE_FACTS: Final = f"{GROUP}/facts"
"""Annotation of a node: its `NodeDescription` as JSON."""

# What the uninstallation writes on nodes.
LEAVING: Final = f"{GROUP}/leaving"
"""Annotation of a node: its agent shall take our part of it back, and then this mark. Its value is the moment (RFC
3339) from which on it counts for nothing, so that a mark that is left behind does not undo a later installation."""


def any_snapshot_of(identifier: str) -> str:
    """`RESTORES` of a pod that continues whichever snapshot of the id nobody else does."""
    return f"{identifier}/{ANY_INDEX}"
