"""Adapters that tell the wrong thing, or tell it wrongly."""

# mypy: allow-subclassing-any

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any, ClassVar

from cedana_sched.adapter.contract import Ended, Preempted, PreemptionCancelled, Report
from cedana_sched.adapter.protected_pods import identity_of, workload_of
from cedana_sched.kube.builtin_kinds import Pod
from cedana_sched.model.identity import Identity
from cedana_sched.model.policy import CheckpointPolicy
from cedana_sched.model.preemption import Release, Signal, Victim
from tests.unit.adapter.conformance.broken_toy import Broken, ChangedSignals, ChangedVictims, changed
from tests.unit.adapter.conformance.starting_toy import StartingToyAdapter, StartingToyStage


class CallsItselfOtherwise(Broken):
    caught_by = ("it_is_found_by_its_name",)
    says = "is not installed"
    name: ClassVar[str] = "nobody"


class LacksRelease(Broken):
    caught_by = ("it_is_found_by_its_name",)
    says = "lacks a member"
    release = None


class SpeaksForAnother(ChangedSignals):
    caught_by = ("a_preemption_is_reported",)
    says = "names 'kueue'"

    def changed(self, signal: Signal) -> Signal:
        return changed(signal, adapter="kueue")


class NamesWhatIsNotThere(ChangedVictims):
    caught_by = ("the_victim_is_named_as_it_runs",)
    says = "node=''"

    def victim(self, victim: Victim) -> Victim:
        return changed(victim, workload=changed(victim.workload, node=""))


class ForgetsTheIndex(ChangedVictims):
    caught_by = ("a_gang_is_one_preemption",)
    says = "index=0.*index=0"

    def victim(self, victim: Victim) -> Victim:
        return changed(victim, identity=changed(victim.identity, index=0))


class MistakesIdentities(ChangedVictims):
    caught_by = ("the_victim_has_its_own_identity",)
    says = "reported was bio/job1-0/0"

    def victim(self, victim: Victim) -> Victim:
        return changed(victim, identity=Identity(victim.workload.namespace, victim.workload.name))


class NamesWhoeverRunsInItsPlace(ChangedVictims):
    """An identity of each incarnation: nothing ever continues."""

    caught_by = ("who_comes_back_is_the_same_and_is_preempted_anew",)
    says = "under another identity"

    def victim(self, victim: Victim) -> Victim:
        return changed(victim, identity=Identity(victim.workload.namespace, victim.workload.uid))


class IgnoresPolicies(ChangedVictims):
    caught_by = ("the_victim_has_its_own_policy",)
    says = "600 s"

    def victim(self, victim: Victim) -> Victim:
        return changed(victim, policy=CheckpointPolicy())


class ForgetsTheDeadline(ChangedSignals):
    caught_by = ("the_schedulers_own_deadline_is_reported",)
    says = "says so: None"

    def changed(self, signal: Signal) -> Signal:
        return changed(signal, not_after=None)


class NamesEveryTellingAnew(ChangedSignals):
    caught_by = (
        "what_the_scheduler_decides_twice_is_one_preemption",
        "what_is_pending_is_reported_again_after_a_restart",
        "what_is_pending_is_reported_again_to_a_reader_that_comes_back",
        "a_gang_goes_as_a_whole_after_a_restart",
    )
    says = "is called|several uids"
    numbers = itertools.count()

    def changed(self, signal: Signal) -> Signal:
        return changed(signal, uid=f"{signal.uid}.{next(self.numbers)}")

    async def release(self, release: Release) -> None:
        await super().release(changed(release, signal_uid=release.signal_uid.partition(".")[0]))


class NamesPreemptionsByTheirVictims(ChangedSignals):
    caught_by = ("who_was_spared_is_preempted_anew", "who_comes_back_is_the_same_and_is_preempted_anew")
    says = "one uid|no preemption of"
    decisions: ClassVar[dict[str, str]] = {}

    def changed(self, signal: Signal) -> Signal:
        uid = str(signal.victims[0].identity)
        self.decisions[uid] = signal.uid
        return changed(signal, uid=uid)

    async def reports(self) -> AsyncIterator[Report]:
        async for report in super().reports():
            if isinstance(report, PreemptionCancelled):
                report = PreemptionCancelled(next(reversed(self.decisions)), report.why)  # noqa: PLW2901 - the same
            yield report

    async def release(self, release: Release) -> None:
        await super().release(changed(release, signal_uid=self.decisions[release.signal_uid]))


