"""Labels, annotations, gates and finalizers of the product, and its API group."""

from __future__ import annotations

from typing import Final

GROUP: Final = "sched.cedana.ai"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
CATEGORY: Final = "cedana"

ADMISSION_CHECK_CONTROLLER: Final = f"{GROUP}/checkpoint-restore"
"""`controllerName` of the AdmissionCheck with which an admin opts a ClusterQueue in."""
POD_WEBHOOK: Final = f"pods.{GROUP}"
"""Name of the webhook that changes new pods."""
STATUS_WEBHOOK: Final = f"statuses.{GROUP}"
"""Name of the webhook that holds evictions written into a pod's status."""

# Opt-in of a pod. Written by users, adapters (in pod templates) and the pod webhook.
ID: Final = f"{GROUP}/id"
"""Annotation of a pod or pod template: the identity's id. The environment variable takes precedence."""
DERIVED_ID: Final = f"{GROUP}/derived-id"
"""Annotation of a pod or pod template: `true` where `ID` was derived from the pod's controller. Its snapshots are
removed with that controller, because nothing else can restore them."""
INDEX: Final = f"{GROUP}/index"
"""Annotation of a pod: the replica's number."""
RESTORE_FROM: Final = f"{GROUP}/restore-from"
"""Annotation of a pod or pod template: the snapshot to restore, as `id[/index]@generation`."""
EXPECT_SNAPSHOT: Final = f"{GROUP}/expect-snapshot"
"""Annotation of a pod or pod template: `true` where the store has a snapshot of it although no Checkpoint in this
cluster shows one, because another cluster took it."""
PROTECT: Final = f"{GROUP}/protect"
"""Annotation of a scheduler's queue, where the adapter supports it, and label of a namespace: `true` protects all pods
there that have a controller; the annotation `POLICY` beside it names their CheckpointPolicy."""
POLICY: Final = f"{GROUP}/policy"
"""Annotation of a pod or pod template: name of the CheckpointPolicy. Of an admitted pod: the one in force."""
QUEUE_POLICY: Final = f"{GROUP}/queue-policy"
"""Annotation of a pod or pod template, written by an adapter: name of the CheckpointPolicy of the pod's queue. Takes
precedence over `POLICY`, unless that policy sets `podsMayChoose`."""

PREFLIGHT_REQUESTED: Final = f"{GROUP}/preflight-requested"
"""Annotation of a running pod: with each new value, the agent looks once whether the pod can be saved. Any user who may
change the pod writes it; requests within some seconds become one."""

# Written by the pod webhook.
NAMESPACE_UID: Final = f"{GROUP}/namespace-uid"
"""Annotation of a pod: the uid of its namespace, unless `storage.sharedNamespaces` has the namespace's name."""
PROTECTED: Final = f"{GROUP}/protected"
"""Label of every protected pod; its value is `true`. `false`: see `NOT_PROTECTED`."""
NOT_PROTECTED: Final = f"{GROUP}/not-protected"
"""Annotation of a pod that opted in and was refused protection: the reason and the remedy."""
MISSED_BY_WEBHOOK: Final = f"{GROUP}/missed-by-webhook"
"""Annotation of a pod that was created while no webhook answered: `true`. The coordinator protects it as far as it
can."""
RESTORE_IDENTITY: Final = f"{GROUP}/restore-identity"
"""Annotation of a pod that may be restored: the identity whose snapshots it restores, as `id/index`. The pod has the
product's init container and runtime class."""
ANY_INDEX: Final = "*"
"""The index in `RESTORE_IDENTITY` of a pod without a stable index: the coordinator assigns one."""
SECCOMP_DEFAULTED: Final = f"{GROUP}/seccomp-defaulted"
"""Annotation of a pod: the seccomp profile that a policy's `podDefaults` gave it, as `RuntimeDefault` or
`Localhost/PATH`; of a Checkpoint: that of its pod. A snapshot of a pod without the profile is not restored in a pod
that has it."""
PRESTOP_TOKEN: Final = f"{GROUP}/prestop-token"
"""Annotation of a pod: the secret part of its preStop hook's path, so that no other caller can end its hold."""
ORIGINAL_GRACE_PERIOD: Final = f"{GROUP}/original-grace-period-seconds"
"""Annotation of a pod: its termination grace period before the webhook raised it. The agent enforces it."""
CONFIRM_DELETION: Final = f"{GROUP}/confirm-deletion"
"""Annotation of a pod whose deletion may be a preemption that the scheduler publishes elsewhere, a moment later: its
preStop hook waits for a Checkpoint of the pod or for `NOT_PREEMPTED`. See `CONFIRM_ALWAYS`, `CONFIRM_IF_EVICTED`."""
CONFIRM_ALWAYS: Final = "always"
CONFIRM_IF_EVICTED: Final = "if-evicted"
"""Only where the pod has the condition `DisruptionTarget`."""
RESTORE_GATE: Final = f"{GROUP}/restore-pending"
"""Scheduling gate of a pod whose snapshot is not committed yet."""
RUNTIME_CLASS: Final = "cedana"
RESTORE_CONTAINER: Final = "cedana-restore"
"""Name of the injected init container."""
RESTORE_COMMAND: Final = "cedana-sched-restore-wait"
"""Its command."""
RESTORE_VOLUME: Final = "cedana-restore"
"""Name of the injected emptyDir that the agent and the restore container share."""

