"""All that is known of a chaos run when it is over, and what follows from it alone. Pure.

What a replica is, is said by the programs: a checkpoint or a Restore belongs to the replica whose words came from its
pod. What our objects were, the audit log tells also of those that are gone.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from itertools import pairwise
from typing import TypeAlias

from cedana_sched.model.records import CheckpointStep
from tests.cluster.api.client import Object
from tests.cluster.fixtures.audit import Write
from tests.e2e.product.chaos.program import Word
from tests.e2e.product.chaos.world import Befallen
from tests.e2e.product.installation import COORDINATOR
from tests.e2e.product.rendering import NAMESPACE

Replica: TypeAlias = tuple[str, str, str]
"""Namespace, job, index."""

NODE_GOES_SECONDS = 3.0
"""A node's last words come so long before its fault is written down."""
LET_GO_SECONDS = 30.0
"""So long a workload whose checkpoint has failed may run on before its scheduler evicts it all the same."""
RENEWED_SECONDS = 4.0
"""Between two renewals of the coordinator's lease while it leads: twice what the chart sets."""
STARTS_SECONDS = 5.0
"""Where containerd ends while it starts a program, that says its first word so long before or after."""
_NODE_FAULTS = ("node-killed", "node-rebooted")
_CONTAINERD_FAULT = "containerd-restarted"
_LOSSES = {
    "CheckpointFailed",
    "ColdStart",
    "MissedByWebhook",
    "NotProtected",
    "RestoreFailed",
    "SnapshotQuarantined",
    "SnapshotDiverged",
}
"""Reasons of our Events that tell a person that work is lost, will be, or is not in what goes on."""


