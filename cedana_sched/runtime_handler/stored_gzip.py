"""A `gzip` that does not compress: standard input to standard output, in stored blocks.

CRIU saves the files of a tmpfs, like a job's /dev/shm, through `tar --gzip`, while the job is frozen. Compression takes
a minute per GiB, and the store compresses anyway. This program precedes the real one in CRIU's PATH; its output is
ordinary gzip, so any CRIU restores it.
"""

import sys
import zlib

_BLOCK_BYTES = 1 << 20
_GZIP_FORMAT = 16 + zlib.MAX_WBITS


def main() -> None:
    store = zlib.compressobj(0, zlib.DEFLATED, _GZIP_FORMAT)
    while block := sys.stdin.buffer.read(_BLOCK_BYTES):
        sys.stdout.buffer.write(store.compress(block))
    sys.stdout.buffer.write(store.flush())


if __name__ == "__main__":
    main()
