"""Workaround for root without CAP_SYS_RESOURCE, where CRIU cannot read the limits of other users' processes.

On some virtual machines and in some containers root lacks it; CRIU then fails with `Can't get rlimit 0: Operation not
permitted` on any process of another uid, for instance PostgreSQL. Real nodes have the capability, and do not use this
module's preload. Otherwise a preload of a few lines (`rlimit_preload.c`) is compiled once, if there is a compiler; it
serves those reads from /proc/PID/limits.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

_CAP_SYS_RESOURCE = 24  # linux/capability.h
_SOURCE = Path(__file__).with_name("rlimit_preload.c")


def has_cap_sys_resource() -> bool:
    """Return whether this process has CAP_SYS_RESOURCE in its effective set."""
    found = re.search(r"^CapEff:\s*([0-9a-f]+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    return bool(found and int(found.group(1), 16) >> _CAP_SYS_RESOURCE & 1)


def rlimit_preload(cache_dir: Path) -> Path | None:
    """Return the shared object that CRIU must preload; None if not needed or if it cannot be compiled."""
    if has_cap_sys_resource():
        return None
    source = _SOURCE.read_bytes()
    target = cache_dir / f"rlimit-preload-{hashlib.sha256(source).hexdigest()[:12]}.so"
    if target.exists():
        return target
    compiler = shutil.which("cc")
    return _compile(compiler, target) if compiler else None


def describe_rlimit_access(cache_dir: Path) -> str:
    """Return one sentence for `doctor`: whether processes of other users can be dumped here."""
    if has_cap_sys_resource():
        return "processes of every user can be dumped"
    if rlimit_preload(cache_dir):
        return "CAP_SYS_RESOURCE is missing; limits of other users' processes are read from /proc instead"
    return "CAP_SYS_RESOURCE is missing: processes of other users cannot be dumped; install gcc to work around it"


def _compile(compiler: str, target: Path) -> Path | None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".preload-", dir=target.parent) as folder:
        built = Path(folder) / target.name
        done = subprocess.run(
            [compiler, "-O2", "-shared", "-fPIC", "-o", built, _SOURCE, "-ldl"], capture_output=True, check=False
        )
        if done.returncode:  # a compiler without headers counts as none; `describe_rlimit_access` has the remedy
            return None
        built.replace(target)
    return target
