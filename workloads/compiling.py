"""Compile the C programs of workloads. Called by `write_inputs` through `cached_inputs`."""

from __future__ import annotations

import subprocess
from pathlib import Path

from workloads.packages import PackageError


def compile_program(compiler: str, package: str, source: Path, target: Path) -> None:
    """Make an executable; a warning is an error.

    Raises:
        PackageError: naming the Debian `package` that brings the compiler, when it is missing or fails.
    """
    command = [compiler, "-O2", "-Wall", "-Wextra", "-Werror", str(source), "-o", str(target)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise PackageError(package, f"{compiler} is not there") from error
    if done.returncode:
        raise PackageError(package, f"{compiler} could not compile {source.name}", done.stderr)
