"""What must hold at the end of a run, judged from what the programs said, the audit log and our objects.

Pure: every rule reads an `Account` and yields sentences. A rule that yields nothing holds. The numbers are those of the
list "What always holds" in docs/architecture.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise

from cedana_sched.model.records import CheckpointStep, HoldStep, RestoreStep
from tests.cluster.api.client import Object
from tests.cluster.fixtures.audit import Write
from tests.e2e.product.chaos.program import Word
from tests.e2e.product.chaos.world import Befallen

HELD = "Held for checkpoint by cedana"
LATE_SECONDS = 2.0
"""A request may be on its way for so long when its hold's deadline passes."""
NODE_GOES_SECONDS = 3.0
"""A node's last words come so long before its fault is written down."""
_NODE_FAULTS = ("node-killed", "node-rebooted")


@dataclass(frozen=True)
class Account:
    """All that is known of a run.

    Attributes:
        words: in the order in which they came.
        node_of: from the address of a pod to its node.
        history: what befell the cluster.
        deleted: jobs, `namespace/name`, that were deleted on purpose.
        checkpoints, restores, holds: our objects at the end.
        writes: the audit log.
        components: pods of the product at the end.
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
    writes: Sequence[Write] = ()
    components: Sequence[Object] = ()
    frozen: Sequence[str] = ()
    expected: Mapping[str, int] = field(default_factory=dict)

    def lives(self) -> dict[str, list[Word]]:
        """What each program said, by the name that it gave itself when it began."""
        lives: defaultdict[str, list[Word]] = defaultdict(list)
        for word in self.words:
            lives[word.name].append(word)
        return lives

    def was_lost(self, pod: Word, until: float) -> bool:
        """Whether the node on which this was said went away between then and another moment."""
        node = self.node_of(pod.address)
        return any(
            one.kind in _NODE_FAULTS and one.target == node and pod.at - NODE_GOES_SECONDS <= one.began <= until
            for one in self.history
        )

    def failed(self, pod_uid: str) -> str | None:
        """Why a checkpoint of this pod failed, as its object says."""
        for one in self.checkpoints:
            if one["spec"]["pod"]["uid"] == pod_uid and one["status"].get("step") == CheckpointStep.FAILED:
                return str(one["status"].get("message") or "no reason given")
        return None

    def restore_of(self, pod_uid: str) -> Object | None:
        """The newest Restore of a pod."""
        found = [one for one in self.restores if one["spec"]["pod"]["uid"] == pod_uid]
        return found[-1] if found else None


Rule = Callable[[Account], Iterator[str]]


def one_copy_at_a_time(account: Account) -> Iterator[str]:
    """1. Two processes never run the same identity from one snapshot."""
    for name, said in account.lives().items():
        gone: set[str] = set()
        for before, now in pairwise(said):
            if now.pod != before.pod:
                gone.add(before.pod)
            if now.pod in gone:
                yield f"{_who(now)} ({name}) counts in pod {now.pod} after it had begun to count in pod {before.pod}"
                break
    replicas: defaultdict[tuple[str, str, str], list[Word]] = defaultdict(list)
    for word in account.words:
        replicas[(word.job, *word.remembered)].append(word)
    for said in replicas.values():
        over: set[str] = set()
        for before, now in pairwise(said):
            if now.name != before.name:
                over.add(before.name)
            if now.name in over:
                yield f"{_who(now)} runs twice: {now.name} counts on after {before.name} has begun"
                break


def no_silent_cold_start(account: Account) -> Iterator[str]:
    """2. What should have continued and did not says so."""
    for before, now in _beginnings(account):
        if now is None or _key(now) in account.deleted or not _had_snapshot(account, now):
            continue
        restore = account.restore_of(now.pod)
        if restore is None or not restore["status"].get("cold") or not restore["status"].get("message"):
            yield f"{_who(now)} began anew in pod {now.pod} after count {before.number}, and nothing says why"


def no_damaged_memory(account: Account) -> Iterator[str]:
    """3. A chunk that does not match its digest is never used."""
    for name in {word.name: word for word in account.words if not word.is_intact}.values():
        yield f"{_who(name)} ({name.name}) found its memory damaged at count {name.number}"


def holds_end_by_their_deadline(account: Account) -> Iterator[str]:
    """4. Every hold ends by its deadline, whatever dies."""
    for hold in account.holds:
        held, deadline = hold["spec"].get("held") or {}, _time(hold["status"]["deadline"])
        name, namespace = held.get("name"), hold["metadata"]["namespace"]
        for write in account.writes:
            is_of_it = write.namespace == namespace and write.name == name and HELD in write.message
            if is_of_it and write.code == 429 and write.received.timestamp() > deadline + LATE_SECONDS:
                others = [one for one in account.holds if (one["spec"].get("held") or {}).get("name") == name]
                if all(_time(one["status"]["deadline"]) + LATE_SECONDS < write.received.timestamp() for one in others):
                    yield f"{namespace}/{name} was still held {write.received.timestamp() - deadline:.1f} s too long"
                    break


def nothing_twice(account: Account) -> Iterator[str]:
    """5. Between freeze and kill the workload executes nothing. 6. A failed checkpoint costs nothing."""
    for said in account.lives().values():
        for before, now in pairwise(said):
            if now.number > before.number or _key(now) in account.deleted:
                continue
            if account.was_lost(before, now.at) or (account.failed(before.pod) and now.pod != before.pod):
                continue
            where = "in the same pod" if now.pod == before.pod else f"in pod {now.pod}"
            yield f"{_who(now)} counted {before.number} in pod {before.pod}, then {now.number} {where}: work done twice"


def nothing_crosses_namespaces(account: Account) -> Iterator[str]:
    """7. A snapshot never crosses its namespace."""
    for word in {one.pod: one for one in account.words if one.remembered[0] != one.found[0]}.values():
        yield f"{word.job} of {word.remembered[0]} runs in {word.found[0]}"


def replicas_stay_themselves(account: Account) -> Iterator[str]:
    """8. Replica i continues as replica i."""
    for word in {one.pod: one for one in account.words if one.remembered[1] != one.found[1]}.values():
        yield f"{_who(word)} runs in the pod of replica {word.found[1]}"


def every_phase_ends(account: Account) -> Iterator[str]:
    """9. Nothing stays in an intermediate phase; nothing is left frozen; every replica has run."""
    kinds = {
        "Checkpoint": (account.checkpoints, (CheckpointStep.READY, CheckpointStep.FAILED)),
        "PreemptionHold": (account.holds, (HoldStep.RELEASED,)),
        "Restore": (account.restores, (RestoreStep.ENDED, RestoreStep.FAILED)),
    }
    for kind, (found, last) in kinds.items():
        for one in found:
            step = one.get("status", {}).get("step")
            if step not in last:
                yield f"{kind} {one['metadata']['namespace']}/{one['metadata']['name']} stays {step}"
    yield from (f"still frozen: {one}" for one in account.frozen)
    for key, pods in account.expected.items():
        indices = {word.remembered[1] for word in account.words if _key(word) == key}
        if len(indices) < pods:
            yield f"{key}: only {len(indices)} of {pods} replicas have run"


def only_workloads_are_held(account: Account) -> Iterator[str]:
    """10. System namespaces and our own are never held."""
    workloads = {key.split("/")[0] for key in (*account.expected, *account.deleted)}
    for namespace in sorted({one.namespace for one in account.writes if HELD in one.message and one.code == 429}):
        if namespace not in workloads:
            yield f"something was held in {namespace}"


def no_component_ends_by_itself(account: Account) -> Iterator[str]:
    """A fault ends no component: one that was killed ends by SIGKILL, one that is deleted by SIGTERM and status 0."""
    for pod in account.components:
        for status in pod["status"].get("containerStatuses") or ():
            ended = status.get("lastState", {}).get("terminated") or {}
            if ended and ended.get("exitCode") not in (0, 137, 255):  # 255: its node went away
                yield f"{pod['metadata']['name']} ended with status {ended.get('exitCode')}: {ended.get('message', '')}"


RULES: Sequence[Rule] = (
    one_copy_at_a_time,
    no_silent_cold_start,
    no_damaged_memory,
    holds_end_by_their_deadline,
    nothing_twice,
    nothing_crosses_namespaces,
    replicas_stay_themselves,
    every_phase_ends,
    only_workloads_are_held,
    no_component_ends_by_itself,
)


def judge(account: Account) -> list[str]:
    """Every breach of every rule, in words."""
    return [f"{rule.__name__}: {breach}" for rule in RULES for breach in rule(account)]


def figures(account: Account) -> dict[str, int]:
    """What the run was made of: with nothing in it, nothing can break."""
    lives = account.lives().values()
    moves = [(before, now) for said in lives for before, now in pairwise(said) if now.pod != before.pod]
    begun = [now for _, now in _beginnings(account) if now is not None and _key(now) not in account.deleted]
    return {
        "faults": len(account.history),
        "words": len(account.words),
        "programs": len(account.lives()),
        "evictions held": len(account.holds),
        "continued in another pod": len(moves),
        "rewound, their node lost": sum(now.number <= before.number for before, now in moves),
        "begun anew, and said so": sum(_had_snapshot(account, one) for one in begun),
        "begun anew, never saved": sum(not _had_snapshot(account, one) for one in begun),
        "checkpoints failed": sum(one["status"].get("step") == CheckpointStep.FAILED for one in account.checkpoints),
        "deleted in a hold": len(account.deleted),
    }


def _beginnings(account: Account) -> Iterator[tuple[Word, Word | None]]:
    """Where a replica's program is another one than before: the last word of the one, the first of the other."""
    replicas: defaultdict[tuple[str, str, str], list[Word]] = defaultdict(list)
    for word in account.words:
        replicas[(word.job, *word.remembered)].append(word)
    for said in replicas.values():
        for before, now in pairwise(said):
            if before.name != now.name:
                yield before, now


def _had_snapshot(account: Account, word: Word) -> bool:
    """Whether a snapshot of this replica had been committed before it said that."""
    return any(
        one["metadata"]["namespace"] == word.remembered[0]
        and one["spec"]["identity"]["id"] == word.job
        and str(one["spec"]["identity"].get("index", 0)) == word.remembered[1]
        and one["status"].get("step") == CheckpointStep.READY
        and (committed := one["status"].get("committedAt"))
        and _time(committed) < word.at
        for one in account.checkpoints
    )


def _who(word: Word) -> str:
    return f"{word.remembered[0]}/{word.job}/{word.remembered[1]}"


def _key(word: Word) -> str:
    return f"{word.remembered[0]}/{word.job}"


def _time(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
