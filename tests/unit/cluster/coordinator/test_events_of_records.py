"""What is told stands on the objects that people look at: the Job above all, and its pod."""

from __future__ import annotations

from typing import Any, cast

from cedana_sched.cluster.coordinator.event_publisher import EventPublisher
from cedana_sched.coordinator.core import PublishEvent, Severity
from cedana_sched.kube.builtin_kinds import Metadata, OwnerReference, Pod
from cedana_sched.kube.events import EventRecorder, ObjectEvent
from cedana_sched.kube.watching import Informer
from cedana_sched.model.preemption import HeldObject, WorkloadRef

_JOB = HeldObject("batch/v1", "Job", "bio", "md", "job-uid")
_OWNER = OwnerReference("batch/v1", "Job", "md", "job-uid", controller=True)
_POD = WorkloadRef("pod-uid", "bio", "md-0-abcde", "node-1")


class _Recorder:
    def __init__(self) -> None:
        self.told: list[ObjectEvent] = []

    def record_event(self, event: ObjectEvent) -> None:
        self.told.append(event)


def _told(tell: PublishEvent, *pods: Pod) -> list[tuple[str, str]]:
    recorder = _Recorder()
    informer: Informer[Pod] = Informer(cast("Any", None))
    informer._replace(pods)
    EventPublisher(cast("EventRecorder", recorder), informer).on_event(tell)
    return [(one.involved["kind"], one.involved["uid"]) for one in recorder.told]


def _pod(uid: str = _POD.uid) -> Pod:
    return Pod(Metadata("md-0-abcde", "bio", uid, resource_version="1", owner_references=(_OWNER,)))


def test_checkpoint_is_told_on_the_held_job_and_on_the_pod() -> None:
    assert _told(PublishEvent("CheckpointStarted", "-", workload=_POD, held=_JOB)) == [
        ("Job", "job-uid"),
        ("Pod", "pod-uid"),
    ]


def test_return_is_told_on_the_job_that_controls_the_pod() -> None:
    assert _told(PublishEvent("Restored", "-", workload=_POD), _pod()) == [("Job", "job-uid"), ("Pod", "pod-uid")]


def test_job_of_another_pod_of_the_same_name_hears_nothing() -> None:
    assert _told(PublishEvent("Restored", "-", workload=_POD), _pod("another")) == [("Pod", "pod-uid")]


def test_warning_of_an_eviction_that_is_the_pods_own_is_told_on_them() -> None:
    warning = PublishEvent("ReleaseFailed", "-", Severity.WARNING, victims=(_POD,))
    assert _told(warning) == [("Pod", "pod-uid")]
    assert _told(PublishEvent("EvictionReleased", "-", victims=(_POD,))) == [], "each of them is a write"
