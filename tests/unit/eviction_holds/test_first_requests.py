"""What is remembered of requests is bounded."""

from __future__ import annotations

from cedana_sched.eviction_holds.first_requests import FirstRequests


def test_what_a_replica_remembers_is_bounded_in_number_and_age() -> None:
    now = [0.0]
    requests = FirstRequests(lambda: now[0], most=3, kept_seconds=60.0)
    for number in range(5):
        assert requests.seconds_since_first(number) == 0.0
        now[0] += 1.0
    assert len(requests) == 3
    assert requests.seconds_since_first(4) == 1.0
    now[0] += 58.5
    assert requests.seconds_since_first(4) == 59.5
    now[0] += 1.0
    assert requests.seconds_since_first(4) == 0.0
