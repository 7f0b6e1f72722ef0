"""A `gzip` that does not compress: standard input to standard output, in stored blocks.

CRIU saves the files of a tmpfs, like a job's /dev/shm, through `tar --gzip`, while the job stands still. Compressing
takes a minute for each GiB, and the store compresses anyway. `dump` puts this before the real one in CRIU's PATH; what
it writes is ordinary gzip, so any CRIU restores it.

Started as a file by a bare interpreter (`python -I -S`), so it imports nothing of this package.
"""

import sys
import zlib
from pathlib import Path

_BLOCK_BYTES = 1 << 20
_GZIP_FORMAT = 16 + zlib.MAX_WBITS
_SCRIPT = """\
#!/bin/sh
exec '{interpreter}' -I -S '{program}'
"""


def install(folder: Path) -> None:
    """Write a program `gzip` into `folder`, which is then put into a PATH."""
    script = folder / "gzip"
    script.write_text(_SCRIPT.format(interpreter=sys.executable, program=Path(__file__).resolve()))
    script.chmod(0o755)


def main() -> None:
    store = zlib.compressobj(0, zlib.DEFLATED, _GZIP_FORMAT)
    while block := sys.stdin.buffer.read(_BLOCK_BYTES):
        sys.stdout.buffer.write(store.compress(block))
    sys.stdout.buffer.write(store.flush())


if __name__ == "__main__":
    main()
