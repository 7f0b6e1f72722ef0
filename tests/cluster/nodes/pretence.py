"""What makes a node's kubelet see other processors, other memory and another boot than this host's.

cAdvisor, in the kubelet, reads /proc/meminfo, /proc/cpuinfo, /sys/devices/system/{cpu,node} and the boot's id
(google/cadvisor machine/machine.go, utils/sysinfo); pods get /proc and /sys of their own and see none of it.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from pathlib import Path

from tests.cluster.kind_config.shape import Capacity

BOOT_ID = "/proc/sys/kernel/random/boot_id"
"""A node that was switched on again is told from one that never was off by it."""
DEVICES = "device-plugins/kubelet_internal_checkpoint"
"""In the kubelet's folder: without it, whenever it starts, it takes extended resources from its Node as outdated."""
NO_DEVICES = '{"Data":{"PodDeviceEntries":[],"RegisteredDevices":{}},"Checksum":2932075448}'
"""That file when no device plugin has come yet (kubernetes pkg/kubelet/cm/devicemanager/checkpoint)."""
_KIB = 1024


def files(capacity: Capacity) -> dict[str, str]:
    """Stand-ins for single files, by path."""
    found = {BOOT_ID: f"{uuid.uuid4()}\n"}
    if capacity.memory is not None:
        found["/proc/meminfo"] = _memory_information(capacity.memory)
    if capacity.cpu is not None:
        found["/proc/cpuinfo"] = _processor_information(capacity.cpu)
    return found


def trees(capacity: Capacity) -> dict[str, Mapping[str, str]]:
    """Stand-ins for folders: text by relative path, by folder.

    Processors without a topology, as on machines whose kernel does not tell it: the kubelet then counts them, and does
    not confine pods to processors by their numbers, which this host may not have.
    """
    if capacity.cpu is None:
        return {}
    processors = {"online": f"0-{capacity.cpu - 1}\n"}
    for number in range(capacity.cpu):
        processors[f"cpu{number}/online"] = "1\n"
    return {"/sys/devices/system/node": {}, "/sys/devices/system/cpu": processors}


def _memory_of_host() -> int:
    found = re.search(r"^MemTotal:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * _KIB


def _memory_information(memory: int) -> str:
    """The host's, with another total; what is in use stays in use."""
    text = Path("/proc/meminfo").read_text()
    surplus = memory - _memory_of_host()

    def changed(match: re.Match[str]) -> str:
        return f"{match[1]}{max(int(match[2]) + surplus // _KIB, 0)} kB"

    return re.sub(r"^((?:MemTotal|MemFree|MemAvailable):\s+)(\d+) kB", changed, text, flags=re.MULTILINE)


def _processor_information(count: int) -> str:
    first = Path("/proc/cpuinfo").read_text().split("\n\n")[0]

    def numbered(number: int) -> str:
        text = re.sub(r"^(processor\s*: )\d+", rf"\g<1>{number}", first, flags=re.MULTILINE)
        return re.sub(r"^(core id\s*: )\d+", rf"\g<1>{number}", text, flags=re.MULTILINE)

    return "\n\n".join(map(numbered, range(count))) + "\n\n"
