"""Who goes with an evicted pod: nobody, or the whole gang."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from cedana_sched.kube.builtin_kinds import Metadata, Pod, PodStatus
from cedana_sched.kube.watching import Informer
from cedana_sched.model.objects import names
from cedana_sched.model.objects.eviction_mark import EvictionMark, serialized_mark
from cedana_sched_volcano.gangs import GangResolver
from cedana_sched_volcano.objects import GROUP_NAME, PodGroup, PodGroupSpec, PodGroupStatus

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)


def pod(
    name: str,
    group: str | None = "md",
    phase: str = "Running",
    *,
    deleted: bool = False,
    asked: float | None = None,
    last: float = -1,
) -> Pod:
    """`asked` and `last`: seconds from now at which its scheduler has asked for it."""
    annotations = {} if group is None else {GROUP_NAME: group}
    if asked is not None:
        times = ((NOW + timedelta(seconds=at)).isoformat(timespec="milliseconds") for at in (asked, last))
        annotations[names.EVICTION_REQUESTED] = serialized_mark(EvictionMark("volcano", *times))
    deletion = "2026-05-01T12:00:00Z" if deleted else None
    metadata = Metadata(
        name=name, namespace="bio", uid=f"uid-{name}", annotations=annotations, deletion_timestamp=deletion
    )
    return Pod(metadata, status=PodStatus(phase=phase))


def resolver(min_member: int | None, *pods: Pod, running: int = 0) -> GangResolver:
    """Of these pods. `running`: by the PodGroup's status."""
    informer: Informer[Pod] = Informer(cast("Any", None))
    groups: Informer[PodGroup] = Informer(cast("Any", None))
    if min_member is not None:
        metadata = Metadata(name="md", namespace="bio", uid="group-uid")
        groups._put(PodGroup(metadata, PodGroupSpec(min_member), PodGroupStatus(running)))
    informer._replace(pods)
    return GangResolver(groups, informer, lambda: NOW)


def family(min_member: int | None, *pods: Pod, running: int = 0) -> tuple[str | None, list[str]]:
    """Of the first pod: its gang, and the names of all that go."""
    found = resolver(min_member, *pods, running=running).family_evicted_with(pods[0])
    return found.gang, [one.metadata.name for one in found.pods]


def test_a_gang_that_would_break_goes_as_a_whole() -> None:
    assert family(3, pod("c"), pod("a"), pod("b")) == ("group-uid", ["a", "b", "c"])


def test_a_gang_that_can_spare_one_loses_one() -> None:
    assert family(2, pod("c"), pod("a"), pod("b")) == (None, ["c"])


@pytest.mark.parametrize("min_member", [None, 1])
def test_what_is_no_gang_goes_alone(min_member: int | None) -> None:
    assert family(min_member, pod("a"), pod("b")) == (None, ["a"])
    assert family(min_member, pod("a", group=None), pod("b")) == (None, ["a"])


def test_members_that_run_no_more_are_not_counted() -> None:
    others = pod("b"), pod("c", phase="Succeeded"), pod("d", deleted=True), pod("e", group="other")
    assert family(2, pod("a"), *others) == ("group-uid", ["a", "b"])


def test_who_goes_already_is_not_counted_among_those_that_stay() -> None:
    a, b, c, d = pod("a", asked=-9), pod("b", asked=-5), pod("c", asked=-2), pod("d")
    assert family(2, a, b, c, d) == (None, ["a"])
    assert family(2, b, a, c, d) == (None, ["b"])
    assert family(2, c, a, b, d) == ("group-uid", ["c", "d"]), "of four that need two, the third one is needed"
    assert family(2, d, a, b, c) == ("group-uid", ["c", "d"])


def test_who_is_asked_for_no_more_stays() -> None:
    assert family(2, pod("c", asked=-2), pod("a", asked=-60, last=-50), pod("b"), pod("d")) == (None, ["c"])


def test_a_gang_that_breaks_at_once_is_the_same_of_whomever_it_is_asked() -> None:
    pods = [pod("a", asked=-9), pod("b", asked=-5), pod("c")]
    for first in pods:
        others = (one for one in pods if one is not first)
        assert family(3, first, *others) == ("group-uid", ["a", "b", "c"])


def test_members_that_are_not_protected_count_by_the_schedulers_word() -> None:
    assert family(2, pod("a"), pod("b"), running=4) == (None, ["a"])
    assert family(4, pod("a"), pod("b"), running=4) == ("group-uid", ["a", "b"])


def test_the_schedulers_word_may_be_of_before_the_last_eviction() -> None:
    assert family(2, pod("a"), pod("b"), pod("c", deleted=True), running=3) == ("group-uid", ["a", "b"])


def test_a_pod_is_of_a_gang_if_it_cannot_run_without_the_others() -> None:
    assert resolver(2, pod("a")).gang_of(pod("a")) == "group-uid"
    assert resolver(1, pod("a")).gang_of(pod("a")) is None
    assert resolver(None, pod("a")).gang_of(pod("a")) is None
    assert resolver(2, pod("a")).gang_of(pod("b", group=None)) is None
