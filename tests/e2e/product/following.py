"""What the pods of a Job say, from their first line to their last, also when they are gone."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from tests.cluster.api.client import Object
from tests.cluster.fixtures.namespace import Namespace

_KUBELETS_OWN = re.compile(r"rpc error: code = (Unknown desc = server is not initialized yet|\w+ desc = [^\n]*\Z)")
"""The kubelet writes it after a pod's lines, without an end of line, when it can follow them no longer."""
_GONE = (b"unable to retrieve container logs", b"failed to try resolving symlinks")
"""What a kubelet writes in place of the log of a container that it has removed begins so."""
_AGAIN = 1.0
"""Seconds after which a log that ended before its container is followed again: a kubelet without containerd ends it."""
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
TASK_INDEX = "volcano.sh/task-index"
REPLICA_INDEX = "training.kubeflow.org/replica-index"
POD_INDEX = "apps.kubernetes.io/pod-index"


class Following:
    """The output of a container of every pod of a Job, by completion index, in the order in which the pods ran."""

    def __init__(self, namespace: Namespace, job: str, container: str, label: str) -> None:
        self._namespace = namespace
        self._container = container
        self._selector = f"{label}={job}"
        self._seen: dict[str, asyncio.Task[None]] = {}
        self._containers: dict[str, str] = {}
        self._ended: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._output: defaultdict[int, list[bytearray]] = defaultdict(list)
        self._grew = asyncio.Condition()
        self.nodes: defaultdict[int, list[str]] = defaultdict(list)
        """On which node each index ran, one after the other."""
        self.pods: defaultdict[int, list[str]] = defaultdict(list)
        """As which pod."""

    @classmethod
    @asynccontextmanager
    async def of(
        cls, namespace: Namespace, job: str, container: str = "main", *, label: str = "job-name"
    ) -> AsyncIterator[Following]:
        """Follow inside the block; the label is that by which the job's pods are known."""
        following = cls(namespace, job, container, label)
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(following._watch(group))
            try:
                yield following
            finally:
                watching.cancel()
                for reader in following._seen.values():
                    reader.cancel()

    def lines(self, index: int) -> list[str]:
        """All that the pods of an index have said."""
        return "".join(map(_said, self._output[index])).splitlines()

    def by_pod(self, index: int) -> list[list[str]]:
        """The same, of each pod on its own."""
        return [_said(output).splitlines() for output in self._output[index]]

    async def said(self, index: int, count: int) -> None:
        """Wait until an index has said so many lines in all."""
        async with self._grew:
            await self._grew.wait_for(lambda: len(self.lines(index)) >= count)

    async def all_said(self, count: int) -> None:
        """Wait until each pod seen so far has said so many lines."""
        async with self._grew:
            await self._grew.wait_for(
                lambda: all(len(lines) >= count for index in self._output for lines in self.by_pod(index))
            )

    async def read(self) -> None:
        """Wait until the logs of all pods seen so far have ended."""
        await asyncio.gather(*self._seen.values())

    async def _watch(self, group: asyncio.TaskGroup) -> None:
        async for event in self._namespace.api.watch("v1", "Pod", self._namespace.name, selector=self._selector):
            if event.type == "LIST":
                there = {pod["metadata"]["uid"]: pod for pod in event.object["items"]}
                for uid in self._seen.keys() - there.keys():
                    self._ended[uid].set()
                for pod in there.values():
                    self._update(group, pod)
            elif event.type == "DELETED":
                self._ended[event.object["metadata"]["uid"]].set()
            else:
                self._update(group, event.object)

    def _update(self, group: asyncio.TaskGroup, pod: Object) -> None:
        uid = pod["metadata"]["uid"]
        status = _status_of(pod, self._container)
        if uid not in self._seen and status is not None and not status["state"].get("waiting"):
            self._begin(group, pod, status.get("containerID", ""))
        if uid in self._seen and (status is None or not _is_running(status, self._containers[uid])):
            self._ended[uid].set()

    def _begin(self, group: asyncio.TaskGroup, pod: Object, container_id: str) -> None:
        name, uid, index = pod["metadata"]["name"], pod["metadata"]["uid"], _index_of(pod)
        output = bytearray()
        self._output[index].append(output)
        self.nodes[index].append(pod["spec"]["nodeName"])
        self.pods[index].append(name)
        self._containers[uid] = container_id
        self._seen[uid] = group.create_task(self._read(name, self._ended[uid], output), name=f"log of {name}")

    async def _read(self, pod: str, ended: asyncio.Event, output: bytearray) -> None:
        await self._follow(pod, output)
        while not await _happens(ended, within=_AGAIN):
            await self._follow(pod, output)

    async def _follow(self, pod: str, output: bytearray) -> None:
        command = self._namespace.kubectl_command("logs", "--follow", pod, f"--container={self._container}")
        process = await asyncio.create_subprocess_exec(
            *map(str, command), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
        )
        assert process.stdout is not None
        whole = bytearray()
        try:
            while chunk := await process.stdout.read(65536):
                whole += chunk
                said = _said(output).encode()
                if len(whole) > len(said) and whole.startswith(said) and not whole.startswith(_GONE):
                    output[:] = whole
                    async with self._grew:
                        self._grew.notify_all()
            await process.wait()
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.kill()
                await process.communicate()  # `wait` alone waits for a pipe that is not read


async def _happens(event: asyncio.Event, within: float) -> bool:
    with suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), within)
    return event.is_set()


def _said(output: bytearray) -> str:
    return _KUBELETS_OWN.sub("", bytes(output).decode())


def _index_of(pod: Object) -> int:
    """As its controller numbers it."""
    texts = {**pod["metadata"].get("labels", {}), **pod["metadata"].get("annotations", {})}
    return int(
        next((texts[key] for key in (COMPLETION_INDEX, TASK_INDEX, REPLICA_INDEX, POD_INDEX) if key in texts), "0")
    )


def _status_of(pod: Object, container: str) -> Object | None:
    status = pod["status"]
    statuses = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    return next((one for one in statuses if one["name"] == container), None)


def _is_running(status: Object, container_id: str) -> bool:
    return "running" in status["state"] and status.get("containerID", "") == container_id
