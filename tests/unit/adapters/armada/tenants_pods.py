"""Pods that a tenant makes himself, in his own namespace, with Armada's labels and annotations on them."""

from __future__ import annotations

import random
import string
from collections.abc import Mapping

from cedana_sched.kube.builtin_kinds import Metadata, Pod, PodSpec, PodStatus
from cedana_sched.model.objects import names
from tests.unit.adapters.armada.armada_builders import JOB_SET, QUEUE, World, rfc3339

_CHARACTERS = string.ascii_letters + string.digits
_ANY = random.Random()


def text(length: int, chosen: random.Random = _ANY) -> str:
    """Letters and digits that cannot be compressed much."""
    return "".join(chosen.choices(_CHARACTERS, k=length))


def his(
    world: World,
    name: str,
    uid: str,
    job: str,
    *,
    run: str = "a-run",
    queue: str = QUEUE,
    job_set: str = "his",
    id: str = "forged",  # noqa: A002
    annotations: Mapping[str, str] = {},
    phase: str = "Running",
    ends_in: int | None = None,
) -> Pod:
    """One that is a minute old, and says that it is a protected one of this job; None: it is not deleted."""
    metadata = Metadata(
        name=name,
        namespace="tenant-b",
        uid=uid,
        resource_version="1" if ends_in is None else "2",
        labels={"armada_job_id": job, "armada_job_run_id": run, "armada_queue_id": queue, names.PROTECTED: "true"},
        annotations={"armada_jobset_id": job_set, names.ID: id, **annotations},
        creation_timestamp=rfc3339(world.now - 60),
        deletion_timestamp=rfc3339(world.now + ends_in) if ends_in is not None else None,
        deletion_grace_period_seconds=ends_in,
    )
    return Pod(metadata, PodSpec(node_name="node-2"), PodStatus(phase=phase, start_time=rfc3339(world.now)))


def forged(
    world: World, job: str, *, run: str = "a-run", annotations: Mapping[str, str] = {}, deleted: bool = False
) -> Pod:
    """One that names somebody else's job."""
    ends_in = 60 if deleted else None
    name, uid = f"armada-{job}-0", f"forged-{job}"
    return his(world, name, uid, job, run=run, job_set=JOB_SET, annotations=annotations, ends_in=ends_in)
