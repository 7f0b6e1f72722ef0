"""Amounts of the two resources of requests and quotas; integers, so that sums are exact."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Resource(StrEnum):
    """A resource that has quota."""

    CPU = "cpu"
    MEMORY = "memory"


class Resources(msgspec.Struct, frozen=True, order=True):
    """CPU in thousandths of a core, memory in bytes. Differences may be negative."""

    cpu: int = 0
    memory: int = 0

    def __getitem__(self, resource: Resource) -> int:
        return self.cpu if resource is Resource.CPU else self.memory

    def __add__(self, other: Resources) -> Resources:
        return Resources(self.cpu + other.cpu, self.memory + other.memory)

    def __sub__(self, other: Resources) -> Resources:
        return Resources(self.cpu - other.cpu, self.memory - other.memory)

    def multiplied_by(self, count: int) -> Resources:
        return Resources(self.cpu * count, self.memory * count)


class Limits(msgspec.Struct, frozen=True):
    """An optional bound for each resource, in the units of `Resources`; None is no bound."""

    cpu: int | None = None
    memory: int | None = None

    def __getitem__(self, resource: Resource) -> int | None:
        return self.cpu if resource is Resource.CPU else self.memory


def in_words(resource: Resource, amount: int) -> str:
    """Return an amount as text for users: `1.5 cpus`, `2Gi of memory`."""
    if resource is Resource.CPU:
        return f"{amount / 1000:g} cpu" + ("" if amount == 1000 else "s")  # one whole core
    return f"{_format_binary(amount)} of memory"


def _format_binary(amount: int) -> str:
    value = float(amount)
    for unit in ("", "Ki", "Mi", "Gi"):
        if abs(value) < 1024:  # the step between binary units
            return f"{value:.4g}{unit}"
        value /= 1024
    return f"{value:.4g}Ti"
