"""Protected pods by the job and the gang that they belong to, and which of them were let go."""

from __future__ import annotations

from collections.abc import Callable

from cedana_sched.kube.index import Index
from cedana_sched.kube.objects import Pod
from cedana_sched.kube.watching import Mirror
from cedana_sched_armada.jobs import Gang, gang_of, job_of


class JobPods:
    """Pods of jobs, as the mirror holds them.

    Args:
        mirror: of protected pods.
        let_go: says of a pod that its deletion is no preemption, or that there is nothing to save; called once of each.
    """

    def __init__(self, mirror: Mirror[Pod], let_go: Callable[[Pod], None]) -> None:
        self._by_job = Index(job_of, mirror)
        self._by_gang = Index(gang_of, mirror)
        self._let_go = let_go
        self._let_go_uids: set[str] = set()

    def of(self, job: str) -> tuple[Pod, ...]:
        return self._by_job.of(job)

    def with_gang(self, job: str) -> tuple[tuple[Pod, ...], Gang | None]:
        """A job's pods, or those of its whole gang."""
        pods = self.of(job)
        gang = gang_of(pods[0]) if pods else None
        if gang is not None:  # what has ended without having been deleted may be left of an earlier gang of that name
            pods = tuple(pod for pod in self._by_gang.of(gang) if job_of(pod) == job or not pod.ended_by_itself)
        return pods, gang

    def let_go(self, job: str, pod_uid: str = "") -> None:
        """All of a job, or the one with this uid."""
        for pod in self.of(job):
            if pod_uid in {"", pod.metadata.uid}:
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
