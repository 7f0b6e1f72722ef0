"""Transition tables of all records: (step, cause) -> next step.

A pair mapped to `LATE` is legal and changes nothing: orders are repeated after a loss, and answers may arrive twice or
after another decision. A pair missing from the table is a defect of the core or of an agent: `next_step_of` raises.
`mermaid` renders the same tables for the documentation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final, TypeVar

from cedana_sched.model.errors import IllegalTransitionError
from cedana_sched.model.records import CheckpointStep as C
from cedana_sched.model.records import HoldStep as H
from cedana_sched.model.records import RestoreStep as R

LATE: Final = None
"""Legal, no change: a repeated or delayed message."""


class Cause(StrEnum):
    """Cause of a transition: an agent's answer, a report, or a rule of the core."""

    # rules of the core
    BEGIN = "nothing is in the way"
    JOIN = "another preemption's checkpoint has taken the workload"
    ALL_FROZEN = "all members are frozen"
    KILL_ALL = "all members are committed, and are to stop"
    THAW_ALL = "all members are committed, and are to run on"
    SET_FAILED = "another member failed"
    DEADLINE = "the deadline passed"
    UNCONFIRMED = "the node does not answer"
    CHOSEN = "a snapshot is claimed"
    DAMAGED = "the snapshot is damaged, and an older one is looked for"
    START_COLD = "nothing can be continued, and it starts cold"
    GIVE_UP = "nothing can be continued, and the policy says fail"
    SETTLED = "all checkpoints are terminal"
    RIVAL = "another workload runs under its identity"
    # reports
    CANCELLED = "the preemption was cancelled"
    SPARED = "it is not evicted after all"
    ENDED = "the workload ended"
    NODE_LOST = "the node is lost"
    BEGINS_AGAIN = "the workload begins again"
    # answers of the agent and the adapter
    FROZEN = "Frozen"
    COMMITTED = "Committed"
    CHECKPOINT_FAILED = "CheckpointFailed"
    KILLED = "Killed"
    THAWED = "Thawed"
    ABORTED = "Aborted"
    SNAPSHOT_FOUND = "SnapshotFound"
    STAGED = "Staged"
    STAGE_FAILED = "StageFailed"
    RESTORE_SUCCEEDED = "RestoreSucceeded"
    RESTORE_FAILED = "RestoreFailed"
    STARTED_COLD = "StartedCold"
    WORKLOAD_FAILED = "WorkloadFailed"
    RELEASE_DONE = "ReleaseDone"


Step = TypeVar("Step", C, H, R)
Table = Mapping[tuple[Step, Cause], Step | None]

_BEFORE_KILL = (C.FREEZING, C.FROZEN, C.DUMPING, C.COMMITTED)
_CALLED_OFF = (Cause.SET_FAILED, Cause.DEADLINE, Cause.CANCELLED)

CHECKPOINT: Final[Table[C]] = {
    (C.WAITING, Cause.BEGIN): C.FREEZING,
    (C.WAITING, Cause.JOIN): C.READY,
    (C.FREEZING, Cause.FROZEN): C.FROZEN,
    (C.FROZEN, Cause.ALL_FROZEN): C.DUMPING,
    (C.DUMPING, Cause.COMMITTED): C.COMMITTED,
    (C.COMMITTED, Cause.KILL_ALL): C.KILLING,
    (C.COMMITTED, Cause.THAW_ALL): C.THAWING,
    (C.KILLING, Cause.KILLED): C.READY,
    (C.READY, Cause.SPARED): C.THAWING,
    (C.THAWING, Cause.THAWED): C.READY,
    (C.ABORTING, Cause.ABORTED): C.FAILED,
    # failure or cancellation; no order was sent yet in WAITING
    **{(C.WAITING, cause): C.FAILED for cause in (*_CALLED_OFF, Cause.RIVAL)},
    **{(step, cause): C.ABORTING for step in _BEFORE_KILL for cause in _CALLED_OFF},
    (C.FREEZING, Cause.CHECKPOINT_FAILED): C.ABORTING,
    (C.FROZEN, Cause.CHECKPOINT_FAILED): C.ABORTING,
    (C.DUMPING, Cause.CHECKPOINT_FAILED): C.ABORTING,
    # the workload ends by itself; once committed, its snapshot stays valid
    (C.WAITING, Cause.ENDED): C.FAILED,
    (C.FREEZING, Cause.ENDED): C.ABORTING,
    (C.FROZEN, Cause.ENDED): C.ABORTING,
    (C.DUMPING, Cause.ENDED): C.ABORTING,
    (C.COMMITTED, Cause.ENDED): C.COMMITTED,
    (C.KILLING, Cause.ENDED): C.READY,
    (C.THAWING, Cause.ENDED): C.READY,
    # the node is lost: no agent is left to abort
    (C.WAITING, Cause.NODE_LOST): C.FAILED,
    (C.FREEZING, Cause.NODE_LOST): C.FAILED,
    (C.FROZEN, Cause.NODE_LOST): C.FAILED,
    (C.DUMPING, Cause.NODE_LOST): C.FAILED,
    (C.COMMITTED, Cause.NODE_LOST): C.COMMITTED,
    (C.KILLING, Cause.NODE_LOST): C.READY,
    (C.THAWING, Cause.NODE_LOST): C.READY,
    (C.ABORTING, Cause.NODE_LOST): C.FAILED,
    # a decision is final even if the node does not answer
    (C.KILLING, Cause.UNCONFIRMED): C.READY,
    (C.THAWING, Cause.UNCONFIRMED): C.READY,
    (C.ABORTING, Cause.UNCONFIRMED): C.FAILED,
    # repeated or late
    **{(step, Cause.FROZEN): LATE for step in C if step not in {C.WAITING, C.FREEZING}},
    **{(step, Cause.COMMITTED): LATE for step in (C.COMMITTED, C.KILLING, C.THAWING, C.ABORTING, C.READY, C.FAILED)},
    **{
        (step, Cause.CHECKPOINT_FAILED): LATE
        for step in (C.COMMITTED, C.KILLING, C.THAWING, C.ABORTING, C.READY, C.FAILED)
    },
    (C.READY, Cause.KILLED): LATE,
    (C.THAWING, Cause.KILLED): LATE,
    (C.READY, Cause.THAWED): LATE,
    (C.FAILED, Cause.ABORTED): LATE,
    (C.ABORTING, Cause.ENDED): LATE,
}

