"""Protected pods by the job and the gang that they belong to, and which of them were let go.

Whoever makes a pod labels it as he likes. So pods of one job or gang are those of one namespace, and of which one,
Armada says: by the run that it names, which pods of others do not know, else by what was submitted.
"""

from __future__ import annotations

from collections.abc import Callable

from cedana_sched.kube.index import Index
from cedana_sched.kube.objects import Pod
from cedana_sched.kube.watching import Informer
from cedana_sched_armada.jobs import Gang, gang_of, job_of, run_of


class JobPods:
    """Pods of jobs, as the mirror holds them.

    Args:
        mirror: of protected pods.
        let_go: says of a pod that its deletion is no preemption, or that there is nothing to save; called once of each.
    """

    def __init__(self, informer: Informer[Pod], let_go: Callable[[Pod], None]) -> None:
        self._by_job = Index(job_of, informer)
        self._by_gang = Index(gang_of, informer)
        self._let_go = let_go
        self._let_go_uids: set[str] = set()

    def of(self, job: str) -> tuple[Pod, ...]:
        """All that say so, of whichever namespace."""
        return self._by_job.of(job)

    def namespaces_of(self, job: str, run: str) -> frozenset[str]:
        """Where there are pods that name this run of a job; empty, any run."""
        return frozenset(pod.metadata.namespace for pod in self.of(job) if run in {"", run_of(pod)})

    def with_gang(self, job: str, namespace: str) -> tuple[tuple[Pod, ...], Gang | None]:
        """A job's pods in a namespace, or those of its whole gang there."""
        pods = tuple(pod for pod in self.of(job) if pod.metadata.namespace == namespace)
        gang = gang_of(pods[0]) if pods else None
        if gang is not None:  # what has ended without having been deleted may be left of an earlier gang of that name
            there = (pod for pod in self._by_gang.of(gang) if pod.metadata.namespace == namespace)
            pods = tuple(pod for pod in there if job_of(pod) == job or not pod.ended_by_itself)
        return pods, gang

    def let_go(self, job: str, *, pod_uid: str = "", namespace: str = "") -> None:
        """All of a job, or the one with this uid, or those of this namespace."""
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
        """The pod is no more."""
        self._let_go_uids.discard(uid)