# Written by a webhook or a scheduler's extender that refuses an eviction.
EVICTION_REQUESTED: Final = f"{GROUP}/eviction-requested"
"""Annotation of a pod whose scheduler evicts it, and is refused; see `EvictionMark`."""
DISRUPTION_REQUESTED: Final = f"{GROUP}/disruption-requested"
"""Annotation of a pod that a drain, an autoscaler or a taint evicts, and whose eviction is refused until the pod is
saved; likewise an `EvictionMark`."""

# Written by the coordinator and the adapters.
NODE: Final = f"{GROUP}/node"
"""Label of a Checkpoint or Restore: the node whose agent carries out its orders."""
ARCHIVED: Final = f"{GROUP}/archived"
"""Label of a Checkpoint or Restore that the coordinator tracks no longer, because it is terminal and confirmed; its
value is `true`."""
REMOVE_SNAPSHOT: Final = f"{GROUP}/remove-snapshot"
"""Label of a deleted Checkpoint, in place of `ARCHIVED`: `true` while an agent is ordered to remove its snapshot."""
TRACKED: Final = f"!{ARCHIVED},!{REMOVE_SNAPSHOT}"
"""Label selector of the Checkpoints and Restores that the coordinator tracks."""
SNAPSHOT_CLEANUP: Final = f"{GROUP}/snapshot-cleanup"
"""Finalizer of a Checkpoint whose snapshot is in the store and is removed before it."""
RELEASED_HOLD: Final = f"{GROUP}/released-hold"
"""Annotation of a held object: name of the PreemptionHold that was released, so that the next attempt is allowed."""
SUSPENDED_AT: Final = f"{GROUP}/suspended-at"
"""Annotation of a held object, written by the webhook that allows an eviction by its update: when (RFC 3339), so that
PreemptionHolds from before are known as those of an earlier run."""
NOT_PREEMPTED: Final = f"{GROUP}/not-preempted"
"""Annotation of a pod with `CONFIRM_DELETION`: `true`, its deletion is no preemption; or `NOT_BY_SCHEDULER`. Of
any pod: `LEFT_OUT` and a key."""
NOT_BY_SCHEDULER: Final = "by-scheduler"
"""Its scheduler has not preempted it, and the adapter that saves pods from other deletions decides."""
LEFT_OUT: Final = "left-out-"
"""Before the key of a notice: the pod is not saved from that shutdown of its node. Void once the notice is gone."""

WRITER: Final = f"{GROUP}/writer"
"""Annotation of a ConfigMap of the coordinator: the coordinator that wrote it."""

# Written by the agent on the pods of its node.
CHECKPOINTABLE: Final = f"{GROUP}/Checkpointable"
"""Type of the pod condition that says whether a checkpoint of the pod would fail, and why."""

# Written by the agent on its node.
NODE_PREPARED: Final = f"{GROUP}/node-prepared"
"""Label of a node on which workloads can be dumped and restored; its value is `true`. It stays while the agent is
down."""
CPU_FEATURES: Final = f"{GROUP}/cpu-features"
"""Label of a node: digest of its CPU's features; nodes of equal value can restore each other's snapshots."""
NODE_FACTS: Final = f"{GROUP}/node-facts"
"""Annotation of a node: its `NodeDescription` as JSON, equal for nodes of one type."""
NODE_GPUS: Final = f"{GROUP}/node-gpus"
"""Annotation of a node with an NVIDIA driver: its `Gpus` as JSON."""
NODE_INTERRUPTION: Final = f"{GROUP}/interruption"
"""Annotation of a node that its provider is about to interrupt: the `NodeInterruption` as JSON."""

# Written by the coordinator on nodes.
CORDONED: Final = f"{GROUP}/cordoned"
"""Annotation of a node that we have cordoned: the key of the notice of interruption. Without the annotation, the cordon
is another component's, or an admin's."""

# Written by the uninstallation on nodes.
UNINSTALL: Final = f"{GROUP}/uninstall"
"""Annotation of a node: its agent removes what it installed there, and then this annotation. Its value is the moment
(RFC 3339) after which it has no effect, so that one that is left behind does not undo a later installation."""


def orders_selector(node: str) -> str:
    """Return the label selector of the Checkpoints and Restores whose orders this node's agent carries out."""
    return f"{NODE}={node},{ARCHIVED}!=true"


def any_snapshot_restore_identity(identifier: str) -> str:
    """`RESTORE_IDENTITY` of a pod that restores any snapshot of the id that no other pod has claimed."""
    return f"{identifier}/{ANY_INDEX}"