HOLD: Final[Table[H]] = {
    (H.HOLDING, Cause.SETTLED): H.RELEASING,
    (H.HOLDING, Cause.DEADLINE): H.RELEASING,
    (H.RELEASING, Cause.RELEASE_DONE): H.RELEASED,
    (H.RELEASED, Cause.RELEASE_DONE): LATE,
}

_UNDECIDED = (R.WAITING, R.STAGING, R.RESTORING)
_LIVE = (*_UNDECIDED, R.STARTING_COLD, R.FAILING_WORKLOAD, R.RUNNING)

RESTORE: Final[Table[R]] = {
    (R.WAITING, Cause.CHOSEN): R.STAGING,
    (R.STAGING, Cause.STAGED): R.RESTORING,
    (R.STAGING, Cause.DAMAGED): R.WAITING,
    (R.RESTORING, Cause.RESTORE_SUCCEEDED): R.RUNNING,
    **{(step, Cause.START_COLD): R.STARTING_COLD for step in _UNDECIDED},
    **{(step, Cause.GIVE_UP): R.FAILING_WORKLOAD for step in _UNDECIDED},
    (R.STARTING_COLD, Cause.STARTED_COLD): R.RUNNING,
    (R.FAILING_WORKLOAD, Cause.WORKLOAD_FAILED): R.FAILED,
    # the node restored the workload although ordered otherwise since
    (R.STARTING_COLD, Cause.RESTORE_SUCCEEDED): R.RUNNING,
    (R.FAILING_WORKLOAD, Cause.RESTORE_SUCCEEDED): R.RUNNING,
    (R.STARTING_COLD, Cause.UNCONFIRMED): R.FAILED,
    (R.FAILING_WORKLOAD, Cause.UNCONFIRMED): R.FAILED,
    # late answer of the node
    (R.FAILED, Cause.STARTED_COLD): R.RUNNING,
    (R.FAILED, Cause.RESTORE_SUCCEEDED): R.RUNNING,
    # the workload is gone; after an unconfirmed failure, this frees the claim
    **{(step, Cause.ENDED): R.ENDED for step in (*_LIVE, R.FAILED)},
    **{(step, Cause.NODE_LOST): R.ENDED for step in (*_LIVE, R.FAILED)},
    **{(step, Cause.BEGINS_AGAIN): R.ENDED for step in (*_LIVE, R.FAILED)},
    (R.ENDED, Cause.ENDED): LATE,
    (R.ENDED, Cause.BEGINS_AGAIN): LATE,
    # repeated or late
    **{(step, Cause.SNAPSHOT_FOUND): LATE for step in R},
    **{(step, Cause.STAGED): LATE for step in R if step is not R.STAGING},
    **{(step, Cause.STAGE_FAILED): LATE for step in R if step is not R.WAITING},
    **{(step, Cause.RESTORE_SUCCEEDED): LATE for step in (R.RUNNING, R.ENDED)},
    **{(step, Cause.RESTORE_FAILED): LATE for step in R if step not in {R.WAITING, R.STAGING}},
    **{(step, Cause.STARTED_COLD): LATE for step in (R.RUNNING, R.ENDED)},
    **{(step, Cause.WORKLOAD_FAILED): LATE for step in (R.RUNNING, R.FAILED, R.ENDED)},
}


def next_step_of(table: Table[Step], step: Step, cause: Cause, uid: str, history: Sequence[str]) -> Step | None:
    """Return the next step, or `LATE`.

    Raises:
        IllegalTransitionError: the pair is missing from the table; the evidence is the record's history.
    """
    try:
        return table[step, cause]
    except KeyError:
        message = f"{uid} is {step} and cannot take {cause.name} ({cause})"
        remedy = "this is a defect: report it with the history below"
        raise IllegalTransitionError(message, remedy=remedy, evidence=tuple(history)) from None


def mermaid(table: Table[Step]) -> str:
    """Render `table` as a state diagram, without messages that change nothing."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for (step, cause), following in table.items():
        if following is not None and following != step:
            arrows.setdefault((str(step), str(following)), []).append(str(cause))
    lines = ["stateDiagram-v2"]
    for (step_name, next_name), causes in arrows.items():
        lines.append(f"    {step_name} --> {next_name}: {', '.join(causes)}")
    return "\n".join(lines)
