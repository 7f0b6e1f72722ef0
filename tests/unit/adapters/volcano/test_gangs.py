"""Who goes with an evicted pod: nobody, or the whole gang."""

from __future__ import annotations

from typing import Any, cast

import pytest

from cedana_sched.kube.objects import Metadata, Pod, PodStatus
from cedana_sched.kube.watching import Mirror
from cedana_sched_volcano.gangs import Gangs
from cedana_sched_volcano.objects import GROUP_NAME, PodGroup, PodGroupSpec


def pod(name: str, group: str | None = "md", phase: str = "Running", *, deleted: bool = False) -> Pod:
    annotations = {} if group is None else {GROUP_NAME: group}
    deletion = "2026-05-01T12:00:00Z" if deleted else None
    metadata = Metadata(
        name=name, namespace="bio", uid=f"uid-{name}", annotations=annotations, deletion_timestamp=deletion
    )
    return Pod(metadata, status=PodStatus(phase=phase))


def family(min_member: int | None, *pods: Pod) -> tuple[str | None, list[str]]:
    """Of the first pod: its gang, and the names of all that go."""
    mirror: Mirror[Pod] = Mirror(cast("Any", None))
    groups: Mirror[PodGroup] = Mirror(cast("Any", None))
    if min_member is not None:
        groups._put(PodGroup(Metadata(name="md", namespace="bio", uid="group-uid"), PodGroupSpec(min_member)))
    mirror._replace(pods)
    found = Gangs(groups, mirror).family_of(pods[0])
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
