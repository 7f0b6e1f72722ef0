"""Checks of the product's releases, and of the availability of coordinator, webhooks and extender."""

from __future__ import annotations

from typing import Final

import msgspec

from cedana_sched.cli.cluster_reader import ClusterReader, MissingPermissionError, summarize_names
from cedana_sched.cli.doctor.check_runner import Finding, Level
from cedana_sched.kube.builtin_kinds import Metadata
from cedana_sched.kube.cached_metadata_keys import register_cached_key
from cedana_sched.kube.resources import DEPLOYMENTS

CHECK: Final = "installation"
OURS: Final = "app.kubernetes.io/part-of=cedana-sched"
"""Label selector of every object of the chart."""
COMPONENT: Final = register_cached_key("app.kubernetes.io/component")
VERSION: Final = register_cached_key("app.kubernetes.io/version")
STOCK_NAMESPACE: Final = "cedana-system"
"""The namespace of the installation in docs/kubernetes.md."""
_COORDINATOR: Final = "coordinator"


class _Container(msgspec.Struct, frozen=True):
    image: str = ""


class _PodSpec(msgspec.Struct, frozen=True):
    containers: tuple[_Container, ...] = ()


class _Template(msgspec.Struct, frozen=True):
    spec: _PodSpec = _PodSpec()


class _DeploymentSpec(msgspec.Struct, frozen=True):
    replicas: int = 1
    template: _Template = _Template()


class _DeploymentStatus(msgspec.Struct, frozen=True, rename="camel"):
    available_replicas: int = 0


class _Deployment(msgspec.Struct, frozen=True):
    metadata: Metadata
    spec: _DeploymentSpec = _DeploymentSpec()
    status: _DeploymentStatus = _DeploymentStatus()


class Installation(msgspec.Struct, frozen=True):
    """One release of the chart; `name` is the prefix of its objects' names."""

    namespace: str
    name: str
    deployments: tuple[_Deployment, ...]

    @property
    def deployed_components(self) -> frozenset[str]:
        """The components that are Deployments."""
        return frozenset(one.metadata.labels.get(COMPONENT, "") for one in self.deployments)

    @property
    def product_image(self) -> str:
        """One that this cluster takes, for the product runs from it; empty where none can be seen."""
        containers = (container for one in self.deployments for container in one.spec.template.spec.containers)
        return next((container.image for container in containers), "")


async def find_releases(reads: ClusterReader) -> tuple[Installation, ...]:
    """Return all releases that are visible to the user.

    Raises:
        MissingPermissionError: the user may list Deployments neither cluster-wide nor in the stock namespace.
    """
    try:
        found = await reads.read_objects(DEPLOYMENTS, labels=OURS, into=_Deployment)
    except MissingPermissionError:
        found = await reads.read_objects(DEPLOYMENTS, STOCK_NAMESPACE, labels=OURS, into=_Deployment)
    return tuple(
        Installation(
            one.metadata.namespace,
            one.metadata.name.removesuffix(f"-{_COORDINATOR}"),
            tuple(other for other in found if other.metadata.namespace == one.metadata.namespace),
        )
        for one in found
        if one.metadata.labels.get(COMPONENT) == _COORDINATOR
    )


def check_releases(there: tuple[Installation, ...]) -> list[Finding]:
    """Check that there is exactly one release, and that it is available."""
    if not there:
        message = "no coordinator of cedana-sched can be seen: preemptions lose their work"
        return [Finding(CHECK, Level.FAIL, message, "install the chart: docs/kubernetes.md")]
    found = [finding for one in there for finding in _check_deployments_available(one)]
    if len(there) > 1:
        where = summarize_names(one.namespace for one in there)
        message = f"{len(there)} releases share the records of one cluster, in {where}"
        found.append(Finding(CHECK, Level.FAIL, message, "uninstall all but one"))
    return found


def _check_deployments_available(one: Installation) -> list[Finding]:
    down = [each for each in one.deployments if not each.status.available_replicas]
    fewer = [each for each in one.deployments if 0 < each.status.available_replicas < each.spec.replicas]
    found: list[Finding] = []
    if down:
        message = f"nothing of {summarize_names(each.metadata.name for each in down)} is available"
        found.append(Finding(CHECK, Level.FAIL, message, f"kubectl --namespace {one.namespace} describe deployments"))
    if fewer:
        short = summarize_names(each.metadata.name for each in fewer)
        message = f"of {short} fewer replicas are available than desired"
        found.append(Finding(CHECK, Level.WARN, message, f"kubectl --namespace {one.namespace} describe deployments"))
    if not found:
        versions = {each.metadata.labels.get(VERSION, "unknown") for each in one.deployments}
        message = f"version {summarize_names(versions)} runs in namespace {one.namespace}: "
        found.append(Finding(CHECK, Level.OK, message + summarize_names(one.deployed_components)))
    return found
