"""Fixtures that every integration test may ask for."""

from __future__ import annotations

import pytest

from cedana_sched.snapshot.toolchain import Toolchain, ensure_toolchain


@pytest.fixture(scope="session")
def toolchain() -> Toolchain:
    """The CRIU that the suite brings along; made from Debian's packages on the first run of a machine."""
    return ensure_toolchain()
