"""A cluster in which no webhook of ours answers for a while."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.cluster.api.client import Api
from tests.cluster.api.waiting import wait_for_all
from tests.e2e.product import parts
from tests.e2e.product.installation import WEBHOOKS
from tests.e2e.product.rendering import NAMESPACE

_OF_WEBHOOKS = "app.kubernetes.io/component=webhooks"


@asynccontextmanager
async def no_webhooks(api: Api) -> AsyncIterator[None]:
    """None answers inside the block; at its end every part is ready again."""

    async def scaled(replicas: int) -> None:
        await api.patch("apps/v1", "Deployment", WEBHOOKS, {"spec": {"replicas": replicas}}, NAMESPACE)

    await scaled(0)
    try:
        await wait_for_all(api, "v1", "Pod", lambda pods: not pods, namespace=NAMESPACE, selector=_OF_WEBHOOKS)
        yield
    finally:
        await scaled(2)
        await parts.whole(api)
