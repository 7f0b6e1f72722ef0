"""Our chart, installed with our images as a person would."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cedana_sched.model.objects.names import GROUP
from tests.cluster.addons.charts import TOOL, Release, overlaid
from tests.cluster.addons.deployments import wait_available
from tests.cluster.api.client import Api, Object
from tests.cluster.api.waiting import has_condition, wait_for
from tests.cluster.binaries.build import Binaries, ensure
from tests.cluster.cache import digest
from tests.cluster.cluster import Cluster
from tests.cluster.commands import run
from tests.cluster.errors import ClusterError
from tests.cluster.images.buildah import ensure_image
from tests.cluster.images.catalog import find_images
from tests.cluster.steps import Steps
from tests.cluster.together import together
from tests.e2e.product.rendering import CHART, NAMESPACE, RELEASE, of_kind, render
from tests.e2e.product.s3_server import S3Server

KEYS = "s3-keys"
HELM = "helm"
"""As which Helm applies; it refuses to change what is somebody else's."""
COORDINATOR, WEBHOOKS, AGENT, HOLDS = (
    f"{RELEASE}-{component}" for component in ("coordinator", "webhooks", "agent", "prestop-proxy")
)


@dataclass
class Product:
    """The release on one cluster; `values` are those that it is installed with, but for changes."""

    cluster: Cluster
    api: Api
    binaries: Binaries
    values: Mapping[str, Any]
    namespace: str = NAMESPACE
    _changes: Mapping[str, Any] | None = None
    """Those that it is installed with now; None where it is not, or somebody else has changed it."""

    async def ensure_any(self) -> None:
        """Have it installed, with whatever changes it has now.

        Raises:
            ClusterError: see `install`.
        """
        if self._changes is None:
            await self.install()

    async def forget(self) -> None:
        """Somebody else changes it: whoever ensures it next installs it."""
        self._changes = None
        await self._release({}).forget(self.api)

    async def ensure(self, **changes: Any) -> None:
        """Have it installed with these changes to its values, whatever a test before has left.

        Raises:
            ClusterError: see `install`.
        """
        if self._changes != changes:
            await self.install(**changes)

    async def install(self, **changes: Any) -> None:
        """Install it, or upgrade it to other values; returns when every component is ready.

        Raises:
            ClusterError: Helm refused, or a component does not come up.
        """
        self._changes = None
        await self._release(changes).install(self.cluster, self.api, self.binaries)
        await together(
            wait_available(self.cluster, self.api, self.namespace, [COORDINATOR, WEBHOOKS], within=180),
            *(
                wait_for(self.api, "apps/v1", "DaemonSet", name, is_on_every_node, namespace=self.namespace, within=180)
                for name in (AGENT, HOLDS)
            ),
        )
        self._changes = changes

    async def uninstall(self) -> None:
        """Uninstall it, with its hook.

        Raises:
            ClusterError: Helm refused, or the hook failed.
        """
        self._changes = None
        try:
            await self._release({}).uninstall(self.cluster, self.api, self.binaries)
        except ClusterError as error:
            error.add_note(await self._said_by_hook())
            raise

    async def ensure_gone(self) -> None:
        """Uninstall it, if it is there.

        Raises:
            ClusterError: see `uninstall`.
        """
        if await self.api.objects("v1", "Secret", self.namespace, selector=f"owner=helm,name={RELEASE}"):
            await self.uninstall()

    async def _said_by_hook(self) -> str:
        selector = "--selector=app.kubernetes.io/component=uninstall"
        return await run(
            self.cluster.binaries.program("kubectl"), f"--kubeconfig={self.cluster.kubeconfig}", "logs",
            f"--namespace={self.namespace}", selector, "--tail=40", "--prefix",
            what="the hook's log cannot be read", remedy="see the error before it",
        )  # fmt: skip

    def _release(self, changes: Mapping[str, Any]) -> Release:
        return Release(RELEASE, self.namespace, CHART, overlaid(self.values, changes))


