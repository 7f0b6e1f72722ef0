"""Views as tables and text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from cedana_sched.cli import units
from cedana_sched.cli.job_tables import fields_text
from cedana_sched.cli.kubectl.views import EventView, HoldView, OperationView, PodDetails, PodView, PolicyView
from cedana_sched.cli.output import Table, plain_table
from cedana_sched.model.objects.field_names import api_name

POD_COLUMNS = (
    "NAMESPACE",
    "POD",
    "ID",
    "INDEX",
    "PHASE",
    "CHECKPOINTABLE",
    "SNAPSHOT",
    "SIZE",
    "SAVED",
    "AT RISK",
    "NODE",
)
OPERATION_COLUMNS = (
    "NAMESPACE", "KIND", "POD", "ID", "STEP", "DONE", "OF", "RATE", "LEFT", "AGE", "FROZEN", "DEADLINE", "NODE", "WHY",
)  # fmt: skip
HOLD_COLUMNS = ("NAMESPACE", "HELD", "ADAPTER", "STEP", "AGE", "DEADLINE", "VICTIMS", "PREEMPTOR", "REASON")
POLICY_COLUMNS = ("POLICY", "DEADLINE", "INTERVAL", "ON FAILURE", "ON RESTORE FAILURE", "ON NODE LOSS", "KEEP")
_POLICY_DURATIONS = tuple(map(api_name, ("deadline_seconds", "interval_seconds")))
_POLICY_FIELDS = tuple(map(api_name, ("on_checkpoint_failure", "on_restore_failure", "on_node_loss")))


def pods_table(pods: Iterable[PodView], now: float) -> Table:
    """Format protected pods; `AT RISK` is the work that no snapshot has."""
    rows: list[tuple[str, ...]] = [
        (
            pod.namespace,
            pod.name,
            pod.id,
            str(pod.index),
            pod.phase,
            _format_checkpointable(pod),
            pod.snapshot or units.ABSENT,
            units.format_size(pod.read_bytes) if pod.snapshot else units.ABSENT,
            _format_ago(pod.saved_at, now),
            _format_risk(pod, now),
            pod.node or units.ABSENT,
        )
        for pod in pods
    ]
    return Table(POD_COLUMNS, rows, "no protected pods", ("NODE", "SIZE", "INDEX", "NAMESPACE"))


def operations_table(
    operations: Iterable[OperationView], now: float, rates: Mapping[str, float] | None = None
) -> Table:
    """Format what is in progress.

    Args:
        operations: each is a row.
        now: seconds since the epoch.
        rates: bytes per second by kind, namespace and name (`operation_key`), as far as measured.
    """
    rows = [_operation_row(one, now, (rates or {}).get(operation_key(one))) for one in operations]
    return Table(
        OPERATION_COLUMNS, rows, "nothing is held, saved or restored now", ("NODE", "WHY", "FROZEN", "NAMESPACE")
    )


def operation_key(one: OperationView) -> str:
    """Return what distinguishes an operation."""
    return f"{one.kind}/{one.namespace}/{one.name}"


def operation_line(one: OperationView, now: float) -> str:
    """Format an operation as one line, for plain progress."""
    done = f", {units.format_size(one.done_bytes)}" if one.done_bytes else ""
    message = f": {one.message}" if one.message else ""
    age = units.format_age(one.began_at, now)
    return f"{one.kind} {one.namespace}/{one.name} of {one.pod} {one.step} after {age}{done}{message}"


def holds_table(holds: Iterable[HoldView], now: float) -> Table:
    """Format PreemptionHolds."""
    rows: list[tuple[str, ...]] = [
        (
            one.namespace,
            one.held or "pods",
            one.adapter,
            one.step,
            _format_lasted(one, now),
            _format_until(one.deadline, now) if one.released_at is None else units.ABSENT,
            ", ".join(f"{count} {verdict}" for verdict, count in sorted(one.verdicts.items())) or units.ABSENT,
            one.preemptor or units.ABSENT,
            one.reason,
        )
        for one in holds
    ]
    return Table(HOLD_COLUMNS, rows, "no eviction is held", ("PREEMPTOR", "ADAPTER", "NAMESPACE"))


def policies_table(policies: Iterable[PolicyView]) -> Table:
    """Format CheckpointPolicies; a field that is not written has its default."""
    rows: list[tuple[str, ...]] = []
    for one in policies:
        durations = (_format_written_duration(one.spec.get(field)) for field in _POLICY_DURATIONS)
        values = (str(one.spec.get(field, units.ABSENT)) for field in _POLICY_FIELDS)
        retention = one.spec.get("retention")
        keep = str(retention.get(api_name("keep_last"), units.ABSENT)) if isinstance(retention, dict) else units.ABSENT
        rows.append((one.name, *durations, *values, keep))
    return Table(POLICY_COLUMNS, rows, "no CheckpointPolicies")


def details_text(details: PodDetails, now: float) -> str:
    """Format all about a pod."""
    pod = details.pod
    saved = f"{pod.snapshot}, {units.format_size(pod.read_bytes)}, {_format_ago(pod.saved_at, now)}"
    risk = _format_risk(pod, now)
    fields = [
        ("Pod", f"{pod.namespace}/{pod.name}"),
        ("Checkpoint id", f"{pod.id}, index {pod.index}"),
        ("Node", pod.node or units.ABSENT),
        ("Phase", pod.phase),
        ("Checkpointable", _format_checkpointable(pod) + (f": {pod.obstacle}" if pod.obstacle else "")),
        ("Snapshots", str(pod.snapshots)),
        ("Newest snapshot", saved if pod.snapshot else units.ABSENT),
        ("At risk", units.ABSENT if risk == units.ABSENT else f"{risk} of work that no snapshot has"),
    ]
    parts = [fields_text(fields)]
    if details.operations:
        parts.append("Checkpoints and restores\n" + _indented(plain_table(_history_table(details.operations, now))))
    if details.events:
        parts.append("Events\n" + _indented("\n".join(_event_line(one, now) for one in details.events)))
    return "\n\n".join(parts)


def _history_table(operations: Iterable[OperationView], now: float) -> Table:
    columns = ("KIND", "NAME", "STEP", "SNAPSHOT", "READ", "STORED", "BEGAN", "POD", "MESSAGE")
    rows: list[tuple[str, ...]] = [
        (
            one.kind,
            one.name,
            one.step,
            one.snapshot or units.ABSENT,
            units.format_size(one.done_bytes),
            units.format_size(one.stored_bytes) if one.stored_bytes else units.ABSENT,
            _format_ago(one.began_at, now),
            one.pod,
            one.message or "",
        )
        for one in operations
    ]
    return Table(columns, rows)


def _operation_row(one: OperationView, now: float, rate: float | None) -> tuple[str, ...]:
    left = None if one.total_bytes is None else max(one.total_bytes - one.done_bytes, 0)
    seconds_left = left / rate if left is not None and rate else None
    return (
        one.namespace,
        one.kind,
        one.pod or units.ABSENT,
        f"{one.id}/{one.index}" if one.id else units.ABSENT,
        one.step,
        units.format_size(one.done_bytes) if one.done_bytes else units.ABSENT,
        units.format_size(one.total_bytes) if one.total_bytes else units.ABSENT,
        units.format_rate(rate, 1) if rate else units.ABSENT,
        f"~{units.format_duration(seconds_left)}" if seconds_left is not None else units.ABSENT,
        units.format_age(one.began_at, now),
        units.format_age(one.frozen_at, one.committed_at or now),
        _format_until(one.deadline, now),
        one.node or units.ABSENT,
        one.message or one.reason,
    )


def _format_checkpointable(pod: PodView) -> str:
    return {True: "yes", False: "no", None: "unknown"}[pod.checkpointable]


def _format_risk(pod: PodView, now: float) -> str:
    """Only what runs has work to lose."""
    return units.format_age(_last_safe_moment(pod), now) if pod.phase == "Running" else units.ABSENT


def _last_safe_moment(pod: PodView) -> float | None:
    """Return since when work is in no snapshot: the last commit, if the pod ran before it, else its start."""
    moments = [at for at in (pod.started_at, pod.saved_at) if at is not None]
    return max(moments, default=None)


def _format_written_duration(seconds: object) -> str:
    return units.format_duration(seconds) if isinstance(seconds, int | float) else units.ABSENT


def _format_ago(at: float | None, now: float) -> str:
    return units.ABSENT if at is None else f"{units.format_age(at, now)} ago"


def _format_until(at: float | None, now: float) -> str:
    if at is None:
        return units.ABSENT
    return f"in {units.format_age(now, at)}" if at > now else "over"


def _format_lasted(one: HoldView, now: float) -> str:
    return units.format_age(one.began_at, one.released_at or now)


def _event_line(one: EventView, now: float) -> str:
    times = f" ({one.count} times)" if one.count > 1 else ""
    return f"{'! ' if one.warning else ''}{_format_ago(one.at, now)} {one.reason}{times}: {one.text}"


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
