"""Fixtures that every integration test may ask for, and the mounts that they all see."""

from __future__ import annotations

import pytest

from cedana_sched.snapshot import syscalls
from cedana_sched.snapshot.criu_toolchain import Toolchain, ensure_toolchain


def pytest_configure() -> None:
    """Keep the mounts as they are now, whatever others on this machine mount meanwhile: a job sees them all.

    A job that saw a mount cannot be continued without it, and tests beside these take theirs away.
    """
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount("none", "/", flags=syscalls.MS_REC | syscalls.MS_PRIVATE)


@pytest.fixture(scope="session")
def toolchain() -> Toolchain:
    """The CRIU that the suite brings along; made from Debian's packages on the first run of a machine."""
    return ensure_toolchain()
