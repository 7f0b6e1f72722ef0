"""Kinds that the cluster does not serve delay nothing, and are followed as soon as they are there."""

from __future__ import annotations

import asyncio
from typing import Any

from cedana_sched.kube.errors import AbsentError
from cedana_sched.kube.resources import JOBS, Resource
from cedana_sched.model.served_namespaces import EVERYWHERE
from cedana_sched.testing.api import FakeApi
from cedana_sched_kueue.kind_informers import KindInformers
from cedana_sched_kueue.managed_kinds import ManagedKind, ManagedKinds

_CREW = ManagedKind(api_version="x.example/v1", kind="Crew", resource="crews")


class PoorApi(FakeApi):
    """An API server that lacks kinds."""

    def __init__(self, *absent: Resource) -> None:
        super().__init__()
        self.absent = set(absent)

    async def list_each(self, resource: Resource, *arguments: Any, **named: Any) -> str:
        if resource in self.absent:
            raise AbsentError(f"there is no {resource.kind}", status=404, reason="NotFound")
        return await super().list_each(resource, *arguments, **named)


async def test_an_absent_kind_is_waited_for_and_then_followed() -> None:
    crews = _CREW.to_resource()
    api = PoorApi(crews)
    informers = KindInformers(api, ManagedKinds((_CREW,)), lambda *_: None, EVERYWHERE)
    assert [*informers.present] == [*informers.by_resource.values()], "nothing is known to be absent yet"
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        running = group.create_task(informers.run())
        await informers.wait_settled()
        assert [*informers.present] == [informers.by_resource[JOBS]]
        api.put(crews, {"metadata": {"name": "crew", "namespace": "bio"}, "spec": {"suspend": True}})
        api.absent.clear()
        await informers.by_resource[crews].synced.wait()
        assert [*informers.present] == [*informers.by_resource.values()]
        assert [one.suspended for one in informers.by_resource[crews]] == [True]
        running.cancel()
