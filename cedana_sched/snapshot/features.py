"""Capabilities of CRIU with this machine's kernel, as facts for `doctor`.

Uses CRIU's command line (`criu check`), one short process per feature; pycriu has the same information, but its calls
fork inside the calling process.
"""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from cedana_sched.snapshot.criu_toolchain import Toolchain, default_cache_dir
from cedana_sched.snapshot.rlimit_workaround import describe_rlimit_access, has_cap_sys_resource

_CHECK_SECONDS = 30

_FEATURES = {
    "network_lock_nftables": (
        "packets of TCP connections can be held back during a dump",
        "jobs with established TCP connections cannot be dumped: the kernel has no nf_tables",
    ),
    "tcp_half_closed": (
        "half-closed TCP connections can be dumped",
        "half-closed TCP connections cannot be dumped",
    ),
    "pagemap_scan": (
        "memory is searched for changed pages quickly (PAGEMAP_SCAN)",
        "memory is searched for used pages slowly: the kernel is older than 6.7",
    ),
}


class Fact(msgspec.Struct, frozen=True):
    """One capability of this machine."""

    name: str
    good: bool
    sentence: str
    needed: bool = False
    """Without it no snapshot can be taken or restored."""


def check_features(toolchain: Toolchain) -> list[Fact]:
    """Check CRIU's features; takes a fraction of a second. Run as root."""
    with ThreadPoolExecutor(max_workers=4) as pool:
        checked = pool.map(lambda name: _check_feature(toolchain, name), _FEATURES)
        return [_check_basics(toolchain), _check_rlimit_access(toolchain), *checked]


def _check_basics(toolchain: Toolchain) -> Fact:
    status, lines = _run_check(toolchain)
    errors = [line for line in lines if "Error" in line]
    if status == 0:
        return Fact("criu", good=True, sentence=f"CRIU {toolchain.version} works on this kernel", needed=True)
    reason = errors[0].strip() if errors else "it says nothing more"
    return Fact("criu", good=False, sentence=f"CRIU {toolchain.version} does not work here: {reason}", needed=True)


def _check_rlimit_access(toolchain: Toolchain) -> Fact:
    good = has_cap_sys_resource() or toolchain.preload is not None
    return Fact("other-users", good=good, sentence=describe_rlimit_access(default_cache_dir()))


def _check_feature(toolchain: Toolchain, name: str) -> Fact:
    status, _ = _run_check(toolchain, "--feature", name)
    yes, no = _FEATURES[name]
    return Fact(name.replace("_", "-"), good=status == 0, sentence=yes if status == 0 else no)


def _run_check(toolchain: Toolchain, *words: str) -> tuple[int, list[str]]:
    try:
        done = subprocess.run(
            [toolchain.criu, "check", "-v1", *words], capture_output=True, text=True, check=False,
            env=toolchain.criu_environment(), timeout=_CHECK_SECONDS, cwd=Path("/"),
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, [f"Error {error}"]
    return done.returncode, (done.stdout + done.stderr).splitlines()
