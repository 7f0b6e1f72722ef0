"""All findings of one Volcano scheduler, in the order in which an admin should fix them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from cedana_sched.model.diagnostic_findings import Finding, Level
from cedana_sched.model.errors import UsageError
from cedana_sched_volcano.doctor import extender, preemption
from cedana_sched_volcano.doctor.scheduler_conf import EXTENDER, VERBS, SchedulerConfiguration, read

CHECK: Final = "volcano configuration"
WAYS: Final = "volcano holds"
CONFIG_MAP: Final = "volcano-scheduler-configmap"
"""In Volcano's namespace, with the chart's default release name."""


class Installation(msgspec.Struct, frozen=True):
    """Our installed components."""

    status_hold: bool
    """The API server calls a webhook of ours before the scheduler writes a pod's `DisruptionTarget`."""
    pre_stop: bool = True
    """Protected pods have a preStop hook that waits for their checkpoint."""
    extender_urls: tuple[str, ...] = ()
    """All URLs of our extender, the recommended one first; empty if it is not installed."""


def examine(data: Mapping[str, str], queues: Sequence[dict[str, Any]], installation: Installation) -> list[Finding]:
    """Return findings about one scheduler.

    Args:
        data: of its ConfigMap; keys that do not end in `.conf` are ignored.
        queues: all Queue objects of the cluster.
        installation: our installed components.
    """
    files = {name: text for name, text in data.items() if name.endswith(".conf")}
    if not files:
        message = f"{CONFIG_MAP} holds no *.conf: Volcano runs as it is built, without preemption"
        return [Finding(CHECK, Level.WARN, message, "write one; docs of the Volcano adapter have an example")]
    found: list[Finding] = []
    for name, text in files.items():
        try:
            configuration = read(text)
        except UsageError as error:
            message = f"{name} cannot be read, and Volcano keeps the previous one: {error.message}"
            found.append(Finding(CHECK, Level.FAIL, message, error.remedy))
            continue
        found += preemption.check_actions(configuration)
        found += preemption.check_plugins(configuration)
        found += preemption.check_queues(configuration, queues)
        held = installation.status_hold
        found += extender.check_extender(configuration, otherwise_held=held, urls=installation.extender_urls)
        found += _report_effective_holds(configuration, installation)
    return found


def _report_effective_holds(configuration: SchedulerConfiguration, installation: Installation) -> Iterator[Finding]:
    """Yield which of our holds are effective."""
    evicting = [way for way in VERBS if way in configuration.actions]
    by_extender = [way for way in evicting if extender.is_extender_in_control(configuration, way)]
    ways = [f"the extender ({' and '.join(by_extender)})"] if by_extender else []
    ways += ["refused writes of pods/status"] if installation.status_hold else []
    ways += ["preStop"] if installation.pre_stop else []
    if not ways:
        message = "nothing holds evictions: workloads are killed before they are saved"
        yield Finding(WAYS, Level.FAIL, message, "install the webhooks with the hold of pods/status")
        return
    message = f"evictions are held by {', '.join(ways)}"
    if installation.status_hold or (by_extender and by_extender == evicting):
        yield Finding(WAYS, Level.OK, message)
    else:
        remedy = "switch the hold of pods/status on, which needs nothing of Volcano's configuration"
        yield Finding(
            WAYS, Level.WARN, f"{message}: its victims are killed at that time, with or without a snapshot", remedy
        )
    if installation.extender_urls and configuration.find_plugin(EXTENDER) is None:
        message = "our extender runs, but Volcano does not call it: its configuration lacks the plugin"
        remedy = f"add it, last in the only tier, at {installation.extender_urls[0]}/SEGMENT: see helm get notes"
        yield Finding(WAYS, Level.WARN, message, remedy)
