"""The output files of a saved job, by the descriptors of its processes.

The PID 1 of a job is our tini (`launch`), whose standard output and error are the job's output files from its start to
its end, also after restores. So what it holds there names these files as the kernel does: the path of a submission may
lead through links, and a snapshot may be another job's with the same id.
"""

from __future__ import annotations

from pathlib import Path

from cedana_sched.runtime_handler.outside_files import OutsideFiles

_INIT = 1
_STREAMS = frozenset({"fd/1", "fd/2"})


def saved_outputs(record: OutsideFiles | None) -> tuple[Path, ...]:
    """Return the regular files to which a job's output went at its dump; none if nothing is recorded of its files."""
    return tuple(
        Path(file.path)
        for file in (record.files if record is not None else ())
        if any(holder.pid == _INIT and holder.place in _STREAMS for holder in file.holders)
    )
