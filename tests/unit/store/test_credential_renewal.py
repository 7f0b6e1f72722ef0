"""Credentials are renewed before they expire, once for many callers, and outlast a giver that does not answer."""

from __future__ import annotations

import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from cedana_sched.model.errors import StoreUnavailableError
from cedana_sched.store.credential_renewal import (
    AGAIN_SECONDS,
    EXPIRED_BEFORE_SECONDS,
    REFUSED_AGAIN_SECONDS,
    CredentialsRefusedError,
    RenewedCredentials,
    SessionCredentials,
)

LIFE = 900.0


class Giver:
    """Gives credentials that are numbered, or raises what is put in its way."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.given = 0
        self.asked = 0
        self.problem: StoreUnavailableError | None = None
        self.seconds = LIFE
        self.renewed = RenewedCredentials(self.fetch, lambda: self.now)

    def fetch(self) -> SessionCredentials:
        self.asked += 1
        if self.problem is not None:
            raise self.problem
        self.given += 1
        return SessionCredentials(f"key-{self.given}", "secret", "token", self.seconds)

    def key(self) -> str:
        return self.renewed.current()[0].access_key


def test_they_are_used_again_until_half_of_their_life_is_over() -> None:
    giver = Giver()
    assert [giver.key(), giver.key()] == ["key-1", "key-1"]
    giver.now += LIFE / 2 - 1
    assert giver.key() == "key-1"
    giver.now += 1
    assert giver.key() == "key-2"
    assert giver.asked == 2


def test_those_that_the_store_refuses_are_replaced_at_once_and_used_where_none_are_given() -> None:
    giver = Giver()
    assert not giver.renewed.mark_refused(), "nobody had any"
    giver.key()
    assert not giver.renewed.mark_refused(), "it is not because they are old"
    giver.now += REFUSED_AGAIN_SECONDS
    assert giver.renewed.mark_refused()
    giver.problem = StoreUnavailableError("nobody answers")
    assert giver.key() == "key-1", "it may have been the refusal of one request"
    giver.now += AGAIN_SECONDS
    giver.problem = None
    assert [giver.key(), giver.key()] == ["key-2", "key-2"]


def test_they_expire_also_while_the_machine_is_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    """CLOCK_MONOTONIC stands still then."""
    elapsed = {time.CLOCK_BOOTTIME: 1000.0, time.CLOCK_MONOTONIC: 1000.0}
    monkeypatch.setattr(time, "clock_gettime", elapsed.__getitem__)
    monkeypatch.setattr(time, "monotonic", lambda: elapsed[time.CLOCK_MONOTONIC])
    numbers = itertools.count(1)
    renewed = RenewedCredentials(lambda: SessionCredentials(f"key-{next(numbers)}", "secret", "token", LIFE))
    renewed.current()
    elapsed[time.CLOCK_BOOTTIME] += LIFE
    assert renewed.current()[0].access_key == "key-2"


def test_how_long_they_are_valid_counts_from_when_they_were_wanted() -> None:
    giver = Giver()
    assert giver.renewed.current()[1] == LIFE
    giver.now += 100
    assert giver.renewed.current()[1] == LIFE - 100


@pytest.mark.parametrize("problem", [StoreUnavailableError("no answer"), CredentialsRefusedError("not yours")])
def test_what_fails_harms_nobody_while_the_old_ones_are_valid(problem: StoreUnavailableError) -> None:
    giver = Giver()
    giver.key()
    giver.problem = problem
    giver.now += LIFE - EXPIRED_BEFORE_SECONDS - 1
    assert giver.key() == "key-1"
    giver.now += 1
    with pytest.raises(type(problem)):
        giver.key()
    giver.problem = None
    giver.now += AGAIN_SECONDS
    assert giver.key() == "key-2"


def test_a_failure_counts_for_all_callers_for_a_moment() -> None:
    giver = Giver()
    giver.problem = CredentialsRefusedError("not yours")
    for _ in range(5):
        with pytest.raises(CredentialsRefusedError, match="not yours"):
            giver.key()
    assert giver.asked == 1
    giver.now += AGAIN_SECONDS
    with pytest.raises(CredentialsRefusedError):
        giver.key()
    assert giver.asked == 2


def test_many_callers_fetch_once() -> None:
    entered, go_on = threading.Event(), threading.Event()
    asked = []

    def fetch() -> SessionCredentials:
        asked.append(1)
        entered.set()
        go_on.wait(60)
        return SessionCredentials("key", "secret", "token", LIFE)

    renewed = RenewedCredentials(fetch)
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(renewed.current) for _ in range(8)]
        entered.wait(60)
        go_on.set()
        assert {answer.result()[0].access_key for answer in answers} == {"key"}
    assert len(asked) == 1


def test_nobody_waits_for_whoever_renews_them() -> None:
    giver = Giver()
    giver.key()
    giver.now += LIFE / 2
    entered, go_on = threading.Event(), threading.Event()
    fetch = giver.fetch

    def slowly() -> SessionCredentials:
        entered.set()
        go_on.wait(60)
        return fetch()

    giver.renewed._fetch = slowly
    with ThreadPoolExecutor(1) as pool:
        renewing = pool.submit(giver.key)
        assert entered.wait(60)
        assert giver.key() == "key-1"
        go_on.set()
        assert renewing.result() == "key-2"


def test_those_that_expire_at_once_are_none() -> None:
    giver = Giver()
    giver.seconds = EXPIRED_BEFORE_SECONDS
    with pytest.raises(StoreUnavailableError, match="valid for 15 s only"):
        giver.key()


def test_no_secret_is_shown() -> None:
    shown = repr(SessionCredentials("key", "the-secret", "the-token", LIFE))
    assert "the-secret" not in shown
    assert "the-token" not in shown
