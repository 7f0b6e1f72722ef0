"""Assertions that state contract violations as sentences instead of expressions."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from cedana_sched.adapter.conformance.stage import SchedulerCapability


class NonConformanceError(AssertionError):
    """The adapter violates the contract; the message describes the violation."""


def expect(kept: bool, otherwise: str) -> None:  # noqa: FBT001 - reads like an assertion
    """Check a condition of the contract.

    Raises:
        NonConformanceError: the condition is false; `otherwise` is the message.
    """
    if not kept:
        raise NonConformanceError(otherwise)


def skip_unless_capable(power: SchedulerCapability, lacks: Mapping[SchedulerCapability, str]) -> None:
    """Skip a test that does not apply without this capability; the report shows the declared reason."""
    if power in lacks:
        pytest.skip(f"declared to be lacking: {power}: {lacks[power]}")
