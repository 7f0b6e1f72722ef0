"""Keeps the secret segment of the extender's address: in one Secret that all replicas share, where an admin reads it.

The admin writes it into Volcano's configuration, which we do not touch. So one that is replaced counts for long, and
nothing is replaced that somebody else has not taken away.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import time
from collections.abc import Callable
from typing import Final

import structlog
from prometheus_client import Counter

from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.errors import ConflictError
from cedana_sched.kube.objects import Metadata
from cedana_sched.kube.resources import SECRETS
from cedana_sched.kube.watching import Informer, Watch
from cedana_sched.model.errors import NotFoundError
from cedana_sched.service.callers import Callers, new_secret, segment_of
from cedana_sched_webhooks.caller_secret import CALLERS, caller_secret_in, encoded
from cedana_sched_webhooks.certificate_secret import Secret
from cedana_sched_webhooks.secret_turns import LONGEST_WAIT, look_in_turn

log = structlog.get_logger(__name__)

DERIVED_FROM: Final = "/volcano"
"""What the segment is derived from: `extender.urlPrefix` has one for both of Volcano's actions."""
SEGMENT: Final = "segment"
"""Where it stands in the Secret's `data`."""
FORMER_SECONDS: Final = 3600.0
"""For so long one that was replaced counts: a person writes the new one into Volcano's configuration meanwhile."""


class AddressKeeper:
    """Run `run` as a task.

    Args:
        api: may watch and patch the Secret, which the chart has made, empty.
        name: of the Secret.
        namespace: of the Secret.
        problems: counts attempts that failed.
        now: the time of day.
        clock: seconds of a clock that never goes back.
    """

    def __init__(
        self,
        api: Api,
        name: str,
        namespace: str,
        problems: Counter,
        now: Callable[[], dt.datetime],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._api = api
        self._name = name
        self._namespace = namespace
        self._problems = problems
        self._now = now
        self.callers = Callers(clock, former_seconds=FORMER_SECONDS)
        """Whom the segment makes known."""
        self._changed = asyncio.Event()
        self._secrets = Informer(Watch(api, SECRETS, Secret, namespace=namespace, fields=f"metadata.name={name}"))

    async def run(self) -> None:
        """Keep it, for ever."""
        self._secrets.subscribe(lambda _before, _now: self._changed.set())
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._secrets.run(), name="mirror of the Secret of the address")
            tasks.create_task(self._keep(), name="address")

    async def _keep(self) -> None:
        await self._secrets.synced.wait()
        await look_in_turn("address", self._look, self._changed, self._problems, self._now)

    async def _look(self) -> dt.datetime:
        secret = self._secrets.get(self._name, self._namespace)
        if secret is None:
            remedy = "it is a part of the release: install the chart again"
            raise NotFoundError("Secret", f"{self._namespace}/{self._name}", "is not there", remedy=remedy)
        known = caller_secret_in(secret)
        if known is not None:
            self.callers.learn(known)
        wanted = _data_of(known or new_secret())
        if any(secret.data.get(key) != value for key, value in wanted.items()):
            await self._write(secret.metadata, wanted)
        return self._now() + LONGEST_WAIT

    async def _write(self, seen: Metadata, data: Object) -> None:
        """The watch brings back what was written: by us, or by another replica that was faster."""
        patch = {"metadata": {"resourceVersion": seen.resource_version}, "data": data}
        try:
            await self._api.patch(SECRETS, self._name, self._namespace, patch)
            log.info("address written", secret=self._name)
        except ConflictError:
            log.info("address written by another replica", secret=self._name)


def _data_of(known: str) -> Object:
    return {CALLERS: encoded(known), SEGMENT: encoded(segment_of(known, DERIVED_FROM))}
