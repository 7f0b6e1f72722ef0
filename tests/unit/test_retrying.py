"""Pauses between attempts: random, in bounds that grow; and calls that are made until they succeed."""

from __future__ import annotations

import asyncio
import random

import pytest

from cedana_sched import retrying
from cedana_sched.kube.errors import AbsentError, ApiError, RefusedByServerError
from cedana_sched.retrying import AWAITED, CHORES, Backoff, Profile, retry

PROFILES = {name: one for name, one in vars(retrying).items() if isinstance(one, Profile)}


def _pauses(profile: Profile, count: int) -> list[float]:
    backoff = Backoff(profile)
    return [backoff.next_pause() for _ in range(count)]


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_pauses_stay_between_the_floor_and_a_bound_that_doubles(profile: Profile) -> None:
    for _ in range(200):
        for number, pause in enumerate(_pauses(profile, 12)):
            assert 0 < profile.min <= pause <= min(profile.multiplier * 2**number, profile.max) + 0.001


@pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)
def test_clients_that_fail_together_do_not_return_together(profile: Profile) -> None:
    first = sorted(_pauses(profile, 1)[0] for _ in range(1_000))
    tenth = (profile.multiplier - profile.min) / 10
    for number in range(10):
        bound = profile.min + number * tenth
        assert 50 <= sum(bound <= pause < bound + tenth for pause in first) <= 160


def test_pauses_repeat_with_the_seed() -> None:
    random.seed(7)
    pauses = _pauses(AWAITED, 9)
    random.seed(7)
    assert _pauses(AWAITED, 9) == pauses
    assert _pauses(AWAITED, 9) != pauses


def test_backoff_that_is_reset_begins_anew() -> None:
    backoff = Backoff(CHORES)
    for _ in range(10_000):  # also after many failures
        pause = backoff.next_pause()
    assert pause <= CHORES.max
    assert backoff.failures == 10_000
    backoff.reset()
    assert (backoff.failures, backoff.next_pause() <= CHORES.multiplier) == (0, True)


@pytest.mark.usefixtures("short_pauses")
async def test_every_refusal_is_said_and_the_call_made_again() -> None:
    refusals: list[ApiError] = [RefusedByServerError("no rights"), AbsentError("no node")]
    said: list[str] = []

    async def call(answer: str) -> str:
        if refusals:
            raise refusals.pop(0)
        return answer

    def failed(what: str, error: ApiError) -> None:
        said.append(f"{what}: {error}")

    assert await retry("reading", lambda: call("well"), ApiError, on_failure=failed) == "well"
    assert said == ["reading: no rights", "reading: no node"]


async def test_any_other_error_is_raised_at_once() -> None:
    async def call() -> None:
        raise KeyError("a defect")

    with pytest.raises(KeyError):
        await retry("reading", call, ApiError)


async def test_deadline_of_the_caller_ends_it() -> None:
    async def call() -> None:
        raise AbsentError("no node")

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await retry("reading", call, ApiError)
