"""The informers of the kinds whose objects Kueue suspends; a kind that the cluster does not serve is waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from cedana_sched.kube.client import Api
from cedana_sched.kube.errors import AbsentError
from cedana_sched.kube.resources import Resource
from cedana_sched.kube.response_decoding import UnreadableSink
from cedana_sched.kube.watching import Informer, Watch
from cedana_sched.model.served_namespaces import ServedNamespaces
from cedana_sched.retrying import WATCHES, Backoff
from cedana_sched_kueue.managed_kinds import ManagedKinds
from cedana_sched_kueue.managed_objects import ManagedObject

log = structlog.get_logger(__name__)


class KindInformers:
    """One informer for each kind; `settled` once each has listed its objects, or its kind is not served.

    Args:
        api: with the permissions of `rbac.yaml` on each kind.
        kinds: Job, and those that the admin names.
        unreadable: called for objects that cannot be read.
        served: namespaces whose objects count.
    """

    def __init__(self, api: Api, kinds: ManagedKinds, unreadable: UnreadableSink, served: ServedNamespaces) -> None:
        self.by_resource: Final[Mapping[Resource, Informer[ManagedObject]]] = {
            resource: Informer(Watch(api, resource, ManagedObject, within=served), unreadable)
            for resource in kinds.resources
        }
        self._absent: dict[Resource, asyncio.Event] = {resource: asyncio.Event() for resource in kinds.resources}

    @property
    def present(self) -> tuple[Informer[ManagedObject], ...]:
        """The informers of all kinds but those that are known to be absent."""
        return tuple(
            informer
            for resource, informer in self.by_resource.items()
            if informer.synced.is_set() or not self._absent[resource].is_set()
        )

    def subscribe(self, sink: Callable[[ManagedObject | None, ManagedObject | None], None]) -> None:
        """Call the sink on every change of an object of any kind."""
        for informer in self.by_resource.values():
            informer.subscribe(sink)

    async def run(self) -> None:
        """Run all informers, forever."""
        async with asyncio.TaskGroup() as group:
            for resource, informer in self.by_resource.items():
                group.create_task(self._follow(resource, informer), name=f"objects of kind {resource.kind}")

    async def wait_settled(self) -> None:
        """Wait until each kind's objects are listed, or the kind is known to be absent."""
        async with asyncio.TaskGroup() as group:
            for resource, informer in self.by_resource.items():
                group.create_task(self._wait_settled(resource, informer), name=f"first list of {resource.plural}")

    async def _wait_settled(self, resource: Resource, informer: Informer[ManagedObject]) -> None:
        waits = [asyncio.create_task(one.wait()) for one in (informer.synced, self._absent[resource])]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waits:
                one.cancel()

    async def _follow(self, resource: Resource, informer: Informer[ManagedObject]) -> None:
        """Follow one kind; an admin may install it at any time."""
        backoff = Backoff(WATCHES)
        while True:
            try:
                await informer.run()
            except AbsentError as error:
                if not self._absent[resource].is_set():
                    log.info("kind is not served, and waited for", kind=resource.kind, error=error.message)
                self._absent[resource].set()
            await asyncio.sleep(backoff.next_pause())
