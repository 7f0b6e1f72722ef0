"""A job that tells on whoever runs it twice: `python witness.py BEATS STOP [MIB]`.

It counts. Each number first goes as a beat into the folder BEATS, which no restore rewinds, and then as a line to its
standard output, which a restore does rewind. A beat is a symbolic link named by the time of day (CRIU sets the
monotonic clock of restored processes back): making one opens no file, so that no snapshot ever holds one. It ends
with exit code 0 when the file STOP is there.
"""

import os
import sys
import time
from pathlib import Path


def main(beats: str, stop: str, mib: str = "0") -> None:
    memory = bytearray(os.urandom(int(mib) << 20))
    number = 0
    while not Path(stop).exists():
        Path(f"{beats}/{time.time_ns():020d}").symlink_to(str(number))
        print(number, flush=True)
        os.fsync(1)
        if memory:
            memory[(number * 4096) % len(memory)] ^= 255
        number += 1
        time.sleep(0.02)


main(*sys.argv[1:])
