"""The scheduler's configuration file, reduced to what affects preemption (pkg/scheduler/conf, Volcano 1.14)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import yaml

from cedana_sched.model.errors import UsageError
from cedana_sched_volcano.extender.pod_states_interface import Way

EXTENDER: Final = "extender"

_VOTERS: Final[dict[Way, frozenset[str]]] = {
    "preempt": frozenset({"priority", "gang", "conformance", "drf", "tdm", "pdb", "cdp"}),
    "reclaim": frozenset({"gang", "conformance", "proportion", "capacity", "pdb", "cdp"}),
}
"""Plugins that vote on victims (`AddPreemptableFn`, `AddReclaimableFn`)."""
VERBS: Final[dict[Way, str]] = {"preempt": "extender.preemptableVerb", "reclaim": "extender.reclaimableVerb"}


class Plugin(msgspec.Struct, frozen=True):
    """One plugin of a tier, with its switches."""

    name: str
    preemptable: bool = True
    reclaimable: bool = True
    hierarchy: bool = False
    arguments: Mapping[str, Any] = {}

    def is_enabled_for(self, way: Way) -> bool:
        return self.preemptable if way == "preempt" else self.reclaimable

    def is_voting_on(self, way: Way) -> bool:
        """Whether it votes on victims."""
        if not self.is_enabled_for(way):
            return False
        if self.name == EXTENDER:
            return bool(self.text_argument(VERBS[way]))
        return self.name in _VOTERS[way] or (self.name == "drf" and self.hierarchy and way == "reclaim")

    def text_argument(self, argument: str) -> str:
        """Return an argument like the extender plugin reads it: a non-string counts as absent."""
        value = self.arguments.get(argument)
        return value if isinstance(value, str) else ""


class SchedulerConfiguration(msgspec.Struct, frozen=True):
    """Actions in order, and tiers of plugins in order."""

    actions: tuple[str, ...]
    tiers: tuple[tuple[Plugin, ...], ...]

    def find_plugin(self, name: str) -> Plugin | None:
        return next((one for tier in self.tiers for one in tier if one.name == name), None)


def read(text: str) -> SchedulerConfiguration:
    """Parse the file.

    Raises:
        UsageError: it is no valid configuration; the scheduler then keeps the previous one.
    """
    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError("scheduler configuration", text[:40], f"is no YAML: {error}", remedy="correct it") from error
    if not isinstance(found, dict) or not isinstance(found.get("actions", ""), str):
        raise UsageError("actions", found, "is no list of actions", remedy='write actions: "enqueue, allocate"')
    tiers = found.get("tiers") or []
    try:
        plugins = tuple(tuple(_parse_plugin(one) for one in tier.get("plugins") or []) for tier in tiers)
    except (AttributeError, KeyError, TypeError) as error:
        remedy = "write tiers as a list of {plugins: [{name: ...}]}"
        raise UsageError("tiers", str(tiers)[:80], "is no list of tiers", remedy=remedy) from error
    actions = tuple(part.strip() for part in found.get("actions", "").split(","))
    return SchedulerConfiguration(tuple(action for action in actions if action), plugins)


def _parse_plugin(written: Mapping[str, Any]) -> Plugin:
    return Plugin(
        str(written["name"]),
        written.get("enablePreemptable") is not False,
        written.get("enableReclaimable") is not False,
        written.get("enableHierarchy") is True,
        dict(written.get("arguments") or {}),
    )
