"""What is written of open preemptions: no more than can be read again, of each owner as much as of the others."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from cedana_sched_armada import ledger
from cedana_sched_armada.events import JobSet
from cedana_sched_armada.ledger import AwaitedJob, Member, OpenPreemption, encode_within_limit
from tests.unit.adapters.armada.tenants_pods import text

_WIDE = [chr(number) for number in range(0x20000, 0x2A6DF)]


@pytest.fixture
def chosen() -> random.Random:
    return random.Random(1)


def _case(chosen: random.Random, queue: str, *, pods: int = 1, policy: int = 0, name: str = "set") -> OpenPreemption:
    job, run = text(26, chosen), str(uuid.UUID(int=chosen.getrandbits(128)))
    members = tuple(
        Member(
            job, run, "team", f"armada-{job}", pod=f"armada-{job}-0", pod_uid=text(36, chosen),
            policy=text(policy, chosen) or None, started_at=chosen.random() * 1e9, runs=True,
        )
        for _ in range(pods)
    )  # fmt: skip
    return OpenPreemption(f"{job}@{run}", JobSet(queue, name), text(20, chosen), job, members, 1.0, 1.0, 2.0)


def _noted(*cases: OpenPreemption) -> set[str]:
    written = encode_within_limit({one.job_set: "1700000000000-1" for one in cases}, cases, {})
    assert len(written) <= ledger.MOST_BYTES
    return _uids(ledger._decode_state(written).cases)


def _uids(cases: Iterable[OpenPreemption]) -> set[str]:
    return {one.uid for one in cases}


def test_long_names_of_job_sets_are_within_the_bound(chosen: random.Random) -> None:
    """512 characters, as `job_of_pod.LONGEST_NAME` allows."""
    cases = [_case(chosen, "ml", name="".join(chosen.choices(_WIDE, k=512))) for _ in range(1000)]
    assert len(_noted(*cases)) > 200


def test_one_preemption_more_than_fits_leaves_the_others_noted(chosen: random.Random) -> None:
    cases = [_case(chosen, "q") for _ in range(6000)]
    counts = [len(_noted(*cases[:some])) for some in (3000, 4000, 5000, 6000)]
    assert min(counts) >= 3000, counts


@pytest.mark.parametrize("policy", [0, 30_000])
def test_jobs_of_one_queue_that_come_back_keep_nothing_of_others_out(chosen: random.Random, policy: int) -> None:
    """Each in a job set of its own, which its owner has named."""
    theirs = {
        text(26, chosen): AwaitedJob(JobSet("mallory", "".join(chosen.choices(_WIDE, k=512))), "team", "id")
        for _ in range(800)
    }
    cases = [_case(chosen, f"q{number}") for number in range(300)]
    cases += [_case(chosen, "mallory", policy=policy) for _ in range(50)]
    ours = {text(26, chosen): AwaitedJob(JobSet(f"q{number}", "set"), "team", "id") for number in range(600)}
    streams = dict.fromkeys((one.job_set for one in theirs.values()), "1700000000000-1")
    written = encode_within_limit(streams, cases, theirs | ours)
    assert len(written) <= ledger.MOST_BYTES
    noted = ledger._decode_state(written)
    assert _uids(noted.cases) >= _uids(cases[:300])
    assert noted.awaited.items() >= ours.items()
    assert len(noted.awaited) > 600, "there is room for more"
    assert {one for one, _ in noted.streams} == {one.job_set for one in noted.awaited.values()} & streams.keys()


@pytest.mark.parametrize("large", [1, 3])
@pytest.mark.parametrize("policy", [250_000, 150_000, 30_000])
def test_large_preemptions_of_one_queue_keep_those_of_others_noted(
    chosen: random.Random, large: int, policy: int
) -> None:
    theirs = [_case(chosen, "mallory", pods=4, policy=policy) for _ in range(large)]
    ours = [_case(chosen, f"q{number}") for number in range(1500)]
    assert _noted(*theirs, *ours) >= _uids(ours)


def test_what_is_written_can_be_read_again(chosen: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
    """However well it is packed."""
    monkeypatch.setattr(ledger, "MOST_BYTES_UNPACKED", 1 << 20)
    swollen = _case(chosen, "mallory", pods=3)
    swollen = replace(swollen, reason="a" * (2 << 20))
    ours = [_case(chosen, f"q{number}") for number in range(40)]
    assert _noted(swollen, *ours) == _uids(ours)
