# ruff: noqa: INP001 - a script of an image, no package
"""Lays CRIU and what belongs to it into a folder of the image, so that no node downloads anything.

It is run without CAP_SYS_RESOURCE, so that the way around that capability's absence is compiled in as well: an agent
on a machine that lacks it has no compiler.
"""

import sys
from pathlib import Path

from cedana_sched.snapshot.toolchain import ensure_toolchain

toolchain = ensure_toolchain(Path(sys.argv[1]), lambda step: print(step, flush=True))
if toolchain.preload is None:
    sys.exit("the preload for machines without CAP_SYS_RESOURCE was not compiled")
print(f"CRIU {toolchain.version} in {toolchain.criu.parent}")
