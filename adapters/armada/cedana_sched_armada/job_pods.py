"""Protected pods by job and gang, and which of them were released.

A pod's author controls its labels. So pods of a job or gang must share a namespace, and Armada determines which: by the
run, whose id pods of other tenants cannot have, else by the submission.
"""

from __future__ import annotations

from collections.abc import Callable

from cedana_sched.kube.index import Index
from cedana_sched.kube.objects import Pod
from cedana_sched.kube.watching import Informer
from cedana_sched_armada.jobs import Gang, gang_of, job_of, run_of


class JobPods:
    """Cached pods of jobs.

    Args:
        informer: of protected pods.
        let_go: marks a pod's deletion as no preemption, or as having nothing to save; called once per pod.
    """

    def __init__(self, informer: Informer[Pod], let_go: Callable[[Pod], None]) -> None:
        self._by_job = Index(job_of, informer)
        self._by_gang = Index(gang_of, informer)
        self._let_go = let_go
        self._let_go_uids: set[str] = set()

    def of(self, job: str) -> tuple[Pod, ...]:
        """Return all pods labelled with the job, in any namespace."""
        return self._by_job.of(job)

    def namespaces_of(self, job: str, run: str) -> frozenset[str]:
        """Return the namespaces of pods labelled with this run of a job; empty: any run."""
        return frozenset(pod.metadata.namespace for pod in self.of(job) if run in {"", run_of(pod)})

    def with_gang(self, job: str, namespace: str) -> tuple[tuple[Pod, ...], Gang | None]:
        """Return a job's pods in a namespace, or those of its whole gang there."""
        pods = tuple(pod for pod in self.of(job) if pod.metadata.namespace == namespace)
        gang = gang_of(pods[0]) if pods else None
        if gang is not None:  # pods that ended without deletion may be left of an earlier gang of that name
            there = (pod for pod in self._by_gang.of(gang) if pod.metadata.namespace == namespace)
            pods = tuple(pod for pod in there if job_of(pod) == job or not pod.ended_by_itself)
        return pods, gang

    def let_go(self, job: str, *, pod_uid: str = "", namespace: str = "") -> None:
        """Release all pods of a job, or the one with this uid, or those of this namespace."""
        for pod in self.of(job):
            if pod_uid in {"", pod.metadata.uid} and namespace in {"", pod.metadata.namespace}:
                self.let_pod_go(pod)

    def let_pod_go(self, pod: Pod) -> None:
        if not pod.finished and pod.metadata.uid not in self._let_go_uids:
            self._let_go_uids.add(pod.metadata.uid)
            self._let_go(pod)

    def was_let_go(self, uid: str) -> bool:
        return uid in self._let_go_uids

    def gone(self, uid: str) -> None:
        """Drop state of a deleted pod."""
        self._let_go_uids.discard(uid)
