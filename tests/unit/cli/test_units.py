import pytest
from hypothesis import given
from hypothesis import strategies as st

from cedana_sched.cli import units
from cedana_sched.model.errors import UsageError


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1_000, "0.98 KiB"),
        (1 << 20, "1.00 MiB"),
        (300 << 20, "300 MiB"),
        (17.3 * (1 << 20), "17.3 MiB"),
        (1 << 60, "1024 PiB"),
    ],
)
def test_sizes_have_three_digits(count: float, text: str) -> None:
    assert units.format_size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0.35, "350ms"),
        (4.25, "4.2s"),
        (59, "59s"),
        (185, "3m05s"),
        (8_100, "2h15m"),
        (273_600, "3d4h"),
    ],
)
def test_durations_have_two_units(seconds: float | None, text: str) -> None:
    assert units.format_duration(seconds) == text


@pytest.mark.parametrize(("since", "text"), [(None, "-"), (100.0, "0s"), (99.0, "1s"), (200.0, "0s"), (40, "1m00s")])
def test_ages_are_whole_and_never_negative(since: float | None, text: str) -> None:
    assert units.format_age(since, now=100.0) == text


def test_a_rate_over_no_time_is_not_shown() -> None:
    assert units.format_rate(1 << 20, 0) == "-"
    assert units.format_rate(3 << 20, 2) == "1.50 MiB/s"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("1.5", 1.5), ("5m", 300), ("1h30m", 5_400), ("2d", 172_800), ("1m1s", 61)],
)
def test_durations_are_read_as_people_write_them(text: str, seconds: float) -> None:
    assert units.parse_duration("timeout", text) == seconds


@pytest.mark.parametrize("text", ["", "  ", "soon", "5x", "-3", "m", "5 m", "0", "0s"])
def test_what_is_no_duration_is_refused_with_field_and_remedy(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        units.parse_duration("timeout", text)
    assert caught.value.field == "timeout"
    assert caught.value.remedy


@given(st.integers(min_value=1, max_value=10**7))
def test_whole_seconds_survive_being_written_with_every_unit(seconds: int) -> None:
    days, rest = divmod(seconds, 86_400)
    hours, rest = divmod(rest, 3_600)
    minutes, rest = divmod(rest, 60)
    assert units.parse_duration("x", f"{days}d{hours}h{minutes}m{rest}s") == seconds
