"""What must hold at the end of a run, judged from what the programs said, the audit log and our objects.

Pure: every rule reads an `Account` and yields sentences. A rule that yields nothing holds. The numbers are those of the
list "What always holds" in docs/architecture.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from cedana_sched.model.objects.eviction_mark import STALE_SECONDS
from cedana_sched.model.records import CheckpointStep, HoldStep, RestoreStep
from tests.e2e.product.chaos.account import Account, key, who
from tests.e2e.product.chaos.holding import (
    HELD,
    TAKEN_UP_SECONDS,
    WEBHOOKS,
    pods_being_saved,
    refusals,
    spans,
    unmarked,
)
from tests.e2e.product.chaos.parts_ended import endings

LATE_SECONDS = 2.0
"""A request may be on its way for so long when its hold's deadline passes."""

Rule = Callable[[Account], Iterator[str]]


def one_copy_at_a_time(account: Account) -> Iterator[str]:
    """1. Two processes never run the same identity from one snapshot."""
    for name, said in account.lives.items():
        gone: set[str] = set()
        for before, now in pairwise(said):
            if now.pod != before.pod:
                gone.add(before.pod)
            if now.pod in gone:
                yield f"{who(now)} ({name}) counts in pod {now.pod} after it had begun to count in pod {before.pod}"
                break
    for said in account.replicas.values():
        over: set[str] = set()
        for before, now in pairwise(said):
            if now.name != before.name:
                over.add(before.name)
            if now.name in over and account.comes_back(now):
                over.discard(now.name)
            if now.name in over:
                yield f"{who(now)} runs twice: {now.name} counts on after {before.name} has begun"
                break


def no_silent_cold_start(account: Account) -> Iterator[str]:
    """2. What should have continued and did not says so."""
    for before, now in account.beginnings():
        if account.was_deleted(now) or not account.had_snapshot(now):
            continue
        if account.comes_back(now):  # from before another program had begun in its place, whose work is left
            is_said = account.failed(before) or account.warned(before.pod) or account.was_never_led(before.pod)
            if not (is_said or account.was_lost(before, now.at)):
                yield f"{who(now)} came back in pod {now.pod} without what {before.pod} had counted: {before.number}"
        elif not account.said_cold(now.pod) and not account.was_never_led(now.pod):
            yield f"{who(now)} began anew in pod {now.pod} after count {before.number}, and nothing says why"


def no_damaged_memory(account: Account) -> Iterator[str]:
    """3. A chunk that does not match its digest is never used."""
    for word in {word.name: word for word in account.words if not word.is_intact}.values():
        yield f"{who(word)} ({word.name}) found its memory damaged at count {word.number}"


def holds_end_by_their_deadline(account: Account) -> Iterator[str]:
    """4. Every hold ends by its deadline, whatever dies."""
    held, without_mark, saved = spans(account.writes), unmarked(account.writes), pods_being_saved(account.writes)
    for (resource, refused), moments in refusals(account.writes).items():
        announced = held.get(refused, [])
        # who has not asked for a pod for so long has chosen otherwise; Kueue goes on wanting a Job
        asks_on = STALE_SECONDS if resource == "pods" else TAKEN_UP_SECONDS
        unannounced: list[float] = []
        for moment in moments:
            if any(begin - LATE_SECONDS <= moment <= end + LATE_SECONDS for begin, end in announced):
                unannounced.clear()
                continue
            if unannounced and moment - unannounced[-1] > asks_on:
                unannounced.clear()  # another eviction
            unannounced.append(moment)
            is_marked = not any(unannounced[0] <= at <= moment for at in without_mark.get(refused, ()))
            times = 1 if is_marked else WEBHOOKS
            if resource == "pods" and any(begin <= unannounced[0] <= end for begin, end in saved):
                times += 1  # the webhooks doubt for so long that it is meant, too
            if moment - unannounced[0] > TAKEN_UP_SECONDS * times + LATE_SECONDS:
                yield f"{'/'.join(refused)} was held {moment - unannounced[0]:.1f} s outside of every hold's time"
                break


def nothing_twice(account: Account) -> Iterator[str]:
    """5. Between freeze and kill the workload executes nothing. 6. A failed checkpoint costs nothing."""
    for said in account.lives.values():
        for before, now in pairwise(said):
            if now.number > before.number or account.was_deleted(now):
                continue
            if account.was_lost(before, now.at):
                continue
            if now.pod != before.pod and (account.failed(before) or account.warned(before.pod)):
                continue
            where = "in the same pod" if now.pod == before.pod else f"in pod {now.pod}"
            yield f"{who(now)} counted {before.number} in pod {before.pod}, then {now.number} {where}: work done twice"


def no_work_is_lost_without_a_word(account: Account) -> Iterator[str]:
    """2 and 6, for what had no snapshot yet: its node went, or something says why it could not be saved."""
    for before, now in account.beginnings():
        if account.was_deleted(now) or account.had_snapshot(now) or account.was_lost(before, now.at):
            continue
        if account.failed(before) or account.warned(before.pod) or account.said_cold(now.pod):
            continue
        if account.was_never_led(before.pod):
            continue
        yield f"{who(now)} had counted to {before.number} in pod {before.pod} and was never saved; nothing says why"


def nothing_crosses_namespaces(account: Account) -> Iterator[str]:
    """7. A snapshot never crosses its namespace."""
    for word in {one.pod: one for one in account.words if one.remembered[0] != one.found[0]}.values():
        yield f"{word.job} of {word.remembered[0]} runs in {word.found[0]}"


def replicas_stay_themselves(account: Account) -> Iterator[str]:
    """8. Replica i continues as replica i."""
    for word in {one.pod: one for one in account.words if one.remembered[1] != one.found[1]}.values():
        yield f"{who(word)} runs in the pod of replica {word.found[1]}"


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
    for job, pods in account.expected.items():
        indices = {word.remembered[1] for word in account.words if key(word) == job}
        if len(indices) < pods:
            yield f"{job}: only {len(indices)} of {pods} replicas have run"


def only_workloads_are_held(account: Account) -> Iterator[str]:
    """10. System namespaces and our own are never held."""
    workloads = {one.split("/")[0] for one in (*account.expected, *account.deleted)}
    for namespace in sorted({one.namespace for one in account.writes if HELD in one.message and one.code == 429}):
        if namespace not in workloads:
            yield f"something was held in {namespace}"


def no_component_ends_by_itself(account: Account) -> Iterator[str]:
    """A fault ends no component, but that a leader who could not keep its lease has to end.

    A process whose clock libfaketime sets apart may crash by that: it jumped to an address that was no code, once.
    """
    for ending in endings(account.writes):
        if ending.has_crashed and account.had_its_clock_set_apart(ending.started):
            continue
        if not (ending.is_of_a_fault or ending.gave_up_its_lease):
            words = ending.message or ending.reason or "without a word"
            yield f"{ending.pod} ended with status {ending.status}: {words}"


RULES: Sequence[Rule] = (
    one_copy_at_a_time,
    no_silent_cold_start,
    no_damaged_memory,
    holds_end_by_their_deadline,
    nothing_twice,
    no_work_is_lost_without_a_word,
    nothing_crosses_namespaces,
    replicas_stay_themselves,
    every_phase_ends,
    only_workloads_are_held,
    no_component_ends_by_itself,
)


def judge(account: Account) -> list[str]:
    """Every breach of every rule, in words."""
    return [f"{rule.__name__}: {breach}" for rule in RULES for breach in rule(account)]
