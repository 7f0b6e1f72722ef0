"""An engine that starts one job and then waits to be killed: `python engine_process.py STATE UID OUT SCRIPT`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from cedana_sched.local.runs.launch_spec import LaunchSpec
from cedana_sched.local.runs.runtime import LocalRuntime
from cedana_sched.model.preemption import WorkloadRef
from cedana_sched.snapshot.criu_toolchain import ensure_toolchain


async def main(state: Path, uid: str, out: Path, script: str) -> None:
    async def job_of(_: WorkloadRef) -> LaunchSpec:
        return LaunchSpec(argv=("/bin/sh", "-c", script), stdout=out, stderr=out, directory=Path("/"))

    runtime = LocalRuntime(state, ensure_toolchain(), job_of)
    await runtime.adopt_previous_runs()
    await runtime.start_cold(WorkloadRef(uid, "test", uid, "here"), None)
    print("started", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[4]))
