"""containerd's runtime handler `cedana`: runc, but a container whose pod has a plan continues from its snapshot.

containerd's shim calls the launcher (`launcher.sh`) in runc's place. The launcher gives everything but `create` to runc
itself; `create` comes here when any pod of this node has a plan. The status tells the launcher how to go on:

    0      the container runs, continued
    FAILED it failed, and runc's log says why, for the shim to show
    PASS   give this call to runc, untouched: nothing of it is ours, or the container starts from its beginning

Any other status is a crash: the launcher calls again, and then does what the plan says about failures, unless something
of the pod has come back, or may have. Nothing heavy is imported before a plan is found: most containers have none.
"""

from __future__ import annotations

import os
import sys

PASS = 100
FAILED = 101

_SANDBOX_UID = b'"io.kubernetes.cri.sandbox-uid":'


def main() -> int:
    """Entry point of the launcher: `argv` is runc's, the environment names runc and the state's folder."""
    runc = os.environ.pop("CEDANA_RUNC")
    state = os.environ.pop("CEDANA_STATE")
    return handle(sys.argv[1:], runc, state, os.environ.pop("CEDANA_FINISHED", ""))


def handle(arguments: list[str], runc: str, state: str, finished_program: str) -> int:
    """Do what the plan of this container's pod says; return the status to end with."""
    bundle = _bundle(arguments)
    if bundle is None:
        return PASS
    uid = sandbox_uid(f"{bundle}/config.json")
    if uid is None or not os.path.exists(f"{state}/pods/{uid}/plan.json"):
        return PASS
    from cedana_sched.runtime.planned import create  # noqa: PLC0415 - costs more than all above

    return create(arguments, runc, f"{state}/pods/{uid}", finished_program)


def sandbox_uid(specification: str) -> str | None:
    """The uid of a bundle's pod, found without parsing; None where there is none, or none that can be a file's name.

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


def _bundle(arguments: list[str]) -> str | None:
    for position, word in enumerate(arguments[:-1]):
        if word in ("--bundle", "-b"):
            return arguments[position + 1]
        if word.startswith("--bundle="):
            return word.partition("=")[2]
    return None
