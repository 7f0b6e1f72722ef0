"""How the suite says what an adapter does wrong: as sentences about the contract, not as expressions."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from cedana_sched.adapter.conformance.stage import Power


class NonConformanceError(AssertionError):
    """The adapter does not keep the contract; the message says where."""


def expect(kept: bool, otherwise: str) -> None:  # noqa: FBT001 - reads like an assertion
    """Go on if the contract is kept.

    Raises:
        NonConformanceError: with the sentence `otherwise`.
    """
    if not kept:
        raise NonConformanceError(otherwise)


def needs(power: Power, lacks: Mapping[Power, str]) -> None:
    """Leave a test that says nothing about an adapter without this power; the report shows the declared reason."""
    if power in lacks:
        pytest.skip(f"declared to be lacking: {power}: {lacks[power]}")
