"""The scheduler's configuration file, as far as preemption is concerned (pkg/scheduler/conf, Volcano 1.14)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec
import yaml

from cedana_sched.model.errors import UsageError
from cedana_sched_volcano.extender.holder import Way

EXTENDER: Final = "extender"

_VOTERS: Final[dict[Way, frozenset[str]]] = {
    "preempt": frozenset({"priority", "gang", "conformance", "drf", "tdm", "pdb", "cdp"}),
    "reclaim": frozenset({"gang", "conformance", "proportion", "capacity", "pdb", "cdp"}),
}
"""Plugins that have a say in who may be evicted (`AddPreemptableFn`, `AddReclaimableFn`)."""
VERBS: Final[dict[Way, str]] = {"preempt": "extender.preemptableVerb", "reclaim": "extender.reclaimableVerb"}

_UNITS: Final = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_PART: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(h|ms|m|us|µs|ns|s)")


class Plugin(msgspec.Struct, frozen=True):
    """One plugin of a tier; what is switched off has no say."""

    name: str
    preemptable: bool = True
    reclaimable: bool = True
    hierarchy: bool = False
    arguments: Mapping[str, Any] = {}

    def enabled(self, way: Way) -> bool:
        return self.preemptable if way == "preempt" else self.reclaimable

    def votes(self, way: Way) -> bool:
        """Whether it says who may be evicted."""
        if not self.enabled(way):
            return False
        if self.name == EXTENDER:
            return bool(self.text(VERBS[way]))
        return self.name in _VOTERS[way] or (self.name == "drf" and self.hierarchy and way == "reclaim")

    def text(self, argument: str) -> str:
        """As the extender plugin reads its arguments: what is no text is as if it were not there."""
        value = self.arguments.get(argument)
        return value if isinstance(value, str) else ""


class SchedulerConfiguration(msgspec.Struct, frozen=True):
    """Actions in their order, and tiers of plugins in theirs."""

    actions: tuple[str, ...]
    tiers: tuple[tuple[Plugin, ...], ...]

    def plugin(self, name: str) -> Plugin | None:
        return next((one for tier in self.tiers for one in tier if one.name == name), None)


def read(text: str) -> SchedulerConfiguration:
    """The file's content.

    Raises:
        UsageError: it is no configuration of the scheduler, which keeps the one before then.
    """
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError("scheduler configuration", text[:40], f"is no YAML: {error}", remedy="correct it") from error
    if not isinstance(found, dict) or not isinstance(found.get("actions", ""), str):
        raise UsageError("actions", found, "is no list of actions", remedy='write actions: "enqueue, allocate"')
    tiers = found.get("tiers") or []
    try:
        plugins = tuple(tuple(_plugin(one) for one in tier.get("plugins") or []) for tier in tiers)
    except (AttributeError, KeyError, TypeError) as error:
        remedy = "write tiers as a list of {plugins: [{name: ...}]}"
        raise UsageError("tiers", str(tiers)[:80], "is no list of tiers", remedy=remedy) from error
    actions = tuple(part.strip() for part in found.get("actions", "").split(","))
    return SchedulerConfiguration(tuple(action for action in actions if action), plugins)


def _plugin(written: Mapping[str, Any]) -> Plugin:
    return Plugin(
        str(written["name"]),
        written.get("enablePreemptable") is not False,
        written.get("enableReclaimable") is not False,
        written.get("enableHierarchy") is True,
        dict(written.get("arguments") or {}),
    )


def seconds(duration: str) -> float | None:
    """What Go's `time.ParseDuration` makes of it; None where it refuses."""
    parts = list(_PART.finditer(duration))
    if not parts or "".join(part[0] for part in parts) != duration:
        return None
    return sum(float(part[1]) * _UNITS[part[2]] for part in parts)
