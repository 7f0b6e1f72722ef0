"""Shorter pauses between attempts than those of the product."""

from __future__ import annotations

import pytest

from cedana_sched import retrying


def shorten_pauses(patch: pytest.MonkeyPatch, longest: float = 0.01) -> None:
    """Let all profiles pause for that many seconds at most."""
    for profile in vars(retrying).values():
        if isinstance(profile, retrying.Profile):
            patch.setattr(profile, "min", longest / 10)
            patch.setattr(profile, "max", longest)
