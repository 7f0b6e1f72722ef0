"""Whoever may make PodGroups may make any number of them, and write into each what he likes: little of it is kept."""

from __future__ import annotations

import msgspec

from cedana_sched.kube.builtin_kinds import Metadata, PartialObject
from cedana_sched.kube.response_decoding import read
from cedana_sched.model.objects import names
from cedana_sched_volcano.objects import GROUP_NAME, POD_GROUPS, PodGroup
from cedana_sched_volcano.pod_queues import PodQueueResolver

KEPT_BYTES = 1_024


def made(**spec: object) -> PodGroup:
    metadata = {
        "name": "g", "namespace": "lab", "uid": "group", "resourceVersion": "7",
        "annotations": {names.ID: "x" * 10_000}, "labels": {names.PROTECTED: "y"},
        "finalizers": [f"{number}.example.org/{'f' * 200}" for number in range(20)],
        "ownerReferences": [
            {"apiVersion": "v1", "kind": "k" * 2_000, "name": "o", "uid": "u", "controller": True}
        ],
    }  # fmt: skip
    found = read(POD_GROUPS, msgspec.json.encode({"metadata": metadata, "spec": spec}), PodGroup)
    assert isinstance(found, PodGroup)
    return found


def test_little_is_kept_of_a_group_whose_owner_has_written_much() -> None:
    assert len(msgspec.json.encode(made(queue="q" * 10_000))) < KEPT_BYTES


def test_names_and_the_queue_of_a_group_are_kept() -> None:
    group = made(queue="q" * 253, minMember=3)
    assert group == PodGroup(Metadata("g", "lab", "group", "7"), type(group.spec)(3, "q" * 253))


def test_queue_whose_name_begins_as_a_longer_one_is_not_meant() -> None:
    """Tenants choose what stands there: cut to the name of a Queue, it would be another one."""
    longest = "q" * 253
    queue = PartialObject(Metadata(longest))
    queues = PodQueueResolver(
        lambda name: queue if name == longest else None, lambda name, namespace: made(queue=longest + "q" * 1_000)
    )
    assert queues.queue_of_new_pod({GROUP_NAME: "g"}, "lab", "") is None
