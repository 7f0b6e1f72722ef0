"""Whether the scheduler calls our extender before evictions, and obeys it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from cedana_sched.kube.go_durations import parse_go_duration
from cedana_sched.model.diagnostic_findings import Finding, Level
from cedana_sched_volcano.doctor.scheduler_conf import EXTENDER, VERBS, Plugin, SchedulerConfiguration
from cedana_sched_volcano.extender.pod_states_interface import Way

CHECK: Final = "volcano extender"
PATHS: Final[dict[Way, str]] = {"preempt": "preemptable", "reclaim": "reclaimable"}
"""Paths of our extender."""
LONGEST_TIMEOUT_SECONDS: Final = 1.0
SHORTEST_TIMEOUT_SECONDS: Final = 0.1
_SEGMENT: Final = re.compile(r"/[0-9a-f]{64}")
"""Form of the extender's segments. Whether it is the valid one is only in the Secret, which the doctor does not
read."""
_WHERE_IT_STANDS: Final = "end it with /SEGMENT, which stands in the extender's Secret: see helm get notes"
_STOCK_TIMEOUT: Final = "Volcano waits 1s for every call then"
_ONE_TIER: Final = "put all plugins into one tier, the extender last"
_BESIDE: Final = ("gangpreempt", "gangreclaim", "shuffle")
"""Actions that evict without calling the extender."""


def is_extender_in_control(configuration: SchedulerConfiguration, way: Way) -> bool:
    """Whether our extender controls all evictions of this kind."""
    return not list(_find_bypasses(configuration, way))


def check_extender(
    configuration: SchedulerConfiguration, *, otherwise_held: bool, urls: tuple[str, ...]
) -> Iterator[Finding]:
    """Yield problems of the extender's configuration, if there is one.

    Args:
        configuration: the scheduler's.
        otherwise_held: evictions that bypass the extender are held in another way.
        urls: of our extender; empty if unknown.
    """
    extender = configuration.find_plugin(EXTENDER)
    if extender is None:
        return
    yield from _check_arguments(extender, urls)
    level = Level.WARN if otherwise_held else Level.FAIL
    for way in (way for way in VERBS if way in configuration.actions):
        problems = list(_find_bypasses(configuration, way))
        for message, remedy in problems:
            yield Finding(CHECK, level, f"'{way}': {message}", remedy)
        if not problems:
            yield Finding(CHECK, Level.OK, f"'{way}' calls it, and evicts no pod against its answer")
    for action in (action for action in configuration.actions if action in _BESIDE):
        yield Finding(
            CHECK, level, f"action '{action}' evicts without calling it", "hold writes of pods/status as well"
        )


def _find_bypasses(configuration: SchedulerConfiguration, way: Way) -> Iterator[tuple[str, str]]:
    """Yield ways to bypass the extender, with a remedy each."""
    at = [
        (tier, place)
        for tier, plugins in enumerate(configuration.tiers)
        for place, plugin in enumerate(plugins)
        if plugin.name == EXTENDER
    ]
    if not at:
        yield "there is no extender", _ONE_TIER
        return
    number, place = at[0]
    extender = configuration.tiers[number][place]
    if not extender.text_argument("extender.urlPrefix"):
        yield "extender.urlPrefix is not set, so it cannot be reached", "name our Service there"
    if not extender.text_argument(VERBS[way]):
        yield f"{VERBS[way]} is not set, so it is not called", f"set it to {PATHS[way]!r}"
        return
    if not extender.is_enabled_for(way):
        switch = "enablePreemptable" if way == "preempt" else "enableReclaimable"
        yield f"{switch} of the extender is false, so it is not called", "leave it out"
        return
    if extender.arguments.get("extender.managedResources"):
        message = "it is called only for jobs that request extender.managedResources"
        yield message, "leave extender.managedResources out"
    for other, plugins in enumerate(configuration.tiers):
        voters = ", ".join(plugin.name for plugin in plugins if plugin.is_voting_on(way) and plugin.name != EXTENDER)
        if voters and other < number:
            yield f"an earlier tier ({voters}) decides without it wherever it finds a victim", _ONE_TIER
        if voters and other > number:
            yield f"if it allows no victim, a later tier ({voters}) decides instead", _ONE_TIER
    later = ", ".join(plugin.name for plugin in configuration.tiers[number][place + 1 :] if plugin.is_voting_on(way))
    if later:
        yield f"plugins behind it ({later}) start over if no victim is left, against its answer", _ONE_TIER


def _check_arguments(extender: Plugin, urls: tuple[str, ...]) -> Iterator[Finding]:
    prefix = extender.text_argument("extender.urlPrefix")
    if urls and prefix:
        yield from _check_address(prefix, urls)
    if prefix.startswith("https:"):
        message = "extender.urlPrefix is https, and the plugin trusts only the authorities of its own image"
        yield Finding(CHECK, Level.WARN, message, "use http inside the cluster")
    for way, verb in VERBS.items():
        path = extender.text_argument(verb)
        if path and path.strip("/") != PATHS[way]:
            yield Finding(CHECK, Level.FAIL, f"{verb} is {path!r}, where nothing answers", f"set it to {PATHS[way]!r}")
    ours = set(VERBS.values())
    others = sorted(name for name in extender.arguments if name.endswith("Verb") and name not in ours)
    if others:
        called = f"it is called for {', '.join(others)} as well"
        message = f"{called}, which our extender does not answer: nothing is scheduled"
        yield Finding(CHECK, Level.FAIL, message, "leave these out")
    if extender.arguments.get("extender.ignorable") in (True, "true"):
        message = "extender.ignorable does not let preemptions proceed when it is down: they stop either way"
        yield Finding(CHECK, Level.WARN, message, "run two replicas, or do without the extender")
    yield from _check_timeout(extender)


def _check_address(prefix: str, urls: tuple[str, ...]) -> Iterator[Finding]:
    """Check that the address is ours; its path may be secret, and is not repeated."""
    try:
        found = urlsplit(prefix)
    except ValueError as error:
        yield Finding(CHECK, Level.FAIL, f"extender.urlPrefix is no URL: {error}", f"ours is reached at {urls[0]}")
        return
    place = f"{found.scheme}://{found.netloc}"
    if place not in urls:
        yield Finding(CHECK, Level.WARN, f"extender.urlPrefix is at {place}", f"ours is reached at {urls[0]}")
    elif not _SEGMENT.fullmatch(found.path.rstrip("/")):
        message = "extender.urlPrefix lacks the secret part of our address: Volcano gets 404, and preempts no pod"
        yield Finding(CHECK, Level.FAIL, message, _WHERE_IT_STANDS)


def _check_timeout(extender: Plugin) -> Iterator[Finding]:
    name = "extender.httpTimeout"
    if name not in extender.arguments:
        yield Finding(CHECK, Level.WARN, f"{name} is not set: {_STOCK_TIMEOUT}", "set it to 500ms")
        return
    try:
        duration = parse_go_duration(extender.text_argument(name))
    except ValueError:
        duration = 0.0
    if not duration:
        message = f"{name} {extender.arguments[name]!r} is no duration: {_STOCK_TIMEOUT}"
        yield Finding(CHECK, Level.WARN, message, "write it as in 500ms")
    elif duration > LONGEST_TIMEOUT_SECONDS:
        message = (
            f"{name} is {extender.text_argument(name)}: a slow extender stops the whole scheduler that long, each call"
        )
        yield Finding(CHECK, Level.WARN, message, "set it to 500ms")
    elif duration < SHORTEST_TIMEOUT_SECONDS:
        given = extender.text_argument(name)
        message = f"{name} is {given}: calls that take longer, as for full nodes, allow no eviction"
        yield Finding(CHECK, Level.WARN, message, "set it to 500ms")
