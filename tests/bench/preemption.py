"""One preemption on a full cluster, whoever schedules: bio has every place, ml gets half of them, and is timed."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AsyncExitStack
from typing import Any, Final, TypeAlias

import msgspec

from cedana_sched.model.identity import CHECKPOINT_VARIABLE
from tests.cluster.api.client import Object
from tests.cluster.fixtures.audit import Audit, Write
from tests.cluster.fixtures.namespace import Namespace, container, pod
from tests.e2e.product.following import Following

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
STEPS: Final[Mapping[str, str]] = {
    "made": "… its pods are made",
    "chosen": "… the scheduler has named its victims",
    "frozen": "… they are frozen",
    "committed": "… their snapshots are committed",
    "released": "… they are released",
    "deleted": "… they are deleted",
    "ended": "… they are gone",
    "bound": "… ml's pods have their nodes",
    "running": "**ml's pods are Running**",
}
Timeline: TypeAlias = dict[str, float]
"""Seconds since the submission, by step; those that do not occur are missing."""
_NODE = "system:node:"


class Stage(msgspec.Struct, frozen=True):
    """Where one case is played.

    Args:
        namespace: an empty one.
        audit: hears of all that is written from before on.
        image: has Python.
        program: of the victims, in Python.
        places: as many pods as ml needs; bio runs twice as many, and the cluster has room for no other.
        millicpus: what a pod asks for.
        protected: whether bio asks for protection.
    """

    namespace: Namespace
    audit: Audit
    image: str
    program: str
    places: int
    millicpus: int
    protected: bool

    def victim(self, *, known_as: str | None = None) -> Object:
        """The spec of a pod of bio's; under an id where it asks for protection by itself."""
        return self._pod(self.program, known_as if self.protected else None)

    def preemptor(self) -> Object:
        """The spec of a pod of ml's, which runs until the case is over."""
        return self._pod(ENDS_AT_ONCE, None)

    def _pod(self, program: str, known_as: str | None) -> Object:
        amounts = {"cpu": f"{self.millicpus}m"}
        env = [] if known_as is None else [{"name": CHECKPOINT_VARIABLE, "value": known_as}]
        resources = {"requests": amounts, "limits": amounts}
        main = container(self.image, "python3", "-c", program, resources=resources, env=env)
        spec: Object = pod("any", main, terminationGracePeriodSeconds=GRACE_SECONDS)["spec"]
        return spec

    async def begun(self, pods_of: Mapping[str, int]) -> None:
        """Wait until each pod of these jobs, by the label `job-name`, has its signal handler in place."""
        async with AsyncExitStack() as stack:
            for job, pods in pods_of.items():
                following = await stack.enter_async_context(Following.of(self.namespace, job))
                for index in range(pods):
                    await asyncio.wait_for(following.said(index, 1), 120)

    async def run(self, *preemptors: str) -> None:
        """Wait until all of ml's pods have been Running; their names begin so."""
        name = self.namespace.name

        def have_run(_: list[Write]) -> bool:
            status = self.audit.writes(namespace=name, resource="pods/status")
            return len({one.name for one in _of(status, preemptors) if _is_running(one)}) == self.places

        await self.audit.wait_for(have_run, within=240)

    def writes(self, resource: str, names: tuple[str, ...]) -> Iterator[Write]:
        """What was sent about objects of a kind whose names begin so, refused or not."""
        return _of(self.audit.writes(namespace=self.namespace.name, resource=resource), names)


class Preemption(msgspec.Struct, frozen=True):
    """What a scheduler has done on a stage.

    Args:
        began: when ml was about to submit.
        chosen: when the scheduler named each victim.
        victims: what the names of bio's pods begin with, or of those that were preempted.
        preemptors: what the names of ml's pods begin with.
    """

    began: dt.datetime
    chosen: tuple[dt.datetime, ...]
    victims: tuple[str, ...]
    preemptors: tuple[str, ...]


def now() -> dt.datetime:
    """By the clock of the audit log."""
    return dt.datetime.now(dt.UTC)


def timeline(stage: Stage, preemption: Preemption) -> Timeline:
    """What the audit log says of it."""
    done = [write for write in stage.audit.writes(namespace=stage.namespace.name) if write.code < 300]
    status = [write for write in done if write.resource == "pods/status"]
    running = first_of_each(write for write in _of(status, preemption.preemptors) if _is_running(write))
    done = [write for write in done if preemption.began <= write.answered <= max(running)]  # then it is cleared away
    checkpoints = [write for write in done if write.resource == "checkpoints/status"]
    holds = [write for write in done if write.resource == "preemptionholds/status"]
    pods = [write for write in done if write.resource == "pods"]
    by_nodes = [write for write in done if write.user.startswith(_NODE)]
    deleted = [write for write in pods if write.verb == "delete" and not write.user.startswith(_NODE)]
    ended = sorted(first_of_each(write for write in _of(by_nodes, preemption.victims) if _is_end(write)))
    moments = {
        "made": [write.answered for write in pods if write.verb == "create" and _is_of(write, preemption.preemptors)],
        "chosen": preemption.chosen,
        "frozen": first_of_each(write for write in checkpoints if _status(write).get("freezeTime")),
        "committed": first_of_each(write for write in checkpoints if _status(write).get("commitTime")),
        "released": first_of_each(write for write in holds if _status(write).get("releaseTime")),
        "deleted": first_of_each(_of(deleted, preemption.victims)),
        "ended": ended[: stage.places],
        "bound": [one.answered for one in _of(done, preemption.preemptors) if one.resource == "pods/binding"],
        "running": running,
    }
    return {step: (max(times) - preemption.began).total_seconds() for step, times in moments.items() if times}


def first_of_each(writes: Iterable[Write]) -> list[dt.datetime]:
    """When each object was first written, of these writes."""
    first: dict[str, dt.datetime] = {}
    for write in writes:
        first.setdefault(write.name, write.answered)
    return list(first.values())


def says(write: Write, condition: str) -> bool:
    """Whether what was sent has a condition that is True."""
    conditions = _status(write).get("conditions") or []
    return any(one.get("type") == condition and one.get("status") == "True" for one in conditions)


def _of(writes: Iterable[Write], names: tuple[str, ...]) -> Iterator[Write]:
    return (write for write in writes if write.name.startswith(names))


def _is_of(write: Write, names: tuple[str, ...]) -> bool:
    """Also where the API server has chosen the end of the name."""
    metadata = _part(write, "metadata")
    return str(metadata.get("name") or metadata.get("generateName") or write.name).startswith(names)


def _is_end(write: Write) -> bool:
    """The scheduler gives a pod's place away when it is gone, or has ended for good."""
    return write.resource == "pods" or _status(write).get("phase") in {"Succeeded", "Failed"}


def _is_running(write: Write) -> bool:
    return bool(_status(write).get("phase") == "Running")


def _status(write: Write) -> dict[str, Any]:
    return _part(write, "status")


def _part(write: Write, name: str) -> dict[str, Any]:
    """Of what was sent, unless that was a JSON patch."""
    part: dict[str, Any] = (write.body.get(name) or {}) if isinstance(write.body, dict) else {}
    return part
