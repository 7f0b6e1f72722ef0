#!/usr/bin/python3
"""An OCI runtime for one test: runc, but a container whose environment names a snapshot is restored from it.

Lies on a node and is called by containerd's shim as runc is: `create` becomes `runc restore`, and the `start` that
follows does nothing.
"""

import json
import os
import sys
from pathlib import Path

RUNC = "/usr/sbin/runc"
VARIABLE = "RESTORE_FROM"


def main() -> None:
    arguments = sys.argv[1:]
    command = next((word for word in arguments if word in ("create", "start")), None)
    if command == "create":
        bundle = Path(arguments[arguments.index("--bundle") + 1])
        environment = json.loads((bundle / "config.json").read_text())["process"].get("env", [])
        snapshot = next((entry.partition("=")[2] for entry in environment if entry.startswith(f"{VARIABLE}=")), None)
        if snapshot:
            (bundle / "restored").touch()
            restore(arguments, snapshot)
    if (
        command == "start"
        and Path("/run/containerd/io.containerd.runtime.v2.task/k8s.io", arguments[-1], "restored").exists()
    ):
        return
    os.execv(RUNC, [RUNC, *arguments])


def restore(arguments: list[str], snapshot: str) -> None:
    at = arguments.index("create")
    work = f"{snapshot}-restore"
    Path(work).mkdir(exist_ok=True)
    options = ["--detach", "--image-path", snapshot, "--work-path", work, "--manage-cgroups-mode", "ignore"]
    os.execv(RUNC, [RUNC, *arguments[:at], "restore", *options, "--file-locks", *arguments[at + 1 :]])


if __name__ == "__main__":
    main()
