"""Protected pods by job and gang, and which of them were released.

A pod's author controls its labels. So pods of a job or gang must share a namespace, and Armada determines which: by the
run, whose id pods of other tenants cannot have, else by the submission.
"""

from __future__ import annotations

from collections.abc import Callable

from cedana_sched.kube.builtin_kinds import Pod
from cedana_sched.kube.index import Index
from cedana_sched.kube.watching import Informer
from cedana_sched_armada.job_of_pod import Gang, gang_of, job_of, run_of


class JobPodIndex:
    """Cached pods of jobs.

    Args:
        informer: of protected pods.
        on_pod_released: marks a pod's deletion as no preemption, or as having nothing to save; called once per pod.
    """

    def __init__(self, informer: Informer[Pod], on_pod_released: Callable[[Pod], None]) -> None:
        self._by_job = Index(job_of, informer)
        self._by_gang = Index(gang_of, informer)
        self._on_pod_released = on_pod_released
        self._released_uids: set[str] = set()

    def pods_of(self, job: str) -> tuple[Pod, ...]:
        """Return all pods labelled with the job, in any namespace."""
        return self._by_job.objects_of(job)

    def pod_of(self, job: str, uid: str) -> Pod | None:
        """Return the job's pod with this uid; None if it is gone."""
        return next((pod for pod in self.pods_of(job) if pod.metadata.uid == uid), None)

    def namespaces_of(self, job: str, run: str) -> frozenset[str]:
        """Return the namespaces of pods labelled with this run of a job; empty: any run."""
        return frozenset(pod.metadata.namespace for pod in self.pods_of(job) if run in {"", run_of(pod)})

    def pods_with_gang(self, job: str, namespace: str) -> tuple[tuple[Pod, ...], Gang | None]:
        """Return a job's pods in a namespace, or those of its whole gang there."""
        pods = tuple(pod for pod in self.pods_of(job) if pod.metadata.namespace == namespace)
        gang = gang_of(pods[0]) if pods else None
        if gang is not None:  # pods that ended without deletion may be left of an earlier gang of that name
            there = (pod for pod in self._by_gang.objects_of(gang) if pod.metadata.namespace == namespace)
            pods = tuple(pod for pod in there if job_of(pod) == job or not pod.ended_by_itself)
        return pods, gang

    def release_job_pods(self, job: str, *, pod_uid: str = "", namespace: str = "") -> None:
        """Release all pods of a job, or the one with this uid, or those of this namespace."""
        for pod in self.pods_of(job):
            if pod_uid in {"", pod.metadata.uid} and namespace in {"", pod.metadata.namespace}:
                self.release_pod(pod)

    def release_pod(self, pod: Pod) -> None:
        if not pod.finished and pod.metadata.uid not in self._released_uids:
            self._released_uids.add(pod.metadata.uid)
            self._on_pod_released(pod)

    def is_released(self, uid: str) -> bool:
        return uid in self._released_uids

    def forget_pod(self, uid: str) -> None:
        """Drop state of a deleted pod."""
        self._released_uids.discard(uid)
