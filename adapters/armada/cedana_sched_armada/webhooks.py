"""Armada's admission handlers: queues that protect their pods."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Final, Self

from cedana_sched.kube.client import Api
from cedana_sched_armada.queues import QueueOptIn
from cedana_sched_armada.settings import SECTION, QueueSettings
from cedana_sched_webhooks.configuration import Configuration
from cedana_sched_webhooks.schedulers import Endpoint, Handler, SchedulerWebhooks
from cedana_sched_webhooks.shapes import UNMARKED_POD

PODS: Final = "/armada/pods"


class ArmadaWebhooks:
    """Implements `SchedulerWebhooks`."""

    name: ClassVar[str] = "armada"

    def __init__(self, opt_in: QueueOptIn) -> None:
        self._opt_in = opt_in

    @classmethod
    def connect(cls, api: Api, configuration: Configuration) -> Self:
        """See `SchedulerWebhooks`; makes no API call: pods have a label with their queue.

        Raises:
            UsageError: the section `armada` of the adapters' settings is invalid.
        """
        del api
        settings = QueueSettings.read(configuration.adapter_settings.get(SECTION, {}))
        return cls(QueueOptIn(settings.queues, configuration.served))

    def handlers(self) -> Mapping[str, Handler]:
        """See `SchedulerWebhooks`."""
        return {PODS: Endpoint(self._opt_in.answer, UNMARKED_POD)}

    async def run(self) -> None:
        """See `SchedulerWebhooks`: there is no cache to run."""
        await asyncio.Event().wait()


if TYPE_CHECKING:

    def _fulfils(webhooks: ArmadaWebhooks) -> SchedulerWebhooks:
        return webhooks
