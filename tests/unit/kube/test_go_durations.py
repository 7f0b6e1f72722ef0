"""Durations of settings are read as Go reads them."""

from __future__ import annotations

import pytest

from cedana_sched.kube.go_durations import parse_go_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("500ms", 0.5),
        ("1.5s", 1.5),
        (".5s", 0.5),
        ("1.s", 1.0),
        ("1m30s", 90.0),
        ("1h0m0.5s", 3600.5),
        ("100us", 1e-4),
        ("100µs", 1e-4),
        ("0", 0.0),
    ],
)
def test_durations_are_read_as_by_go(text: str, seconds: float) -> None:
    assert parse_go_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["5", "", "s", "1s ", "-1s", "1d", "x" * 100_000])
def test_other_texts_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="is no duration") as error:
        parse_go_duration(text)
    assert len(str(error.value)) < 5_000
