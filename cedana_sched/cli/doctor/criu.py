"""CRIU: whether it is here, whether it runs on this kernel, and what it can do."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import TYPE_CHECKING

from cedana_sched.cli.doctor.findings import Finding, Level

if TYPE_CHECKING:
    from cedana_sched.snapshot.toolchain import Toolchain

CHECK_SECONDS = 30


def toolchain(*, prepare: bool) -> Iterator[Finding]:
    """The CRIU that comes along; with `prepare` it is made now if it is not there."""
    from cedana_sched.snapshot.rlimits import rlimit_facts
    from cedana_sched.snapshot.toolchain import default_cache_dir, ensure_toolchain, find_toolchain

    found = ensure_toolchain() if prepare else find_toolchain()
    if found is None:
        says = "is not on this machine yet; the engine makes it at its first start (20 MB of Debian's packages)"
        yield Finding("criu", Level.WARN, says, "make it now with 'cedana-sched doctor --prepare'")
        return
    yield _tried(found)
    facts = rlimit_facts(default_cache_dir())
    yield Finding("criu", Level.WARN if "cannot" in facts else Level.OK, facts)


def _tried(found: Toolchain) -> Finding:
    """`criu check`: the kernel features that every dump and restore needs."""
    command = [str(found.criu), "check"]
    try:
        done = subprocess.run(
            command, env=found.environment(), capture_output=True, text=True, check=False, timeout=CHECK_SECONDS
        )
    except subprocess.TimeoutExpired:
        return Finding(
            "criu", Level.FAIL, f"CRIU {found.version} did not answer in {CHECK_SECONDS} s", "see the kernel log"
        )
    said = (done.stdout + done.stderr).strip().splitlines()
    if done.returncode == 0:
        return Finding("criu", Level.OK, f"CRIU {found.version}: {said[-1] if said else 'works on this kernel'}")
    return Finding("criu", Level.FAIL, f"CRIU {found.version}: {said[-1] if said else 'fails'}", "use a newer kernel")