def is_on_every_node(daemonset: Object) -> bool:
    """Whether every node that is to have one has a ready pod of the latest template."""
    status: Mapping[str, int] = daemonset.get("status", {})
    generation: int = daemonset["metadata"]["generation"]
    wanted = status.get("desiredNumberScheduled", 0)
    return (
        wanted > 0
        and status.get("observedGeneration", 0) >= generation
        and status.get("updatedNumberScheduled", 0) == status.get("numberAvailable", 0) == wanted
    )


def values(s3: S3Server, images: Mapping[str, Path]) -> dict[str, Any]:
    """What the product is told in tests. It is installed anew when an image or the chart has changed."""
    control = {"podAnnotations": {"tests.cluster/image": images["control"].name}}
    agent = {"podAnnotations": {"tests.cluster/image": images["agent"].name}}
    small = {"requests": {"cpu": "10m", "memory": "64Mi"}}  # tests' quotas are not to be measured by what we take
    chart = {str(path.relative_to(CHART)): path.read_text() for path in sorted(CHART.rglob("*")) if path.is_file()}
    return {
        "global": {"chart": digest(chart)},
        "image": {"pullPolicy": "Never"},
        "storage": {
            "s3": {"bucket": s3.bucket, "endpoint": s3.endpoint, "allowHttp": True, "existingSecret": KEYS},
        },
        "log": {"level": "debug"},
        "coordinator": {**control, "resources": small},
        "webhooks": {**control, "resources": small},
        "agent": {**agent, "resources": small, "holdResources": small},
    }


@asynccontextmanager
async def installed(
    cluster: Cluster, api: Api, s3: S3Server, steps: Steps, *, secrets: Sequence[Object] = (), **changes: Any
) -> AsyncIterator[Product]:
    """The product with these changes to its values, ready, its snapshots in that bucket; uninstalled at the end.

    The changes may name the secrets.
    """
    async with prepared(cluster, api, s3, steps, secrets=secrets) as product:
        with steps.step("cedana-sched ready"):
            await product.install(**changes)
        yield product


@asynccontextmanager
async def prepared(
    cluster: Cluster, api: Api, s3: S3Server, steps: Steps, *, secrets: Sequence[Object] = ()
) -> AsyncIterator[Product]:
    """The product, not installed yet, but for its images, its namespace and its Secrets; uninstalled at the end."""
    binaries = await ensure(TOOL, steps=steps)
    images = {image.name: await ensure_image(steps, image) for image in find_images().values() if image.is_product}
    with steps.step(f"images of the product on {len(cluster.nodes)} nodes"):
        await cluster.import_images(list(images.values()))
    product = Product(cluster, api, binaries, values(s3, images))
    labels = {"pod-security.kubernetes.io/enforce": "privileged"}
    await api.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}})
    for secret in (s3.secret(KEYS, NAMESPACE), *secrets):
        await api.apply(secret)
    try:
        yield product
    finally:
        with steps.step("cedana-sched uninstalled"):
            await product.ensure_gone()


async def key_of(api: Api, name: str) -> Object:
    """The Secret with which an installation seals its snapshots, for another one that is to read them."""
    data = (await api.get("v1", "Secret", f"{RELEASE}-sealing", NAMESPACE))["data"]
    metadata = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}


async def define_kinds(api: Api, binaries: Binaries) -> None:
    """Our kinds alone, so that the release, should it be installed later, takes them for its own."""
    marks = {"meta.helm.sh/release-name": RELEASE, "meta.helm.sh/release-namespace": NAMESPACE}
    definitions = of_kind(await render(binaries, {"storage": {"posix": {"path": "/x"}}}), "CustomResourceDefinition")
    for body in definitions:
        body["metadata"]["annotations"] |= marks
        name = (await api.apply(body, manager=HELM))["metadata"]["name"]
        assert name.endswith(GROUP)
        await wait_for(api, body["apiVersion"], body["kind"], name, has_condition("Established"))
