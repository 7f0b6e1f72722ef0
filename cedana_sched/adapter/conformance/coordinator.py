"""Minimal coordinator, indistinguishable to an adapter from the real one: reads reports, holds and releases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from contextlib import aclosing, asynccontextmanager
from typing import Any, TypeVar, cast

from cedana_sched.adapter.conformance.findings import NonConformanceError, expect
from cedana_sched.adapter.conformance.stage import RunningWorkload, Stage, yield_to_loop
from cedana_sched.adapter.contract import (
    Adapter,
    Ended,
    HoldsEvictions,
    Preempted,
    PreemptionCancelled,
    Report,
    Starting,
)
from cedana_sched.model.errors import RetryableError
from cedana_sched.model.preemption import Release, Signal, Verdict

T = TypeVar("T")


class Coordinator:
    """Collects one adapter's reports in `received`. Every signal is held on arrival."""

    def __init__(self, stage: Stage, adapter: Adapter) -> None:
        self.stage = stage
        self.adapter = adapter
        self.received: list[Report] = []
        self._failure: Exception | None = None
        self._news = asyncio.Event()

    # -- reports

    @asynccontextmanager
    async def reading_reports(self) -> AsyncIterator[None]:
        """Read the reports inside the block."""
        reading = asyncio.create_task(self._read(), name="reports")
        try:
            yield
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        self._raise_failure()

    async def wait_for_signal(self, victim: RunningWorkload, *, other_than: Collection[str] = ()) -> Signal:
        """Wait for the held signal of this workload's preemption; `other_than`: uids of earlier signals."""

        def matches(report: Report) -> Signal | None:
            if not isinstance(report, Preempted) or report.signal.uid in other_than:
                return None
            return report.signal if victim.uid in victims_of(report.signal) else None

        return await self._wait_for_report(matches, f"no preemption of {victim} was reported")

    async def wait_for_cancellation(self, signal: Signal) -> PreemptionCancelled:
        """Wait for the cancellation of the signal."""

        def matches(report: Report) -> PreemptionCancelled | None:
            is_it = isinstance(report, PreemptionCancelled) and report.signal_uid == signal.uid
            return cast("PreemptionCancelled", report) if is_it else None

        return await self._wait_for_report(
            matches, f"preemption {signal.uid} was cancelled, and no PreemptionCancelled reports it"
        )

    async def wait_for_start(self, workload: RunningWorkload) -> Starting:
        """Wait for the start report of the workload."""

        def matches(report: Report) -> Starting | None:
            return report if isinstance(report, Starting) and report.workload.uid == workload.uid else None

        return await self._wait_for_report(matches, f"{workload} got its place, and no Starting says so")

    async def wait_for_end(self, workload: RunningWorkload) -> Ended:
        """Wait for the end report of the workload."""

        def matches(report: Report) -> Ended | None:
            return report if isinstance(report, Ended) and report.workload_uid == workload.uid else None

        return await self._wait_for_report(matches, f"{workload} has ended, and no Ended says so")

    def preemptions(self, since: int = 0) -> set[str]:
        """Return the uids of all signals received; `since`: skip that many reports."""
        return {report.signal.uid for report in self.received[since:] if isinstance(report, Preempted)}

    def cancellations(self) -> set[str]:
        """Return the uids of cancelled signals."""
        return {report.signal_uid for report in self.received if isinstance(report, PreemptionCancelled)}

    # -- releases

    async def release(self, signal: Signal, verdict: Verdict) -> Release:
        """Decide a release, and call the adapter until it returns."""
        release = await self.decide(signal, verdict)
        await self.deliver_release(release)
        return release

    async def decide(self, signal: Signal, verdict: Verdict) -> Release:
        """Decide the same verdict for all victims, without calling the adapter."""
        victims = victims_of(signal)
        release = Release(signal.uid, dict.fromkeys(victims, verdict), dict.fromkeys(victims, "the test says so"))
        await self.stage.on_release_decided(release)
        return release

    async def deliver_release(self, release: Release) -> None:
        """Call the adapter's `release` until it returns once, as the contract requires."""

        async def wait_until_released() -> None:
            while not await self.try_release_call(release):
                await self.stage.wait_until_reported()

        await self.wait_within_patience(wait_until_released(), f"release of {release.signal_uid} did not return")

    async def try_release_call(self, release: Release) -> bool:
        """Call the adapter's `release` once; False if the adapter raised a retryable error."""
        try:
            await self.adapter.release(release)
        except RetryableError:
            return False
        except Exception as error:
            message = f"release raised {error!r}; what may succeed later is a RetryableError"
            raise NonConformanceError(message) from error
        return True

    async def interrupt_release_call(self, release: Release, turns: int) -> None:
        """Call the adapter's `release`, and cancel the call after `turns` event loop turns if it is unfinished."""
        releasing = asyncio.create_task(self.try_release_call(release), name="release that is cut off")
        await yield_to_loop(turns)
        releasing.cancel()
        await asyncio.wait({releasing})
        if not releasing.cancelled():
            releasing.result()

    async def wait_until_evicted(self, victim: RunningWorkload) -> None:
        """Wait until the scheduler has evicted the workload."""
        await self.wait_within_patience(self.stage.wait_until_evicted(victim), f"{victim} was released and not evicted")

    async def check_final_eviction(self, *victims: RunningWorkload) -> None:
        """Wait until the scheduler has evicted them, and check that no cancellation is reported."""
        for victim in victims:
            await self.wait_until_evicted(victim)
        await self.stage.wait_until_reported()
        taken_back = self.cancellations()
        expect(not taken_back, f"an eviction went through, and was reported as cancelled: {taken_back}")

    async def check_still_running(self, victim: RunningWorkload, although: str) -> None:
        """Check that the workload is not evicted."""
        await self.stage.wait_until_reported()
        expect(not await self.stage.is_evicted(victim), f"{victim} was evicted, although {although}")

    async def wait_within_patience(self, work: Coroutine[Any, Any, T], otherwise: str) -> T:
        """Await `work` for at most `Stage.patience_seconds`."""
        seconds = self.stage.patience_seconds
        try:
            async with asyncio.timeout(seconds):
                return await work
        except TimeoutError:
            self._raise_failure()
            raise NonConformanceError(f"{otherwise} within {seconds:g} s") from None

    async def _wait_for_report(self, matches: Callable[[Report], T | None], otherwise: str) -> T:
        async def look() -> T:
            seen = 0
            while True:
                for report in self.received[seen:]:
                    if (found := matches(report)) is not None:
                        return found
                seen = len(self.received)
                self._raise_failure()
                self._news.clear()
                await self._news.wait()

        return await self.wait_within_patience(look(), otherwise)

    async def _read(self) -> None:
        try:
            async with aclosing(self.adapter.reports()) as reports:  # type: ignore[type-var]  # a generator, by custom
                async for report in reports:
                    await self._process_report(report)
                    self._news.set()
            self._failure = NonConformanceError("reports() ended; it must not end before its consumer")
        except Exception as error:  # noqa: BLE001 - whatever an adapter raises is a finding
            self._failure = error
        self._news.set()

    async def _process_report(self, report: Report) -> None:
        if isinstance(report, Preempted):
            if isinstance(self.adapter, HoldsEvictions):
                await self.adapter.hold(report.signal)
            await self.stage.on_hold_created(report.signal)
        self.received.append(report)

    def _raise_failure(self) -> None:
        if isinstance(self._failure, NonConformanceError):
            raise self._failure
        if self._failure is not None:
            raise NonConformanceError(f"the adapter broke off: {self._failure!r}") from self._failure


@asynccontextmanager
async def running_coordinator(stage: Stage) -> AsyncIterator[Coordinator]:
    """Yield a coordinator with a new adapter of this stage; entering again simulates a restart of both."""
    async with stage.adapter() as adapter:
        coordinator = Coordinator(stage, adapter)
        async with coordinator.reading_reports():
            yield coordinator


def victims_of(signal: Signal) -> tuple[str, ...]:
    """Return the uids of the signal's victims."""
    return tuple(victim.workload.uid for victim in signal.victims)
