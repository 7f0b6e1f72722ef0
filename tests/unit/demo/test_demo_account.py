"""The closing account tells the truth, above all when the results differ."""

import dataclasses

import msgspec
import pytest

from cedana_sched.local.views import JobView
from demo.account import Account, Result, as_text


@pytest.fixture
def account(story: list[JobView]) -> Account:
    return Account(
        simulation=story[-1],
        training=story[7],
        seconds=31.2,
        reference_seconds=21.3,
        results=(Result("md.gro", "aa" * 32, "aa" * 32), Result("md.trr", "bb" * 32, "bb" * 32)),
        differences=(),
    )


def test_the_account_of_a_good_run(account: Account) -> None:
    assert account.succeeded
    text = as_text(account)
    for want in (
        "notice → committed           400ms (frozen after 20ms)",
        "place given → running again  250ms",
        "xgboost waited for its place  600ms",
        "40.0 MiB read, 20.0 MiB zero, 0 B already stored, 10.0 MiB stored",
        "work saved                   7.4s",
        "identical bit for bit to the uninterrupted run: yes (md.gro md.trr)",
        "md.gro           sha256 aaaaaaaaaaaaaaaa = aaaaaaaaaaaaaaaa",
    ):
        assert " ".join(want.split()) in " ".join(text.split())


@pytest.mark.parametrize(
    "results",
    [
        (),
        (Result("md.gro", "aa" * 32, "ab" * 32),),
        (Result("md.gro", None, "aa" * 32),),
        (Result("md.gro", None, None),),
    ],
    ids=["nothing compared", "another digest", "no result", "no result on both sides"],
)
def test_it_never_says_identical_without_equal_digests(account: Account, results: tuple[Result, ...]) -> None:
    doubtful = dataclasses.replace(account, results=results)
    assert not doubtful.identical
    assert not doubtful.succeeded
    assert "the uninterrupted run: NO" in as_text(doubtful)


def test_a_difference_found_by_the_check_is_shown(account: Account) -> None:
    text = as_text(dataclasses.replace(account, differences=("md.edr: differs from byte 7 on",)))
    assert "NO" in text
    assert "md.edr: differs from byte 7 on" in text


def test_a_run_that_was_never_restored_has_not_shown_anything(account: Account) -> None:
    never = dataclasses.replace(account, simulation=msgspec.structs.replace(account.simulation, restore=None))
    assert not never.succeeded
    assert "it was not restored" in as_text(never)


def test_a_cold_start_is_no_success(account: Account) -> None:
    restore = account.simulation.restore
    assert restore is not None
    cold = msgspec.structs.replace(restore, cold=True)
    assert not dataclasses.replace(
        account, simulation=msgspec.structs.replace(account.simulation, restore=cold)
    ).succeeded


def test_without_a_checkpoint_it_says_so(account: Account) -> None:
    bare = msgspec.structs.replace(account.simulation, checkpoint=None)
    assert "no snapshot was committed" in as_text(dataclasses.replace(account, simulation=bare))
