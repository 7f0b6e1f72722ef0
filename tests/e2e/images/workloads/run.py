"""Run one of `workloads/` as a pod: `run.py NAME`; says how far it is, and last the digest of every result.

`--install` and `--prepare` are for the building of the image: they fetch what the workload needs, and make its inputs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from workloads.catalog import WORKLOADS
from workloads.comparing import digest
from workloads.workload import Size, Workload

SIZE = Size(os.environ.get("SIZE", Size.TEST))
_LOOK_SECONDS = 0.1


def main() -> int:
    workload = WORKLOADS[sys.argv[1]]
    if sys.argv[2:] == ["--install"]:
        workload.install()
        return 0
    directory = Path(tempfile.mkdtemp(prefix=f"{workload.name}-"))
    workload.prepare(directory, SIZE)
    return 0 if sys.argv[2:] == ["--prepare"] else _run(workload, directory)


def _run(workload: Workload, directory: Path) -> int:
    command = workload.command(directory)
    process = subprocess.Popen(
        command.argv, cwd=command.directory, env=os.environ | command.environment, stdin=subprocess.DEVNULL
    )
    shown = -1
    while True:
        try:
            status = process.wait(_LOOK_SECONDS)
            break
        except subprocess.TimeoutExpired:
            done = workload.progress(directory).done
            if done > shown:
                print(f"{done} {workload.progress(directory).unit}", flush=True)
                shown = done
    for name in workload.results if status == 0 else ():
        print(f"result {name} {digest(directory / name)}", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
