"""Keeps the secret segment of the extender's address in one Secret that all replicas share, for an admin to read.

The admin writes it into Volcano's configuration, which we do not change. So a replaced segment stays valid for long,
and a value is only replaced after it was removed.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import time
from collections.abc import Callable
from typing import Final

import structlog
from prometheus_client import Counter

from cedana_sched.component.caller_secret import CALLERS, caller_secret_in, encode_base64
from cedana_sched.component.callers import Callers, new_secret, secret_segment_of
from cedana_sched.component.secret_reconciler import LONGEST_WAIT, reconcile_forever
from cedana_sched.kube.builtin_kinds import Metadata, Secret
from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.errors import ConflictError
from cedana_sched.kube.resources import SECRETS
from cedana_sched.kube.watching import Informer, Watch
from cedana_sched.model.errors import NotFoundError

log = structlog.get_logger(__name__)

DERIVED_FROM: Final = "/volcano"
"""Input of the segment: `extender.urlPrefix` has one segment for both of Volcano's actions."""
SEGMENT: Final = "segment"
"""Key in the Secret's `data`."""
FORMER_SECONDS: Final = 3600.0
"""How long a replaced segment stays valid: an admin writes the new one into Volcano's configuration meanwhile."""


class AddressKeeper:
    """Reconciles the Secret. Run `run` as a task.

    Args:
        api: may watch and patch the Secret, which the chart created, empty.
        name: of the Secret.
        namespace: of the Secret.
        problems: counts failed attempts.
        now: the time of day.
        clock: monotonic seconds.
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
        """Authenticates callers by the segment."""
        self._changed = asyncio.Event()
        self._secrets = Informer(Watch(api, SECRETS, Secret, namespace=namespace, fields=f"metadata.name={name}"))

    async def run(self) -> None:
        """Reconcile forever."""
        self._secrets.subscribe(lambda _before, _now: self._changed.set())
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._secrets.run(), name="mirror of the Secret of the address")
            tasks.create_task(self._reconcile_continuously(), name="address")

    async def _reconcile_continuously(self) -> None:
        await self._secrets.synced.wait()
        await reconcile_forever("address", self._reconcile_once, self._changed, self._problems, self._now)

    async def _reconcile_once(self) -> dt.datetime:
        secret = self._secrets.get(self._name, self._namespace)
        if secret is None:
            remedy = "it is a part of the release: install the chart again"
            raise NotFoundError("Secret", f"{self._namespace}/{self._name}", "is not there", remedy=remedy)
        known = caller_secret_in(secret.data)
        if known is not None:
            self.callers.set_secret(known)
        wanted = _encode_secret_data(known or new_secret())
        if any(secret.data.get(key) != value for key, value in wanted.items()):
            await self._write(secret.metadata, wanted)
        return self._now() + LONGEST_WAIT

    async def _write(self, seen: Metadata, data: Object) -> None:
        """Write the Secret; the watch delivers the result: ours, or that of a replica that was faster."""
        patch = {"metadata": {"resourceVersion": seen.resource_version}, "data": data}
        try:
            await self._api.patch(SECRETS, self._name, self._namespace, patch)
            log.info("address written", secret=self._name)
        except ConflictError:
            log.info("address written by another replica", secret=self._name)


def _encode_secret_data(known: str) -> Object:
    return {CALLERS: encode_base64(known), SEGMENT: encode_base64(secret_segment_of(known, DERIVED_FROM))}
