"""Views of snapshots as tables, text and JSON; the JSON is a stable interface, the store's own structs are not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from cedana_sched.cli import units
from cedana_sched.cli.job_tables import fields_text
from cedana_sched.cli.output import Table

if TYPE_CHECKING:
    from cedana_sched.model.manifest import Manifest, SnapshotSummary
    from cedana_sched.store.verify import VerifyReport


class SnapshotView(msgspec.Struct, frozen=True):
    """One committed snapshot in a list. Times are seconds since the epoch."""

    snapshot: str
    namespace: str
    id: str
    index: int
    container: str
    generation: int
    committed_at: float
    taken_at: float
    reason: str
    adapter: str
    labels: dict[str, str]
    read_bytes: int
    zero_bytes: int
    reused_bytes: int
    new_bytes: int
    stored_bytes: int
    packs: int
    leaves: tuple[int, ...] = ()
    """Generations of other lines of work, which no newer snapshot continues; retention keeps them in addition."""


def snapshot_view(summary: SnapshotSummary) -> SnapshotView:
    identity, stats = summary.ref.identity, summary.stats
    return SnapshotView(
        snapshot=str(summary.ref),
        namespace=identity.namespace,
        id=identity.id,
        index=identity.index,
        container=identity.container,
        generation=summary.ref.generation,
        committed_at=summary.committed_at,
        taken_at=summary.taken_at,
        reason=summary.reason,
        adapter=summary.adapter,
        labels=summary.labels,
        read_bytes=stats.read_bytes,
        zero_bytes=stats.zero_bytes,
        reused_bytes=stats.reused_bytes,
        new_bytes=stats.new_bytes,
        stored_bytes=stats.stored_bytes,
        packs=len(summary.packs),
        leaves=tuple(one.generation for one in summary.abandons),
    )


class InspectView(msgspec.Struct, frozen=True):
    """All metadata of a snapshot; `contents` is the content of CRIU's images, or None if they could not be read."""

    snapshot: SnapshotView
    size_bytes: int
    chunks: int
    architecture: str
    kernel: str
    criu: str
    timings_seconds: dict[str, float]
    streams_bytes: dict[str, int]
    contents: Any = None


def inspect_view(manifest: Manifest, contents: Any) -> InspectView:
    compatibility = manifest.metadata.compatibility
    return InspectView(
        snapshot=snapshot_view(manifest.summary),
        size_bytes=manifest.size_bytes,
        chunks=len(manifest.chunks),
        architecture=compatibility.architecture,
        kernel=".".join(str(part) for part in compatibility.kernel),
        criu=compatibility.criu,
        timings_seconds=manifest.metadata.timings,
        streams_bytes={stream.name: stream.size_bytes for stream in manifest.streams},
        contents=contents,
    )


def snapshots_table(snapshots: Iterable[SnapshotView], now: float) -> Table:
    columns = ("SNAPSHOT", "AGE", "SIZE", "ZERO", "REUSED", "STORED", "REASON")
    rows: list[tuple[str, ...]] = [
        (
            view.snapshot,
            units.format_age(view.committed_at, now),
            units.format_size(view.read_bytes),
            units.format_size(view.zero_bytes),
            units.format_size(view.reused_bytes),
            units.format_size(view.stored_bytes),
            view.reason or units.ABSENT,
        )
        for view in snapshots
    ]
    return Table(columns, rows, "no snapshots")


def inspect_text(view: InspectView, now: float) -> str:
    one = view.snapshot
    reused = units.format_size(one.reused_bytes)
    timings = ", ".join(f"{name} {units.format_duration(seconds)}" for name, seconds in view.timings_seconds.items())
    return fields_text([
        ("Snapshot", one.snapshot),
        ("Committed", f"{units.format_age(one.committed_at, now)} ago"),
        ("Reason", f"{one.reason or units.ABSENT}, by {one.adapter or units.ABSENT}"),
        ("Size", f"{units.format_size(view.size_bytes)} in {len(view.streams_bytes)} streams, {view.chunks} chunks"),
        ("Stored", f"{units.format_size(one.stored_bytes)} for {units.format_size(one.new_bytes)} that were new"),
        ("Not stored", f"{units.format_size(one.zero_bytes)} zeros, {reused} already there"),
        ("Does not continue", ", ".join(f"@{number}" for number in one.leaves) or units.ABSENT),
        ("Taken on", f"{view.architecture}, Linux {view.kernel}, CRIU {view.criu}"),
        ("Timings", timings or units.ABSENT),
    ])  # fmt: skip


def verified_line(report: VerifyReport) -> str:
    """Format the verification of a snapshot as one line."""
    rate = units.format_rate(report.bytes_verified, report.seconds)
    state = "ok" if report.ok else f"DAMAGED: {report.damaged} of {report.chunks} chunks"
    return f"{report.snapshot}  {state}  {units.format_size(report.bytes_verified)} at {rate}"
