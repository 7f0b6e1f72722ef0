"""Labels that make a node pretend to have more or less than the machine. kind carries them along as plain labels.

test-cluster/cpu: "8"                 whole CPUs
test-cluster/memory: 32Gi
test-cluster/nvidia.com_gpu: "4"      the extended resource nvidia.com/gpu; a label has no second slash
"""

from __future__ import annotations

from collections.abc import Mapping

from cedana_sched.local.quantities import parse_memory
from cedana_sched.model.errors import UsageError
from tests.cluster.kind_config.refusal import refused
from tests.cluster.kind_config.shape import Capacity

PREFIX = "test-cluster/"


def capacity_of(labels: Mapping[str, str]) -> Capacity:
    """What the labels say.

    Raises:
        PydanticCustomError: one of them is no capacity.
    """
    cpu = memory = None
    extended = {}
    for label, value in labels.items():
        if not label.startswith(PREFIX):
            continue
        resource = label.removeprefix(PREFIX)
        if resource == "cpu":
            cpu = _count(label, value, at_least=1)
        elif resource == "memory":
            memory = _bytes(label, value)
        elif "." in resource.partition("_")[0]:
            extended[resource.replace("_", "/", 1)] = _count(label, value, at_least=0)
        else:
            remedy = f"write {PREFIX}cpu, {PREFIX}memory or, for the resource example.com/dongle, "
            remedy += f"{PREFIX}example.com_dongle"
            raise refused("belongs to a resource that a node cannot have", remedy, field=label, value=value)
    return Capacity(cpu, memory, extended)


def _count(label: str, value: str, *, at_least: int) -> int:
    if not (value.isascii() and value.isdigit()) or int(value) < at_least:
        raise refused("is no number of them", 'write a whole number such as "4"', field=label, value=value)
    return int(value)


def _bytes(label: str, value: str) -> int:
    try:
        memory = parse_memory(label, value)
    except UsageError as error:
        raise refused("is no amount of memory", error.remedy, field=label, value=value) from error
    if memory == 0:
        raise refused("is no memory at all", "write an amount such as 32Gi", field=label, value=value)
    return memory
