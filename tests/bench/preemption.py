"""One preemption on a full cluster: bio has borrowed every slot, ml reclaims its half, and is timed."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from cedana_sched.model.objects.names import RELEASED
from tests.cluster.fixtures.audit import Audit, Write
from tests.cluster.fixtures.namespace import Namespace, container, job
from tests.e2e.product.following import Following
from tests.e2e.product.queues import KUEUE, QUEUE_LABEL, groups

SLOT: Final = "bench.test/slot"
"""An extended resource: nodes have as many as the groups' quotas, so that who is admitted waits for who still ends."""
GRACE_SECONDS: Final = 30
"""Kubernetes' default."""

ENDS_AT_ONCE: Final = """
import signal, time
signal.signal(signal.SIGTERM, lambda *_: exit(0))
while True:
    print(time.time(), flush=True)
    time.sleep(0.1)
"""
IGNORES_SIGTERM: Final = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    print(time.time(), flush=True)
    time.sleep(0.1)
"""
_NODE = "system:node:"
_VICTIM, _PREEMPTOR = "md", "train"


class Timeline(msgspec.Struct, frozen=True):
    """Seconds since the preemptor was created; None where a step does not occur without us."""

    evicted: float
    """Kueue has marked the victim."""
    frozen: float | None
    """All of its pods are."""
    committed: float | None
    released: float | None
    """The Job says so."""
    suspended: float
    """Kueue's suspension has gone through."""
    deleted: float
    """The last of the victim's pods has its deletion timestamp."""
    ended: float
    """As many of them as there are places needed have ended, the kubelet says."""
    admitted: float
    """Kueue lets the preemptor go."""
    bound: float
    """All of its pods have their nodes."""
    running: float
    """All of its pods are Running."""


async def preempt(
    namespace: Namespace, image: str, program: str, slots: int, *, check: str | None, audit: Audit
) -> Timeline:
    """Let bio fill the cluster's two nodes of `slots` each, and ml reclaim half of that."""
    quotas = {"bio": str(slots), "ml": str(slots)}
    async with groups(namespace, quotas, resource=SLOT, check=check):
        async with Following.of(namespace, _VICTIM) as victims:
            await namespace.apply(_work(_VICTIM, "bio", image, program, 2 * slots))
            for index in range(2 * slots):
                await asyncio.wait_for(victims.said(index, 1), 120)  # its signal handler is in place
        await namespace.apply(_work(_PREEMPTOR, "ml", image, ENDS_AT_ONCE, slots))
        await namespace.pods(f"job={_PREEMPTOR}", count=slots, within=180)
        await audit.wait_for(lambda _: _have_run(audit, namespace.name, slots))
        return timeline(audit.writes(namespace=namespace.name), slots)


def _have_run(audit: Audit, namespace: str, pods: int) -> bool:
    ran = list(_pods(audit.writes(namespace=namespace, resource="pods/status"), _PREEMPTOR, _is_running))
    return len({write.name for write in ran}) == pods


def _work(name: str, queue: str, image: str, program: str, pods: int) -> dict[str, Any]:
    slots = {SLOT: "1"}
    main = container(image, "python3", "-c", program, resources={"requests": slots, "limits": slots})
    fields = {
        "parallelism": pods,
        "completions": pods,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "suspend": True,
    }
    spec = {"terminationGracePeriodSeconds": GRACE_SECONDS}
    return job(name, main, labels={QUEUE_LABEL: queue}, fields=fields, **spec)


def timeline(writes: Iterable[Write], slots: int) -> Timeline:
    """What the audit log says of one preemption by which that many slots change hands.

    Raises:
        IndexError: a step is missing that occurs with and without us.
    """
    done = [write for write in writes if write.code < 300]
    began = next(w for w in done if (w.resource, w.name, w.code) == ("jobs", _PREEMPTOR, 201)).received

    def at(times: Iterable[dt.datetime]) -> float | None:
        last = max(times, default=None)
        return None if last is None else (last - began).total_seconds()

    def surely(what: str, times: Iterable[dt.datetime]) -> float:
        found = at(times)
        if found is None:
            raise IndexError(f"the audit log does not say when: {what}")
        return found

    def workload(name: str, condition: str) -> list[dt.datetime]:
        found = [
            write.answered
            for write in done
            if write.resource == "workloads/status" and write.name.startswith(f"job-{name}-")
            if write.answered >= began and _says(write, condition)
        ]
        return found[:1]

    checkpoints = [write for write in done if write.resource == "checkpoints/status"]
    victims = [w for w in done if w.resource == "jobs" and w.name == _VICTIM and w.answered >= began]
    suspensions = [w.answered for w in victims if w.user == KUEUE and _part(w, "spec").get("suspend")]
    deletions = [w for w in done if (w.verb, w.resource) == ("delete", "pods") and w.name.startswith(f"{_VICTIM}-")]
    by_the_job = [w.answered for w in deletions if not w.user.startswith(_NODE)]
    ends = _first_of_each(
        w for w in done if w.user.startswith(_NODE) and w.name.startswith(f"{_VICTIM}-") and _is_end(w)
    )
    bindings = [w.answered for w in done if w.resource == "pods/binding" and w.name.startswith(f"{_PREEMPTOR}-")]
    return Timeline(
        evicted=surely("evicted", workload(_VICTIM, "Evicted")),
        frozen=at(_first_of_each(w for w in checkpoints if _status(w).get("frozenAt"))),
        committed=at(_first_of_each(w for w in checkpoints if _status(w).get("committedAt"))),
        released=at(w.answered for w in victims if RELEASED in _annotations(w) and w.user != KUEUE),
        suspended=surely("suspended", suspensions[:1]),
        deleted=surely("deleted", by_the_job),
        ended=surely("ended", sorted(ends)[:slots]),
        admitted=surely("admitted", workload(_PREEMPTOR, "Admitted")),
        bound=surely("bound", bindings),
        running=surely("running", (w.answered for w in _pods(done, _PREEMPTOR, _is_running))),
    )


def _is_end(write: Write) -> bool:
    """The scheduler gives a pod's place away when it is gone, or has ended for good."""
    return write.resource == "pods" or _status(write).get("phase") in {"Succeeded", "Failed"}


def _first_of_each(writes: Iterable[Write]) -> list[dt.datetime]:
    first: dict[str, dt.datetime] = {}
    for write in writes:
        first.setdefault(write.name, write.answered)
    return list(first.values())


def _pods(writes: Iterable[Write], job: str, is_so: Any) -> Iterable[Write]:
    seen: set[str] = set()
    for write in writes:
        is_its = write.resource == "pods/status" and write.name.startswith(f"{job}-") and write.name not in seen
        if is_its and is_so(write):
            seen.add(write.name)
            yield write


def _is_running(write: Write) -> bool:
    return bool(_status(write).get("phase") == "Running")


def _says(write: Write, condition: str) -> bool:
    conditions = _status(write).get("conditions") or []
    return any(one.get("type") == condition and one.get("status") == "True" for one in conditions)


def _status(write: Write) -> dict[str, Any]:
    return _part(write, "status")


def _annotations(write: Write) -> dict[str, Any]:
    return _part(write, "metadata").get("annotations") or {}


def _part(write: Write, name: str) -> dict[str, Any]:
    """Of what was sent, unless that was a JSON patch."""
    part: dict[str, Any] = (write.body.get(name) or {}) if isinstance(write.body, dict) else {}
    return part
