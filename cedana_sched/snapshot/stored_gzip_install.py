"""Installs a `gzip` that does not compress in front of the real one: see `cedana_sched.runtime_handler.stored_gzip`."""

from __future__ import annotations

import sys
from pathlib import Path

from cedana_sched.runtime_handler import stored_gzip

_SCRIPT = """\
#!/bin/sh
exec '{interpreter}' -I -S '{program}'
"""


def install_gzip(folder: Path, program: Path | None = None) -> None:
    """Install a program `gzip` in `folder`, to be put into a PATH.

    Args:
        folder: has the same path for CRIU.
        program: its path for CRIU; None: CRIU has this process's interpreter and files.
    """
    place = folder / "gzip"
    if program is not None:
        place.symlink_to(program)
        return
    place.write_text(_SCRIPT.format(interpreter=sys.executable, program=Path(stored_gzip.__file__).resolve()))
    place.chmod(0o755)
