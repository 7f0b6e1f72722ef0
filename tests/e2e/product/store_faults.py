"""What befalls the S3 server of the tests."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.cluster.api.client import Api
from tests.cluster.api.waiting import wait_for, wait_for_all
from tests.cluster.cluster import Cluster
from tests.e2e.product.bucket import run_in_bucket
from tests.e2e.product.s3_server import NAME, NAMESPACE

_NOWHERE = "nowhere"


@asynccontextmanager
async def unreachable(api: Api) -> AsyncIterator[None]:
    """Nobody reaches it inside the block; it keeps what it has."""
    await _lead_to(api, _NOWHERE)
    await wait_for_all(
        api, "discovery.k8s.io/v1", "EndpointSlice", lambda found: not any(one.get("endpoints") for one in found),
        namespace=NAMESPACE, selector=f"kubernetes.io/service-name={NAME}",
    )  # fmt: skip
    try:
        yield
    finally:
        await _lead_to(api, NAME)


@asynccontextmanager
async def slowed(cluster: Cluster, api: Api, megabits: int) -> AsyncIterator[None]:
    """All nodes together send it no more than this many megabits a second inside the block; reads are not slowed.

    Its node's end of the pod's link shapes what is sent into the pod.
    """
    (pod,) = await api.objects("v1", "Pod", NAMESPACE, selector=f"app={NAME}")
    node = cluster.nodes[pod["spec"]["nodeName"]]
    (route, *_) = json.loads(await node.run("ip", "-json", "route", "get", pod["status"]["podIP"]))
    shape = ("tbf", "rate", f"{megabits}mbit", "burst", "64kb", "latency", "500ms")
    await node.run("tc", "qdisc", "replace", "dev", route["dev"], "root", *shape)
    try:
        yield
    finally:
        await node.run("tc", "qdisc", "delete", "dev", route["dev"], "root")


async def damage_packs(cluster: Cluster, api: Api) -> int:
    """Overwrite the middle of everything that holds pages; how many objects that were."""
    script = """
        find . -type f -path '*/packs/*' | while read file; do
            size=$(stat -c %s "$file")
            dd if=/dev/urandom of="$file" bs=1 seek=$((size / 2)) count=64 conv=notrunc status=none
            echo damaged
        done
    """
    said = await run_in_bucket(cluster, api, script)
    return said.count("damaged")


async def change_bytes(cluster: Cluster, api: Api, pattern: str, at: str) -> list[str]:
    """Change one byte of each object whose key matches a pattern of the shell; which those are.

    Args:
        cluster: that has the server.
        api: of the cluster.
        pattern: such as `v1/*/packs/*`, in which a `*` is also a `/`.
        at: where, in the shell's arithmetic, with `size` for the object's size.
    """
    script = f"""
        find . -type f -path './{pattern}' | while read file; do
            size=$(stat -c %s "$file")
            at=$(({at}))
            byte=$(od -An -tu1 -j "$at" -N 1 "$file")
            printf "\\\\$(printf %o $((byte ^ 255)))" | dd of="$file" bs=1 seek="$at" conv=notrunc status=none
            echo "$file"
        done
    """
    return [line.removeprefix("./") for line in (await run_in_bucket(cluster, api, script)).split()]


async def _lead_to(api: Api, app: str) -> None:
    await wait_for(api, "v1", "Service", NAME, bool, namespace=NAMESPACE)
    await api.patch("v1", "Service", NAME, {"spec": {"selector": {"app": app}}}, NAMESPACE)