class TellsTheLivingFromTheDeadByNothing(Broken):
    """Every change of a pod that it has told of is a preemption to it."""

    caught_by = ("late_news_of_what_is_over_begin_nothing",)
    says = "reported again as"

    async def reports(self) -> AsyncIterator[Report]:
        queue: asyncio.Queue[Report] = asyncio.Queue()
        told: list[Signal] = []

        def tell(before: Pod | None, now: Pod | None) -> None:
            for signal in told[:1]:
                queue.put_nowait(Preempted(changed(signal, uid=f"{signal.uid}-again")))

        async def pass_on() -> None:
            async for report in super(TellsTheLivingFromTheDeadByNothing, self).reports():
                queue.put_nowait(report)
                told.extend([report.signal] if isinstance(report, Preempted) else [])

        self._cluster.pods.subscribe(tell)
        passing = asyncio.create_task(pass_on())
        try:
            while True:
                yield await queue.get()
        finally:
            passing.cancel()
            self._cluster.pods.unsubscribe(tell)


class TakesEveryEndForAPreemption(Broken):
    caught_by = ("a_workload_that_its_owner_gives_up_is_no_preemption",)
    says = "reported as a preemption"

    async def reports(self) -> AsyncIterator[Report]:
        queue: asyncio.Queue[Report] = asyncio.Queue()

        def tell(before: Pod | None, now: Pod | None) -> None:
            if before is not None and now is None:
                victim = Victim(workload_of(before), identity_of(before), CheckpointPolicy())
                queue.put_nowait(Preempted(Signal(before.metadata.uid, self.name, (victim,), "it is gone", 1.0)))

        self._cluster.pods.subscribe(tell)
        try:
            while True:
                yield await queue.get()
        finally:
            self._cluster.pods.unsubscribe(tell)


class AsksForStrangersToo(Broken):
    """Nobody answers for them, and they are held for ever."""

    caught_by = ("who_is_not_opted_in_is_evicted_as_ever",)
    says = "not opted in and was not evicted"

    async def _proceed(self, uid: str, pods: Any) -> None:
        if isinstance(pods, list):  # as a release does
            await super()._proceed(uid, pods)


class TellsOfPodsThatOthersTellOf(Broken):
    caught_by = ("a_start_is_reported_with_its_identity", "who_is_not_opted_in_starts_and_ends_unreported")
    says = "whoever"

    async def reports(self) -> AsyncIterator[Report]:
        yield Ended("whoever", "it is gone")
        async for report in super().reports():
            yield report


class ReadsOneReport(Broken):
    caught_by = ("a_cancelled_preemption_is_reported",)
    says = r"reports\(\) ended"

    async def reports(self) -> AsyncIterator[Report]:
        async for report in super().reports():
            yield report
            return


class TellsMembersOneByOne(Broken):
    caught_by = ("a_gang_is_one_preemption",)
    says = "and the gang is"

    async def reports(self) -> AsyncIterator[Report]:
        async for report in super().reports():
            if not isinstance(report, Preempted):
                yield report
                continue
            for victim in report.signal.victims:
                yield Preempted(changed(report.signal, uid=victim.workload.uid, victims=(victim,)))


class ThinksAllAreOneGang(ChangedVictims):
    caught_by = ("who_is_alone_shares_no_gang_with_another_job",)
    says = "one gang: all"

    def victim(self, victim: Victim) -> Victim:
        return changed(victim, gang="all")


class BrokenStarts(StartingToyAdapter):
    caught_by: ClassVar[tuple[str, ...]] = ()
    says: ClassVar[str]
    stage: ClassVar[Any] = StartingToyStage


class HearsNewPodsOnly(BrokenStarts):
    caught_by = ("a_start_that_waits_is_reported_again_after_a_restart", "an_end_while_nobody_listened_is_reported")
    says = "no Starting|no Ended"

    def pods_at_first(self) -> tuple[Pod, ...]:
        return ()


class TellsNoEnds(BrokenStarts):
    caught_by = ("an_end_is_reported", "an_end_while_nobody_listened_is_reported")
    says = "no Ended"

    def told_of(self, pod: Pod, *, is_gone: bool) -> Report:
        return super().told_of(pod, is_gone=False) if not pod.finished else Ended("somebody", "it is gone")