@dataclass(frozen=True)
class Account:
    """All that is known of a run.

    Attributes:
        words: in the order in which they came.
        node_of: from the address of a pod to its node.
        history: what befell the cluster.
        deleted: jobs, `namespace/name`, that were deleted on purpose.
        checkpoints, restores, holds: our objects at the end.
        events: Events of the workloads' namespaces.
        writes: the audit log.
        frozen: processes, in words, that are still frozen at the end.
        expected: jobs, `namespace/name`, with the number of their replicas.
    """

    words: Sequence[Word]
    node_of: Callable[[str], str]
    history: Sequence[Befallen] = ()
    deleted: frozenset[str] = frozenset()
    checkpoints: Sequence[Object] = ()
    restores: Sequence[Object] = ()
    holds: Sequence[Object] = ()
    events: Sequence[Object] = ()
    writes: Sequence[Write] = ()
    frozen: Sequence[str] = ()
    expected: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def lives(self) -> Mapping[str, Sequence[Word]]:
        """What each program said, by the name that it gave itself when it began."""
        lives: defaultdict[str, list[Word]] = defaultdict(list)
        for word in self.words:
            lives[word.name].append(word)
        return lives

    @cached_property
    def replicas(self) -> Mapping[Replica, Sequence[Word]]:
        """What each replica said, whatever program it was; but what is left over."""
        replicas: defaultdict[Replica, list[Word]] = defaultdict(list)
        for word in self.words:
            if not self.is_left_over(word):
                replicas[replica_of(word)].append(word)
        return replicas

    @cached_property
    def pods(self) -> Mapping[str, Replica]:
        """Which replica ran in a pod, by its uid."""
        return {word.pod: replica_of(word) for word in self.words}

    def beginnings(self) -> Iterator[tuple[Word, Word]]:
        """Where a replica's program is another one than before: the last word of the one, the first of the other."""
        for said in self.replicas.values():
            for before, now in pairwise(said):
                if before.name != now.name:
                    yield before, now

    def moves(self) -> Iterator[tuple[Word, Word]]:
        """Where a program is in another pod than before."""
        for said in self.lives.values():
            for before, now in pairwise(said):
                if before.pod != now.pod:
                    yield before, now

    def comes_back(self, word: Word) -> bool:
        """Whether it is the first word of a program in another pod than that in which it began: from a snapshot."""
        first = next(one for one in self.lives[word.name] if one.pod == word.pod)
        return first is word and self.lives[word.name][0] is not word

    def is_left_over(self, word: Word) -> bool:
        """Whether a program says it that no snapshot has been in, and that nobody counts on any more.

        Its kubelet ends its pod already: a Job's controller replaces a pod as soon as it is deleted, and both run until
        the first one has gone. Or the pod was deleted before it began. Or containerd has forgotten it.
        """
        if len(self._pods_of[word.name]) > 1:
            return False
        ends = self._ends.get(word.pod, math.inf)
        return ends <= word.at or self._began_deleted(word) or word.name in self._forgotten

    def _began_deleted(self, word: Word) -> bool:
        """Whether the pod's deletion had been accepted before the program began, and there was no snapshot of it."""
        first = self.lives[word.name][0]
        is_deleted = self._deletions.get(word.pod, math.inf) <= first.at
        return is_deleted and first.number == 0 and not self.had_snapshot(first)

    @cached_property
    def _deletions(self) -> Mapping[str, float]:
        """When the deletion of each pod was accepted, by its uid; pods of a name follow one another."""
        found: dict[str, float] = {}
        of_name: dict[tuple[str, str], str] = {}
        for one in sorted(self.writes, key=lambda write: write.answered):
            named = (one.namespace, one.name)
            if one.code >= 300:
                continue
            if (one.resource, one.verb) == ("pods/binding", "create"):
                of_name[named] = one.body["metadata"]["uid"]
            elif (one.resource, one.verb) == ("pods", "delete") and named in of_name:
                found.setdefault(of_name[named], one.answered.timestamp())
        return found

    @cached_property
    def _forgotten(self) -> frozenset[str]:
        """Programs that run on unseen, by their names: containerd has ended while it started them (its issue 7680).

        The kubelet has said that their start failed, and has started another one beside them.
        """
        latest = {first.pod: name for name, (first, *_) in self.lives.items()}
        return frozenset(
            name
            for name, (first, *_) in self.lives.items()
            if latest[first.pod] != name
            and any(abs(at - first.at) <= STARTS_SECONDS for at in self._failed_starts[first.pod])
            and any(
                one.kind == _CONTAINERD_FAULT
                and one.target == self.node_of(first.address)
                and one.began - STARTS_SECONDS <= first.at <= one.healed + STARTS_SECONDS
                for one in self.history
            )
        )

    @cached_property
    def _failed_starts(self) -> Mapping[str, Sequence[float]]:
        """When the kubelet said of a pod that a container could not be started, by the pod's uid."""
        found: defaultdict[str, list[float]] = defaultdict(list)
        for one in self.events:
            if one.get("reason") == "Failed":
                found[one["involvedObject"]["uid"]] += map(time_of, {one["firstTimestamp"], one["lastTimestamp"]})
        return found

    @cached_property
    def _ends(self) -> Mapping[str, float]:
        """When the kubelet began to end a pod, by its uid; a kubelet that was started anew publishes it again."""
        killed = [one for one in self.events if one.get("reason") == "Killing"]
        times = [(one["involvedObject"]["uid"], time_of(one["firstTimestamp"])) for one in killed]
        return dict(sorted(times, key=lambda pair: pair[1], reverse=True))

    @cached_property
    def _pods_of(self) -> Mapping[str, set[str]]:
        """In which pods each program has been, by its name."""
        return {name: {word.pod for word in said} for name, said in self.lives.items()}

    def was_deleted(self, word: Word) -> bool:
        return key(word) in self.deleted

    def was_lost(self, pod: Word, until: float) -> bool:
        """Whether the node on which this was said went away between then and another moment."""
        node = self.node_of(pod.address)
        return any(
            one.kind in _NODE_FAULTS and one.target == node and pod.at - NODE_GOES_SECONDS <= one.began <= until
            for one in self.history
        )

    def had_its_clock_set_apart(self, moment: float | None) -> bool:
        """Whether a coordinator that started then ran with libfaketime."""
        apart = [one for one in self.history if one.kind == "clock-apart"]
        return moment is not None and any(one.began - 1 <= moment <= one.healed for one in apart)

    def had_snapshot(self, word: Word) -> bool:
        """Whether a snapshot of this replica had been committed before it said that."""
        return any(
            self.pods.get(one["spec"]["podRef"]["uid"]) == replica_of(word)
            and one.get("status", {}).get("step") == CheckpointStep.READY
            and (committed := one["status"].get("commitTime"))
            and time_of(committed) < word.at
            for one in self.checkpoints
        )

    def failed(self, last: Word) -> bool:
        """Whether the checkpoint in which a pod said its last word failed, and its object says why."""
        return any(
            one["spec"]["podRef"]["uid"] == last.pod
            and one.get("status", {}).get("step") == CheckpointStep.FAILED
            and one["status"].get("message")
            and time_of(one["status"]["completionTime"]) > last.at - LET_GO_SECONDS
            for one in self.checkpoints
        )

    def said_cold(self, pod_uid: str) -> bool:
        """Whether the newest Restore of a pod says that it begins anew, and why; or an Event on the pod does."""
        found = [one for one in self.restores if one["spec"]["podRef"]["uid"] == pod_uid]
        if found:
            status = max(found, key=lambda one: str(one["spec"]["creationTime"])).get("status", {})
            if status.get("cold") and status.get("message"):
                return True
        return self.warned(pod_uid)

    def was_never_led(self, pod_uid: str) -> bool:
        """Whether nobody renewed the coordinator's lease from before the first word of a pod until after its last.

        What no webhook prepares, and is gone before the next one leads, nobody can speak of.
        """
        said = [word.at for word in self.words if word.pod == pod_uid]
        before = max((at for at in self._renewals if at < min(said)), default=-math.inf)
        after = min((at for at in self._renewals if at >= min(said)), default=math.inf)
        return bool(self._renewals) and after > max(said) and after - before > RENEWED_SECONDS

    @cached_property
    def _renewals(self) -> Sequence[float]:
        """When the coordinator's lease was renewed."""
        return [
            one.received.timestamp()
            for one in self.writes
            if (one.resource, one.namespace, one.name) == ("leases", NAMESPACE, COORDINATOR) and one.code < 300
        ]

    def warned(self, pod_uid: str) -> bool:
        """Whether a warning of ours was said of this pod."""
        return any(
            one.get("type") == "Warning"
            and one["involvedObject"].get("uid") == pod_uid
            and one.get("reason") in _LOSSES
            for one in self.events
        )


def replica_of(word: Word) -> Replica:
    namespace, index = word.remembered
    return namespace, word.job, index


def who(word: Word) -> str:
    return "/".join(replica_of(word))


def key(word: Word) -> str:
    return f"{word.remembered[0]}/{word.job}"


def time_of(text: str) -> float:
    """Epoch seconds of a time in an object."""
    return datetime.fromisoformat(text).timestamp()
