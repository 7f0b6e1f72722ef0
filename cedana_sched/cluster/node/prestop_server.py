"""Answers the kubelet's preStop calls: a pod that is being deleted is held until its snapshot is committed.

The call is `GET /v1/hold/TOKEN/CONTAINER`. The webhook issues a token per pod, whatever the pod's author wrote, so that
no process on the node without the token can call for another pod. The kubelet waits for the answer until the pod's
grace period expires, and ends the pod's containers after the answer. The kubelet calls the node's `prestop-proxy` pod
(`cluster/prestop_proxy`), which forwards the call to the agent, and to the agent's successor if the agent exits before
it answers.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import structlog
from aiohttp import web

from cedana_sched.kube.builtin_kinds import Pod
from cedana_sched.model.errors import CedanaSchedError

log = structlog.get_logger(__name__)

LONGEST_SECONDS = 3600.0
"""Maximum duration of a call; applies also while a policy's deadline, which may be a day, has not passed."""


class PreStopServer:
    """The preStop server of one node.

    Args:
        find: returns the pod with a token and a container of this name; None if no pod of this node has both. The name
            is empty if the call has none.
        on_container_ending: called when the kubelet ends a container; returns after a pending kill of its pod.
        wait_released: returns when a pod is not held (any more), or its containers are dead.
        longest_seconds: maximum duration of a call, even if the pod is still held.
        on_answered: called with the pod and the name of each container that the kubelet proceeds to end.
    """

    def __init__(
        self,
        find: Callable[[str, str], Pod | None],
        on_container_ending: Callable[[str], Awaitable[None]],
        wait_released: Callable[[str], Awaitable[None]],
        longest_seconds: float = LONGEST_SECONDS,
        on_answered: Callable[[Pod, str], None] = lambda *_: None,
    ) -> None:
        self._find = find
        self._on_container_ending = on_container_ending
        self._on_answered = on_answered
        self._wait_released = wait_released
        self._longest_seconds = longest_seconds

    @asynccontextmanager
    async def serve(self, socket: Path) -> AsyncIterator[None]:
        """Serve as long as the block lasts; replaces the socket of a previous agent.

        Raises:
            OSError: the socket cannot be created.
        """
        application = web.Application()
        application.router.add_get("/v1/hold/{token}", self._hold)  # pods that an older version has prepared
        application.router.add_get("/v1/hold/{token}/{container}", self._hold)
        runner = web.AppRunner(application, access_log=None, handler_cancellation=True, shutdown_timeout=1.0)
        await runner.setup()
        try:
            socket.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            await web.UnixSite(runner, str(socket)).start()
            yield
        finally:
            await runner.cleanup()

    async def _hold(self, request: web.Request) -> web.Response:
        container = request.match_info.get("container", "")
        pod = self._find(request.match_info["token"], container)
        if pod is None:
            return web.Response(status=404, text="no pod of this node has this token and this container\n")
        uid, name = pod.metadata.uid, f"{pod.metadata.namespace}/{pod.metadata.name}"
        log.info("kubelet ends a container", pod=name, container=container)
        try:
            return await self._answer_when_released(uid, name)
        finally:
            if container:
                self._on_answered(pod, container)

    async def _answer_when_released(self, uid: str, name: str) -> web.Response:
        try:
            async with asyncio.timeout(self._longest_seconds):
                await self._on_container_ending(uid)
                await self._wait_released(uid)
        except TimeoutError:
            log.warning("pod held too long: released", pod=name, seconds=self._longest_seconds)
            return web.Response(text="released: held too long\n")
        except CedanaSchedError as error:  # the kubelet then ends the pod
            log.warning("pod cannot be ended by us", pod=name, error=str(error))
            return web.Response(status=500, text=f"{error}\n")
        return web.Response(text="released\n")


def same_token(known: str, given: str) -> bool:
    """Compare two tokens in constant time."""
    return hmac.compare_digest(known.encode(), given.encode())
