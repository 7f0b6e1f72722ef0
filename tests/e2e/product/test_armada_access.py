"""The adapter at an Armada that is encrypted and wants to know who asks: what works, and what it says where not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import pytest_asyncio
import tenacity

from cedana_sched_armada.armada_client import ArmadaClient
from cedana_sched_armada.errors import (
    ArmadaDeniedError,
    ArmadaError,
    ArmadaRefusedError,
    ArmadaUnavailableError,
    ArmadaUntrustedError,
)
from cedana_sched_armada.events import JobSet
from cedana_sched_armada.job_of_pod import FIRST
from cedana_sched_armada.settings import ArmadaSettings
from tests.cluster.api.client import Api
from tests.cluster.armada.armada import Armada
from tests.cluster.armada.jobs import Jobs
from tests.cluster.cluster import Cluster
from tests.cluster.fixtures.namespace import Namespace
from tests.cluster.patience import patient
from tests.e2e.product.armada_access import Access
from tests.e2e.product.armada_jobs import Group, product_beside, told
from tests.e2e.product.counting import begun, counting
from tests.e2e.product.following import Following
from tests.e2e.product.installation import Product
from tests.e2e.product.rendering import NAMESPACE
from tests.servers.tls_gate import tls_gate

pytestmark = pytest.mark.any_shape


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def access(armada: Armada, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Access]:
    """Such an Armada."""
    async with Access.to(armada, tmp_path_factory.mktemp("armada")) as access:
        yield access


async def _ask(address: str, *, tls: Mapping[str, Any] | None, auth: Mapping[str, Any]) -> None:
    async with ArmadaClient.open(ArmadaSettings.read({"url": address, "tls": tls, "auth": auth})) as server:
        assert await server.job_details(["01nobody"]) == {}


_RIGHT = {"basic": "password", "token": "token", "oidc": "client-secret"}


@pytest.mark.parametrize(("method", "proof"), _RIGHT.items(), ids=_RIGHT)
async def test_adapter_proves_who_it_is(method: str, proof: str, access: Access) -> None:
    await _ask(access.address, tls=access.tls, auth=access.auth(method, proof))


_WRONG = {
    "nobody": ("none", "", r"UNAUTHENTICATED .*could not be authenticated.*see armada\.auth"),
    "wrong password": ("basic", "wrong", r"UNAUTHENTICATED .*cedana-sched.*see armada\.auth"),
    "no token": ("token", "wrong", r"UNAUTHENTICATED .*malformed.*see armada\.auth"),
    "expired token": ("token", "expired", r"UNAUTHENTICATED .*expired.*see armada\.auth"),
    "forged token": ("token", "forged", r"UNAUTHENTICATED .*signature.*see armada\.auth"),
    "wrong client secret": ("oidc", "wrong", r"answers 401: .*invalid_client.*see armada\.auth\.oidc"),
}


@pytest.mark.parametrize(("method", "proof", "said"), _WRONG.values(), ids=_WRONG)
async def test_who_is_not_known_is_told_why(method: str, proof: str, said: str, access: Access) -> None:
    with pytest.raises(ArmadaDeniedError, match=f"(?s){said}"):
        await _ask(access.address, tls=access.tls, auth=access.auth(method, proof))


async def test_who_may_not_watch_is_told_what_is_missing(access: Access, armada: Armada) -> None:
    async with Jobs.opened(armada.address, "nowhere") as jobs:
        queue = await jobs.queue("access")
    settings = ArmadaSettings.read(
        {"url": access.address, "tls": access.tls, "auth": access.auth("guest", "guest-password")}
    )
    async with ArmadaClient.open(settings) as server:
        with pytest.raises(ArmadaDeniedError, match=r"PERMISSION_DENIED .*guest.*verb watch on queue access"):
            await _watch(server, JobSet(queue, "md"))


@tenacity.retry(  # the server looks once a second which queues there are
    retry=tenacity.retry_if_exception_type(ArmadaRefusedError),
    wait=tenacity.wait_fixed(0.2),
    stop=tenacity.stop_after_delay(15),
    reraise=True,
)
async def _watch(server: ArmadaClient, job_set: JobSet) -> None:
    async for _ in server.events(job_set, "", watch=False):
        pass


_DISTRUST: dict[str, tuple[Mapping[str, str] | None, type[ArmadaError], str]] = {
    "signed by another": ({"ca": "another.crt"}, ArmadaUntrustedError, "name in armada.tls.ca who signed"),
    "made for another": ({"serverName": "elsewhere"}, ArmadaUntrustedError, "name in armada.tls.serverName"),
    "not expected": (None, ArmadaUnavailableError, "whether Armada requires TLS there"),
}


@pytest.mark.parametrize(("changes", "error", "said"), _DISTRUST.values(), ids=_DISTRUST)
async def test_certificate_that_is_not_trusted_is_said(
    changes: Mapping[str, str] | None, error: type[ArmadaError], said: str, access: Access
) -> None:
    told = None
    if changes is not None:
        told = {**access.tls, **changes}
        told["ca"] = str(access.folder / told["ca"])
    with pytest.raises(error, match=said):
        await _ask(access.address, tls=told, auth=access.auth("basic", "password"))


async def test_armada_that_is_not_encrypted_is_said(access: Access, armada: Armada) -> None:
    with pytest.raises(ArmadaUntrustedError, match=r"leave armada\.tls out"):
        await _ask(armada.address, tls=access.tls, auth={})


async def test_adapter_shows_its_certificate_to_who_asks_for_one(access: Access, armada: Armada) -> None:
    """Armada 0.22 itself never asks; what stands in front of it may."""
    own, key, authority = (access.folder / name for name in ("armada.crt", "armada.key", "authority.crt"))
    ours = {"certificate": str(access.folder / "client.crt"), "key": str(access.folder / "client.key")}
    async with tls_gate(armada.address, own, key, authority) as address:
        await _ask(address, tls={**access.tls, **ours}, auth={})
        with pytest.raises(ArmadaUnavailableError, match="or a client's certificate"):
            await _ask(address, tls=access.tls, auth={})


@pytest.mark.exhaustive  # the adapter itself proves who it is each time
@pytest.mark.parametrize("method", ["basic", "token", "oidc"])
async def test_jobs_are_saved_as_soon_as_armada_knows_us(
    method: str, access: Access, namespace: Namespace, toolbox: str, release: Product, armada: Armada,
    cluster: Cluster, api: Api,
) -> None:  # fmt: skip
    proof = _RIGHT[method]
    for body in (*access.secrets("wrong"), *access.secrets(proof)):
        await api.apply(body)
    async with (
        access.provider_for_pods(),
        Group.of(armada, namespace, "bio") as bio,
        Following.of(namespace, "md") as output,
    ):
        await release.ensure(armada=product_beside(armada, cluster, **access.values(method, "wrong")))
        job = await bio.submit("md", toolbox, *counting(counts=None))
        assert "see armada.auth" in await told(namespace, job, "ArmadaDenied")

        await release.ensure(armada=product_beside(armada, cluster, **access.values(method, proof)))
        await begun(output, 0)
        await bio.preempt(job)
        successor = await bio.successor(job)
        assert successor.annotations[FIRST] == job
        await asyncio.wait_for(output.said(0, len(output.lines(0)) + 5), patient(120))
        lines = output.lines(0)[:-1]
        assert lines == [str(number) for number in range(len(lines))]
    await release.ensure(armada=product_beside(armada, cluster))
    for body in (*access.secrets("wrong"), *access.secrets(proof)):
        await api.delete("v1", "Secret", body["metadata"]["name"], NAMESPACE)
