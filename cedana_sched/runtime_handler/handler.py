"""containerd's runtime handler `cedana`: runc, but restores containers of a pod with a plan from their snapshot.

containerd's shim calls the launcher (`launcher.sh`) instead of runc. The launcher passes everything but `create` to
runc itself; `create` runs this module if any pod of this node has a plan. Heavy imports are deferred until a plan is
found: most containers have none.
"""

from __future__ import annotations

import os
import sys

from cedana_sched.runtime_handler.handler_exit_codes import PASS

_SANDBOX_UID = b'"io.kubernetes.cri.sandbox-uid":'


def main() -> int:
    """Entry point of the launcher: `argv` is runc's; the environment has the paths of runc and of the state folder."""
    runc = os.environ.pop("CEDANA_RUNC")
    state = os.environ.pop("CEDANA_STATE")
    return apply_pod_plan(sys.argv[1:], runc, state, os.environ.pop("CEDANA_FINISHED", ""))


def apply_pod_plan(arguments: list[str], runc: str, state: str, finished_program: str) -> int:
    """Apply the plan of this container's pod; return the exit status."""
    bundle = _bundle_folder_in(arguments)
    if bundle is None:
        return PASS
    uid = find_pod_uid(f"{bundle}/config.json")
    if uid is None or not os.path.exists(f"{state}/pods/{uid}/plan.json"):
        return PASS
    from cedana_sched.runtime_handler.planned_create import create  # noqa: PLC0415 - costs more than all above

    return create(arguments, runc, f"{state}/pods/{uid}", finished_program)


def find_pod_uid(specification: str) -> str | None:
    """Find a bundle's pod uid without parsing; None if there is none, or it is not valid as a file name.

    Raises:
        OSError: the bundle cannot be read now.
    """
    try:
        with open(specification, "rb") as file:
            content = file.read()
    except (FileNotFoundError, NotADirectoryError):
        return None
    _, found, rest = content.partition(_SANDBOX_UID)
    if not found:
        return None
    uid = rest.lstrip().removeprefix(b'"').partition(b'"')[0].decode(errors="replace")
    return uid if uid.replace("-", "").isalnum() else None


def _bundle_folder_in(arguments: list[str]) -> str | None:
    for position, word in enumerate(arguments[:-1]):
        if word in ("--bundle", "-b"):
            return arguments[position + 1]
        if word.startswith("--bundle="):
            return word.partition("=")[2]
    return None
