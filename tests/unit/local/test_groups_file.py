"""The groups file: what it means to the scheduler, and what is refused in it."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from cedana_sched.local import configuration as module
from cedana_sched.local.configuration import Configuration, machine_capacity
from cedana_sched.local.scheduler.resources import Limits, Resources
from cedana_sched.local.scheduler.scheduling_types import PreemptionPolicy, QueueingStrategy, ShareStrategy
from cedana_sched.model.errors import UsageError
from tests.unit.local.jobs.job_builders import MACHINE, configuration

BIO = '[[groups]]\nname = "bio"\nnominalQuota = {cpu = 2, memory = "4Gi"}\n'
FULL = """
stallSeconds = 45
[capacity]
cpu = 8
memory = "16Gi"
[fairSharing]
preemptionStrategies = ["LessThanInitialShare"]
[[groups]]
name = "bio"
nominalQuota = {cpu = "2500m", memory = "4Gi"}
borrowingLimit = {cpu = 1}
lendingLimit = {memory = "1Gi"}
queueingStrategy = "StrictFIFO"
optIn = true
namespace = "biology"
preemption = {reclaimWithinCohort = "Any", withinClusterQueue = "LowerOrNewerEqualPriority"}
fairSharing = {weight = 0.5}
checkpointPolicy = {deadlineSeconds = 60, onCheckpointFailure = "KeepRunning"}
"""


def test_every_word_of_the_file_reaches_the_scheduler() -> None:
    read = configuration(FULL)
    group = read.cohort.groups["bio"]

    assert group.nominal == Resources(2500, 4 << 30)
    assert (group.borrowing_limit, group.lending_limit) == (Limits(cpu=1000), Limits(memory=1 << 30))
    assert (group.weight, group.queueing) == (0.5, QueueingStrategy.STRICT_FIFO)
    assert (group.reclaim, group.within_group) == (
        PreemptionPolicy.ANY,
        PreemptionPolicy.LOWER_OR_NEWER_EQUAL_PRIORITY,
    )
    assert read.cohort.share_strategies == (ShareStrategy.LESS_THAN_INITIAL_SHARE,)
    assert (read.capacity.resources, read.stall_seconds) == (Resources(8000, 16 << 30), 45)
    assert (read.groups[0].namespace, read.groups[0].checkpoint_policy.deadline_seconds) == ("biology", 60)


def test_what_is_not_written_is_as_in_kueue() -> None:
    read = configuration(BIO)
    group = read.cohort.groups["bio"]

    assert (group.reclaim, group.within_group) == (PreemptionPolicy.NEVER, PreemptionPolicy.NEVER)
    assert (group.weight, group.borrowing_limit, group.lending_limit) == (1.0, Limits(), Limits())
    assert read.cohort.share_strategies == ()
    assert read.capacity.resources == MACHINE
    assert read.groups[0].opt_in is False


def test_the_example_of_the_page_is_a_file() -> None:
    written = [line for line in (inspect.getdoc(module) or "").splitlines() if line.startswith("    ")]
    read = configuration("\n".join(written))

    assert read.stall_seconds == 30
    assert (read.groups[0].name, read.groups[0].checkpoint_policy.deadline_seconds) == ("bio", 60)


def test_without_a_file_one_group_has_the_machine() -> None:
    read = Configuration.single_group(machine_capacity(4, 16 << 30))

    assert read.cohort.groups["default"].nominal == Resources(4000, 15 << 30)


REFUSED = {
    "a watch that never waits": ("stallSeconds = 0\n" + BIO, "stallSeconds", "greater than or equal to 0.1"),
    "a word that Kueue does not have": (BIO + "colour = 1", "groups.0", "remove it"),
    "a negative quota": (BIO.replace("cpu = 2", "cpu = -2"), "groups.0.nominalQuota.cpu", "number of cores"),
    "a quota in no unit": (BIO.replace("4Gi", "4Gx"), "groups.0.nominalQuota.memory", "optional unit"),
    "a quota without memory": (BIO.replace(', memory = "4Gi"', ""), "groups.0.nominalQuota", "add it"),
    "more promised than there is": (BIO.replace("cpu = 2", "cpu = 5"), "groups.nominalQuota.cpu", "set capacity.cpu"),
    "lending more than it has": (BIO + "lendingLimit = {cpu = 3}", "groups.0.lendingLimit.cpu", "lower it"),
    "a negative weight": (BIO + "fairSharing = {weight = -1}", "groups.0.fairSharing.weight", "greater than or equal"),
    "a weight without end": (BIO + "fairSharing = {weight = inf}", "groups.0.fairSharing.weight", "finite"),
    "an unknown policy": (
        BIO + 'preemption = {withinClusterQueue = "Any"}',
        "groups.0.preemption.withinClusterQueue",
        "'LowerPriority'",
    ),
    "borrowWithinCohort without reclaim": (
        BIO + 'preemption = {borrowWithinCohort = {policy = "LowerPriority"}}',
        "groups.0.preemption.borrowWithinCohort",
        "change one",
    ),
    "borrowWithinCohort with fair sharing": (
        "[fairSharing]\n"
        + BIO
        + 'preemption = {reclaimWithinCohort = "Any", borrowWithinCohort = {policy = "LowerPriority"}}',
        "groups.preemption.borrowWithinCohort",
        "as in Kueue",
    ),
    "strategies in the wrong order": (
        '[fairSharing]\npreemptionStrategies = ["LessThanInitialShare", "LessThanOrEqualToFinalShare"]\n' + BIO,
        "fairSharing.preemptionStrategies",
        "before",
    ),
    "two groups of one name": (BIO.replace("2", "1") + BIO.replace("2", "1"), "groups.name", "its own"),
    "no groups": ("groups = []", "groups", "at least 1"),
    "a name that is no path segment": (BIO.replace("bio", "b/io"), "groups.0.name", "letters, digits"),
    "a policy out of range": (
        BIO + "checkpointPolicy = {deadlineSeconds = 0}",
        "groups.0.checkpointPolicy.deadlineSeconds",
        "greater than 0",
    ),
    "a capacity that is no table": ("capacity = 3\n" + BIO, "capacity", "dictionary"),
    "text that is not TOML": ("groups:\n- name: bio", "groups.toml", "at that line"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_it_is_refused_with_field_and_remedy(what: str) -> None:
    text, field, remedy = REFUSED[what]

    with pytest.raises(UsageError) as caught:
        configuration(text)

    assert caught.value.field == field
    assert remedy in caught.value.remedy


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"groups\.toml") as caught:
        Configuration.read(tmp_path / "groups.toml", MACHINE)

    assert caught.value.field == "config"
