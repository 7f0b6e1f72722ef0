"""What the coordinator's processes have used, as the kernel of their nodes counts it."""

from __future__ import annotations

from tests.bench.scale.figures import Usage
from tests.cluster.api.client import Api
from tests.cluster.cluster import Cluster
from tests.e2e.product.rendering import NAMESPACE

_TICKS = 100
_READ = """
for pid in $(pgrep -f cedana_sched.cluster.coordinator); do
    awk '/VmHWM/ { print $2 }' /proc/$pid/status
    awk '{ print $14 + $15 }' /proc/$pid/stat
done
"""


async def usage(cluster: Cluster, api: Api) -> Usage:
    """Of all replicas: their processor time together, and the memory of the largest."""
    pods = await api.objects("v1", "Pod", NAMESPACE, selector="app.kubernetes.io/component=coordinator")
    nodes = {pod["spec"]["nodeName"] for pod in pods}
    said = [line for name in nodes for line in (await cluster.nodes[name].run("sh", "-c", _READ)).split()]
    numbers = [float(line) for line in said]
    return Usage(sum(numbers[1::2]) / _TICKS, int(max(numbers[0::2])) << 10)
