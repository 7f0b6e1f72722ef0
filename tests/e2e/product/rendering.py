"""The chart as objects, without installing it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.api.client import Object
from tests.cluster.binaries.build import Binaries
from tests.cluster.images.catalog import REPOSITORY

CHART = REPOSITORY / "manifests/chart"
RELEASE = "cedana-sched"
NAMESPACE = "cedana-system"


class ChartError(Exception):
    """Helm does not take the chart, or the values: all that it said."""


async def render(binaries: Binaries, values: Mapping[str, Any], *, namespace: str = NAMESPACE) -> list[Object]:
    """Every object that `helm install` would write, hooks included.

    Raises:
        ChartError: the values are refused.
    """
    written = await _helm(binaries, "template", RELEASE, CHART, f"--namespace={namespace}", values=values)
    return [body for body in yaml.safe_load_all(written) if body]


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
