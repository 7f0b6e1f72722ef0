"""Gaps and repetitions in a logged sequence are found and named."""

import pytest

from workloads.sequences import sequence_faults


def test_a_complete_sequence_has_no_fault() -> None:
    assert sequence_faults("log", [1, 2, 3], 3) == []


@pytest.mark.parametrize(
    ("numbers", "want"),
    [
        ([1, 3], "log: missing 2"),
        ([1, 2], "log: missing 3"),
        ([], "log: missing 1, 2, 3"),
        ([1, 2, 2, 3], "log: repeated 2"),
        ([1, 2, 3, 4], "log: never sent 4"),
        ([2, 1, 3], "log: complete but out of order"),
    ],
)
def test_a_fault_is_named(numbers: list[int], want: str) -> None:
    assert sequence_faults("log", numbers, 3) == [want]


def test_a_long_gap_is_counted_and_not_listed() -> None:
    assert sequence_faults("log", [1], 100) == ["log: missing 2, 3, 4, 5, 6 and 94 more"]
