"""Adapters that hold or release wrongly, and those that do not survive a restart."""

# mypy: allow-subclassing-any

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from msgspec.structs import replace

from cedana_sched.adapter.conformance.stage import yield_to_loop
from cedana_sched.adapter.contract import Preempted, PreemptionCancelled, Report
from cedana_sched.model import codec
from cedana_sched.model.preemption import Release, Signal, Verdict
from tests.unit.adapter.conformance.broken_toy import Broken, ToyDownError, changed


class LetsGoAtOnce(Broken):
    caught_by = (
        "an_eviction_waits_for_its_release",
        "a_hold_that_is_placed_twice_is_one",
        "a_gang_waits_and_goes_as_a_whole",
    )
    says = "was evicted, although .* held"

    async def hold(self, signal: Signal) -> float | None:
        await self._proceed(signal.uid, [victim.workload.uid for victim in signal.victims])
        return None


class HoldsUntilYesterday(Broken):
    caught_by = ("a_hold_that_is_placed_twice_is_one",)
    says = "before the preemption was seen"

    async def hold(self, signal: Signal) -> float | None:
        return signal.observed_at - 86_400


class ReleasesNobody(Broken):
    caught_by = (
        "a_victim_that_is_committed_is_evicted",
        "past_its_deadline_a_victim_is_evicted_without_a_snapshot",
        "a_repeated_release_is_harmless",
        "a_victim_that_ends_by_itself_holds_nobody_up",
        "who_is_alone_shares_no_gang_with_another_job",
    )
    says = "released and not evicted"

    async def release(self, release: Release) -> None:
        """Nothing."""


class KeepsWhomItMustLetGo(Broken):
    caught_by = ("past_its_deadline_a_victim_is_evicted_without_a_snapshot",)
    says = "released and not evicted"

    async def release(self, release: Release) -> None:
        if Verdict.EVICT not in release.verdicts.values():
            await super().release(release)


class EvictsWhomItMustKeep(Broken):
    caught_by = ("a_victim_that_is_to_be_kept_runs_on", "who_is_spared_runs_on")
    says = "was evicted, although"

    async def release(self, release: Release) -> None:
        await super().release(changed(release, verdicts=dict.fromkeys(release.verdicts, Verdict.EVICT)))


class ComplainsOfRepetitions(Broken):
    caught_by = ("a_repeated_release_is_harmless",)
    says = "NoSuchDecisionError"

    async def release(self, release: Release) -> None:
        await self._toy.proceed(release.signal_uid, list(release.verdicts))


class ReleasesEverything(Broken):
    caught_by = ("a_release_of_an_unknown_signal_releases_nothing",)
    says = "another preemption that was released"

    async def release(self, release: Release) -> None:
        for decision in tuple(self._toy.decisions.values()):
            await self._proceed(decision.uid, list(decision.pods))


class HidesThatItCouldNotTell(Broken):
    caught_by = ("a_scheduler_that_cannot_be_called_is_called_later",)
    says = "released and not evicted"

    async def _proceed(self, uid: str, pods: Any) -> None:
        if not self._toy.down:
            await super()._proceed(uid, pods)


class RaisesItsClientsErrors(Broken):
    caught_by = ("a_scheduler_that_cannot_be_called_is_called_later",)
    says = "ToyDownError"

    async def release(self, release: Release) -> None:
        if self._toy.down:
            raise ToyDownError
        await super().release(release)


class EndsTheFirstOfAGang(Broken):
    caught_by = (
        "a_gang_waits_and_goes_as_a_whole",
        "a_gang_goes_as_a_whole_after_a_restart",
        "a_gang_whose_release_was_decided_before_a_restart_goes_as_a_whole",
        "a_gang_whose_scheduler_is_faster_than_its_adapter_goes_as_a_whole",
    )
    says = "job1-1 .*not evicted"

    async def _proceed(self, uid: str, pods: Any) -> None:
        await super()._proceed(uid, pods[:1])


class LooksForVictimsThatEnded(Broken):
    caught_by = ("a_victim_that_ends_by_itself_holds_nobody_up", "a_victim_that_its_owner_gives_up_holds_nobody_up")
    says = "KeyError"

    async def release(self, release: Release) -> None:
        running = {pod.metadata.uid for pod in self._cluster.pods if not pod.finished}
        for uid in release.verdicts:
            running.remove(uid)
        await super().release(release)


class HearsNoSecondThoughts(Broken):
    caught_by = (
        "a_cancelled_preemption_is_reported",
        "who_is_spared_runs_on",
        "who_was_spared_is_preempted_anew",
        "what_was_taken_back_while_nobody_listened_evicts_nobody",
    )
    says = "no PreemptionCancelled"

    async def reports(self) -> AsyncIterator[Report]:
        async for report in super().reports():
            if not isinstance(report, PreemptionCancelled):
                yield report


class HearsNewsOnly(Broken):
    caught_by = (
        "what_is_pending_is_reported_again_after_a_restart",
        "what_is_pending_is_reported_again_to_a_reader_that_comes_back",
        "what_happened_while_nobody_listened_is_reported",
    )
    says = "no preemption of"

    async def reports(self) -> AsyncIterator[Report]:
        known = set(self._toy.decisions)
        async for report in super().reports():
            if not isinstance(report, Preempted) or report.signal.uid not in known:
                yield report


class ReleasesWhatItRemembers(Broken):
    caught_by = (
        "a_release_may_come_before_the_reports_are_read",
        "a_gang_whose_release_was_decided_before_a_restart_goes_as_a_whole",
    )
    says = "released and not evicted"

    async def reports(self) -> AsyncIterator[Report]:
        self._told = set()
        async for report in super().reports():
            if isinstance(report, Preempted):
                self._told.add(report.signal.uid)
            yield report

    async def release(self, release: Release) -> None:
        if release.signal_uid in getattr(self, "_told", ()):
            await super().release(release)


class NotesAReleaseBeforeItIsDone(Broken):
    caught_by = ("a_release_in_which_the_adapter_died_is_finished_after_a_restart",)
    says = "released and not evicted"

    async def release(self, release: Release) -> None:
        if await self._cluster.notes.read() == release.signal_uid.encode():
            return
        await self._cluster.notes.write(release.signal_uid.encode())
        await yield_to_loop(4)  # as a request of its client would take
        await super().release(release)


class NotesWhatItTellsForEver(Broken):
    caught_by = ("what_is_over_is_not_reported_after_a_restart",)
    says = "after a restart was reported"

    async def reports(self) -> AsyncIterator[Report]:
        if (noted := await self._cluster.notes.read()) is not None:
            yield Preempted(codec.decode(noted, Signal))
        async for report in super().reports():
            if isinstance(report, Preempted):
                await self._cluster.notes.write(codec.encode(report.signal))
            yield report


class PreemptsTheDeadAnew(Broken):
    caught_by = ("a_victim_that_ended_while_nobody_listened_is_not_preempted_anew",)
    says = "ended while there was no consumer, and after a restart was preempted again"

    async def reports(self) -> AsyncIterator[Report]:
        known = set(self._toy.decisions)
        async for report in super().reports():
            if isinstance(report, Preempted) and report.signal.uid in known:
                yield Preempted(replace(report.signal, uid=f"{report.signal.uid}-again"))
            else:
                yield report
