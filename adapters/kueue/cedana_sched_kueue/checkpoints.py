"""What an admitted Workload continues from, in words for people; nothing depends on it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from cedana_sched.kube.client import Api
from cedana_sched.kube.errors import AbsentError, ApiError
from cedana_sched.kube.objects import Metadata
from cedana_sched.kube.resources import CHECKPOINTS
from cedana_sched.model.objects import names
from cedana_sched.model.records import Phase

FROM_THE_BEGINNING = "starts from the beginning"


class SnapshotOf(msgspec.Struct, frozen=True):
    id: str
    generation: int
    index: int = 0


class _Status(msgspec.Struct, frozen=True):
    phase: str = ""
    snapshot: SnapshotOf | None = None


class _Checkpoint(msgspec.Struct, frozen=True):
    metadata: Metadata
    status: _Status = _Status()


async def outlook(api: Api, namespace: str, ids: Iterable[str]) -> str:
    """`starts from the beginning`, or what it continues from; what cannot be read is said as well."""
    snapshots: list[SnapshotOf] = []
    try:
        for one in sorted(set(ids)):
            query = {"labelSelector": f"{names.ID}={one}"}
            found, _ = await api.list_all(CHECKPOINTS, namespace, query, into=_Checkpoint)
            snapshots += [
                checkpoint.status.snapshot
                for checkpoint in found
                if checkpoint.metadata.deletion_timestamp is None
                and checkpoint.status.phase == Phase.READY
                and checkpoint.status.snapshot is not None
            ]
    except AbsentError:
        return FROM_THE_BEGINNING
    except ApiError as error:
        return f"continues from its newest snapshot, if there is one (Checkpoints could not be read: {error.message})"
    return in_words(snapshots)


def in_words(snapshots: Iterable[SnapshotOf]) -> str:
    """The newest snapshot of every replica: the first one by name, the others by their number."""
    newest: dict[tuple[str, int], SnapshotOf] = {}
    for one in snapshots:
        known = newest.get((one.id, one.index))
        if known is None or known.generation < one.generation:
            newest[one.id, one.index] = one
    if not newest:
        return FROM_THE_BEGINNING
    first, *others = (newest[key] for key in sorted(newest))
    more = f" and {len(others)} more" if others else ""
    return f"continues from {first.id}/{first.index}@{first.generation}{more}"
