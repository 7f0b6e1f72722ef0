# ruff: noqa: INP001 - a script of an image, no package
"""Lays CRIU and what belongs to it into a folder of the image, so that no node downloads anything.

It is run without CAP_SYS_RESOURCE, so that the way around that capability's absence is compiled in as well: an agent
on a machine that lacks it has no compiler. Where only the packages that are pinned will do, CRIU is the same next year.
"""

import sys
from pathlib import Path

from cedana_sched.model.errors import CedanaSchedError
from cedana_sched.snapshot.criu_toolchain import ensure_toolchain

try:
    toolchain = ensure_toolchain(
        Path(sys.argv[1]), lambda step: print(step, flush=True), only_pinned=sys.argv[2] == "pinned"
    )
except CedanaSchedError as error:
    sys.exit("\n".join([str(error), *error.evidence]))
if toolchain.preload is None:
    sys.exit("the preload for machines without CAP_SYS_RESOURCE was not compiled")
print(f"CRIU {toolchain.version} in {toolchain.criu.parent}")
