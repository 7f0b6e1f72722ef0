"""What an admin may write, and what he is told when it cannot be used."""

from __future__ import annotations

from typing import Any

import pytest
import structlog

from cedana_sched.model.errors import UsageError
from cedana_sched_armada.settings import ArmadaSettings, LimitSettings

_PASSWORD = {"username": "cedana", "passwordFile": "/secret/password"}
_TOKEN = {"file": "/secret/token"}


def test_a_url_is_enough() -> None:
    settings = ArmadaSettings.read({"url": "armada.example:50051"})
    assert settings.tls is None
    assert settings.only_queues is None
    assert settings.hold_seconds < 300, "below the executor's check of pending pods"
    assert settings.opts_in("any")


def test_where_queues_are_named_others_are_left_alone() -> None:
    settings = ArmadaSettings.read({"url": "armada:50051", "onlyQueues": ["bio"]})
    assert (settings.opts_in("bio"), settings.opts_in("ml")) == (True, False)


@pytest.mark.parametrize(
    ("section", "field", "says"),
    [
        (None, "armada", "say at least where Armada is"),
        ({}, "armada.url", "Field required"),
        ({"url": "https://armada:443"}, "armada.url", "host:port without a scheme"),
        ({"url": "armada.example"}, "armada.url", "write host:port"),
        ({"url": "armada:grpc"}, "armada.url", "write host:port"),
        ({"url": "armada:1", "later": 1, "holdSeconds": 300}, "armada.holdSeconds", "less than 300"),
        ({"url": "armada:1", "holdSeconds": 300}, "armada.holdSeconds", "less than 300"),
        ({"url": "armada:1", "tls": {"key": "/k"}}, "armada.tls", "name both, or neither"),
        ({"url": "armada:1", "auth": {"basic": _PASSWORD, "token": _TOKEN}}, "armada.auth", "basic and token exclude"),
        ({"url": "armada:1", "auth": {"basic": {"username": "x"}}}, "armada.auth.basic.passwordFile", "Field required"),
        ({"url": "armada:1", "limits": {"resubmissions": -1}}, "armada.limits.resubmissions", "greater than"),
    ],
)
def test_what_is_wrong_is_named(section: dict[str, Any] | None, field: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as raised:
        ArmadaSettings.read(section)
    assert raised.value.field == field


def test_settings_of_a_newer_chart_are_passed_over_and_named() -> None:
    with structlog.testing.capture_logs() as logged:
        settings = ArmadaSettings.read({"url": "armada:1", "later": 1, "limits": {"resubmissions": 3, "later": 2}})
    assert settings.limits.resubmissions == 3
    assert {(line["log_level"], line["setting"]) for line in logged} == {
        ("warning", "armada.later"),
        ("warning", "armada.limits.later"),
    }


def test_pauses_double_up_to_the_longest() -> None:
    limits = LimitSettings(first_pause_seconds=10, longest_pause_seconds=60)
    assert [limits.resubmission_pause_seconds(number) for number in range(1, 7)] == [0, 10, 20, 40, 60, 60]
    assert limits.resubmission_pause_seconds(10_000) == 60
