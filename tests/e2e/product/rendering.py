"""The chart as objects, without installing it."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from cedana_sched.cluster.configuration import CoordinatorConfiguration
from cedana_sched_webhooks.configuration import Configuration as WebhooksConfiguration
from tests.cluster.api.client import Object
from tests.cluster.binaries.build import Binaries
from tests.cluster.images.catalog import REPOSITORY

CHART = REPOSITORY / "manifests/chart"
RELEASE = "cedana-sched"
NAMESPACE = "cedana-system"
WORKLOADS = ("Deployment", "DaemonSet", "Job")


class ChartError(Exception):
    """Helm does not take the chart, or the values: all that it said."""


async def render(binaries: Binaries, values: Mapping[str, Any], *, namespace: str = NAMESPACE) -> list[Object]:
    """Every object that `helm install` would write, hooks included.

    Raises:
        ChartError: the values are refused.
    """
    written = await _helm(binaries, "template", RELEASE, CHART, f"--namespace={namespace}", values=values)
    return [body for body in yaml.load_all(written, yaml.CSafeLoader) if body]  # ten times as fast as SafeLoader


async def notes(binaries: Binaries, values: Mapping[str, Any], *, namespace: str = NAMESPACE) -> str:
    """What `helm install` would say at its end.

    Raises:
        ChartError: the values are refused.
    """
    written = await _helm(
        binaries, "install", RELEASE, CHART, f"--namespace={namespace}", "--dry-run=client", "--output=json",
        values=values,
    )  # fmt: skip
    return str(json.loads(written)["info"]["notes"])


async def lint(binaries: Binaries, values: Mapping[str, Any]) -> None:
    """Let Helm look for mistakes.

    Raises:
        ChartError: there is one.
    """
    await _helm(binaries, "lint", "--strict", CHART, values=values)


async def _helm(binaries: Binaries, *arguments: str | Path, values: Mapping[str, Any]) -> str:
    process = await asyncio.create_subprocess_exec(
        binaries.program("helm"),
        *arguments,
        "--values=-",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate(json.dumps(values).encode())
    if process.returncode:
        raise ChartError((out + err).decode())
    return out.decode()


def of_kind(objects: list[Object], *kinds: str) -> list[Object]:
    """Those of some kinds."""
    return [body for body in objects if body["kind"] in kinds]


def named(objects: list[Object], kind: str, name: str) -> Object:
    """The one of a kind and name."""
    (found,) = (body for body in of_kind(objects, kind) if body["metadata"]["name"] == name)
    return found


def pods_of(objects: list[Object]) -> Iterator[tuple[str, Object]]:
    """The pods that controllers would make, by the controllers' names."""
    for body in of_kind(objects, *WORKLOADS):
        yield body["metadata"]["name"], body["spec"]["template"]["spec"]


def rules_of(objects: list[Object], account: str) -> list[Object]:
    """What a ServiceAccount of ours may do."""
    bindings = of_kind(objects, "ClusterRoleBinding", "RoleBinding")
    roles = [
        named(objects, binding["roleRef"]["kind"], binding["roleRef"]["name"])
        for binding in bindings
        if account in {subject["name"] for subject in binding["subjects"]}
    ]
    return list(itertools.chain.from_iterable(role["rules"] for role in roles))


def hooks_of(objects: list[Object]) -> list[Object]:
    """All webhooks, in their order."""
    configurations = of_kind(objects, "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
    return [hook for body in configurations for hook in body["webhooks"]]


def coordinator_of(objects: list[Object]) -> CoordinatorConfiguration:
    """What the coordinator would read."""
    written = named(objects, "ConfigMap", "cedana-sched")["data"]["coordinator.json"]
    return CoordinatorConfiguration.model_validate_json(written)


def webhooks_of(objects: list[Object]) -> WebhooksConfiguration:
    """What the webhooks would read."""
    written = named(objects, "ConfigMap", "cedana-sched")["data"]["webhooks.json"]
    return WebhooksConfiguration.model_validate_json(written)
