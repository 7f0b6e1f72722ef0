"""Our extender of Volcano's scheduler in tests: installed as the release's notes say, and not always there."""

from __future__ import annotations

import asyncio
import base64
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from tests.cluster.addons import catalog
from tests.cluster.addons.charts import helm_environment
from tests.cluster.addons.deployments import wait_available
from tests.cluster.addons.volcano import NAMESPACE as VOLCANO
from tests.cluster.addons.volcano import Volcano
from tests.cluster.api.waiting import wait_for_all
from tests.cluster.commands import run
from tests.cluster.fixtures.namespace import Namespace
from tests.cluster.patience import patient
from tests.cluster.steps import Steps
from tests.e2e.product import parts
from tests.e2e.product.installation import Product
from tests.e2e.product.rendering import NAMESPACE, RELEASE

EXTENDER: Final = f"{RELEASE}-volcano-extender"
ACCOUNT: Final = f"system:serviceaccount:{NAMESPACE}:{EXTENDER}"
SELECTOR: Final = "app.kubernetes.io/component=volcano-extender"
SEGMENT: Final = "SEGMENT"
"""What an admin replaces in the notes by what the Secret says."""
ASKED_IN_VAIN: Final = b"Reclaimable failed with error"
SEVERAL: Final = 6
"""Calls of the scheduler, of which it makes one or more in each of its cycles."""


async def with_extender(product: Product, steps: Steps) -> None:
    """Install the product with it, and Volcano with the configuration that the release's notes ask for.

    None of its replicas has died before: the kubelet lets each next start of one that has wait longer.
    """
    pods = {key: product.values["webhooks"][key] for key in ("podAnnotations", "resources")}
    await product.ensure(volcano={"enabled": True, "extender": {"enabled": True, "victimSteering": True, **pods}})
    await parts.renew_all(product.api, NAMESPACE, SELECTOR)
    await wait_available(product.cluster, product.api, NAMESPACE, [EXTENDER])
    await catalog.install(product.cluster, [Volcano(await _noted(product))], steps)


async def secret_segment(product: Product) -> str:
    """What stands in the extender's address, and in its Secret as soon as it runs."""
    secret = await product.api.get("v1", "Secret", EXTENDER, NAMESPACE)
    return base64.b64decode(secret["data"]["segment"]).decode()


async def _noted(product: Product) -> str:
    """Volcano's configuration, as it stands in the release's notes, with the secret part of the address."""
    notes = await run(
        product.binaries.program("helm"), "get", "notes", RELEASE, f"--namespace={NAMESPACE}",
        env=helm_environment(product.cluster),
        what="helm get notes failed",
        remedy="see whether the release is there",
    )  # fmt: skip
    begins = notes.index("     actions:")
    configuration = textwrap.dedent(notes[begins : notes.index("\n\n", begins)])
    assert configuration.count(SEGMENT) == 1
    return configuration.replace(SEGMENT, await secret_segment(product))


@asynccontextmanager
async def silent_extender(product: Product) -> AsyncIterator[None]:
    """No replica of it, inside the block."""
    await _scale(product, 0)
    await wait_for_all(product.api, "v1", "Pod", lambda pods: not pods, namespace=NAMESPACE, selector=SELECTOR)
    try:
        yield
    finally:
        await _scale(product, 2)
        await wait_available(product.cluster, product.api, NAMESPACE, [EXTENDER])


async def _scale(product: Product, replicas: int) -> None:
    await product.api.patch("apps/v1", "Deployment", EXTENDER, {"spec": {"replicas": replicas}}, NAMESPACE)


@asynccontextmanager
async def stopped_extender(product: Product) -> AsyncIterator[None]:
    """It takes calls and answers none of them inside the block; all of them, too late, at its end."""
    await parts.signal_all(product.cluster, product.api, NAMESPACE, SELECTOR, "SIGSTOP")
    try:
        yield
    finally:
        await parts.signal_all(product.cluster, product.api, NAMESPACE, SELECTOR, "SIGCONT")


async def asked_in_vain(namespace: Namespace) -> None:
    """Wait until Volcano's scheduler has said several times more that it got no answer."""
    await asyncio.wait_for(_said_by_the_scheduler(namespace, ASKED_IN_VAIN, SEVERAL), patient(120))


async def _said_by_the_scheduler(namespace: Namespace, part: bytes, times: int) -> None:
    command = namespace.kubectl_command(
        "logs", f"--namespace={VOLCANO}", "--follow", "--tail=0", "deployment/volcano-scheduler"
    )
    process = await asyncio.create_subprocess_exec(*map(str, command), stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        while times and (line := await process.stdout.readline()):
            times -= part in line
    finally:
        process.terminate()
        await process.wait()
    assert not times, "its log has ended"
