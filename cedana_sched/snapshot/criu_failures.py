"""The table of common CRIU error lines, each with its meaning and its remedy.

The order matters: causes precede the errors that follow from them. Patterns are from CRIU 4.2's sources; the unit tests
have excerpts of real logs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

IO_URING_REMEDY: Final = (
    "switch it off in the program (for libuv, as of Node.js: UV_USE_IO_URING=0), or deny it: in a cluster"
    " podDefaults of a CheckpointPolicy does either"
)


@dataclass(frozen=True)
class Failure:
    """One line of CRIU's log; groups of the pattern fill the sentence."""

    pattern: re.Pattern[str]
    sentence: str
    remedy: str
    passes: bool = False
    """Whether the failure is transient."""

    def format_sentence(self, found: re.Match[str]) -> str:
        """Return the sentence for one occurrence."""
        groups = found.groupdict()
        values = {key: value or groups.get("other") or "?" for key, value in groups.items()}
        if "path" in values and not values["path"].startswith("/"):  # CRIU omits it inside a mount namespace
            values["path"] = "/" + values["path"]
        return self.sentence.format(**values)


def _compile_failure(pattern: str, sentence: str, remedy: str, *, passes: bool = False) -> Failure:
    return Failure(re.compile(pattern), sentence, remedy, passes)


FAILURES = (
    _compile_failure(
        r"In-flight connection",
        "a TCP connection was being opened, which the program had not accepted yet",
        "try again in a moment; a program that never accepts it must be made to",
        passes=True,
    ),
    _compile_failure(
        r"No space left on device",
        "there is no space left where the images, or a restored deleted file, are written",
        "free some space, then try again",
    ),
    _compile_failure(
        r"OOM storing pipe",  # criu/include/pipes.h, NR_PIPES_WITH_DATA: of all processes together
        "more than 1,024 pipes, or as many named ones, are open to be read, which is the most that CRIU saves",
        "let the processes open fewer: close those that are not needed, or use socket pairs, which CRIU does not count",
    ),
    _compile_failure(
        r"Can't get rlimit \d+: Operation not permitted",
        "CRIU may not read the limits of a process of another user here",
        "root of this machine lacks CAP_SYS_RESOURCE: give it that capability, or install gcc so that the"
        " suite can work around it",
    ),
    _compile_failure(
        r"(?:CAP_SYS_ADMIN|CAP_CHECKPOINT_RESTORE|need to be root|should be run as root|"
        r"you need to be root)",
        "CRIU has not the rights that it needs",
        "run as root, in a container with CAP_SYS_ADMIN, CAP_SYS_PTRACE, CAP_NET_ADMIN and CAP_CHECKPOINT_RESTORE",
    ),
    _compile_failure(
        r"Can't get 1:\d+ opt: Operation not supported",
        "this CRIU is too old for the running kernel: it cannot describe an inet socket",
        "use CRIU 4.2.1 or newer: unset CEDANA_SCHED_CRIU to have it fetched",
    ),
    _compile_failure(
        r"CPU Feature (?P<feature>\S+) missing|CPU .*(?:mismatch|not supported on host)|"
        r"cpu:.*is not supported on host|cpu: .*(?:capabilit|incompatib)",
        "the snapshot was taken on a CPU that has features which this one lacks",
        "restore it on a machine with the same CPU features",
    ),
    _compile_failure(
        r"File (?P<path>\S.*?) has bad size (?P<now>\d+) \(expect (?P<then>\d+)\)",
        "{path} has {now} bytes now, and had {then} when the snapshot was taken",
        "put the file back as it was; if it is a program, install the version that was running",
    ),
    _compile_failure(
        r"File (?P<path>\S.*?) has bad (?:build-ID|mode)",
        "{path} is another file now than when the snapshot was taken",
        "put back the version that was there; programs and libraries must be the same ones",
    ),
    _compile_failure(
        r"Can't open file (?P<path>\S.*?) on restore: No such file|"
        r"Can't open (?:file )?(?P<other>/\S+)(?: for restore)?: No such file",
        "a file that the processes had open is gone: {path}",
        "put it back where it was",
    ),
    _compile_failure(
        r"Can't dump ghost file (?P<path>\S.*?) of (?P<size>\d+) size",
        "a deleted file that is still open is too large to go into the snapshot: {path}, {size} bytes",
        "raise the limit for deleted files, or let the program keep its temporary files under a name",
    ),
    _compile_failure(
        r"Can't create link remap for (?P<path>\S.*?)\.",
        "a file is open under a name that was deleted, while it has another name: {path}",
        "CRIU cannot name it; let the program close it, or open it by the name that stays",
    ),
    _compile_failure(
        r"Open files on overmounted mounts.*path=(?P<path>\S+)",
        "a file is open below a mount that hides it: {path}",
        "start the job after such mounts are made",
    ),
    _compile_failure(
        r"Some file locks are hold by dumping tasks",
        "the processes hold file locks, and dumping them was switched off",
        "dump with file locks",
    ),
    _compile_failure(
        r"External socket is used",
        "a unix socket is connected to a process outside of the job",
        "let the job start both ends itself, or let it close the connection; or allow it to be cut",
    ),
    _compile_failure(
        r"Can't dump name-less external socket|Can't dump half of stream unix connection|"
        r"unix: .*(?:external|peer .* outside)",
        "a unix socket without a name is connected to a process outside of the job",
        "let the job start both ends itself, or let it close the connection",
    ),
    _compile_failure(
        r"Connected TCP socket, consider",
        "there are established TCP connections, and dumping them was switched off",
        "dump with established TCP connections",
    ),
    _compile_failure(
        r"Can't bind inet socket.*Address already in use",
        "a network address that the processes used is taken on this machine",
        "stop what listens there (ss -tlnp), then try again",
    ),
    _compile_failure(
        r"Can't bind inet socket.*Cannot assign requested address|Can't connect inet socket back",
        "a network address that the processes used does not exist on this machine",
        "restore where the same address is configured",
    ),
    _compile_failure(
        r"(?:Unsupported|Only stream, dgram).*(?:socket|proto)|Unsupported proto \d+ for socket",
        "a socket is of a kind that CRIU cannot save",
        "close it before the snapshot, or run the program without it",
    ),
    _compile_failure(
        r"io_uring|send_fds failed \(-22\)",  # the kernel refuses to pass io_uring descriptors, and no others
        "the processes use io_uring, which cannot be saved",
        IO_URING_REMEDY,
    ),
    _compile_failure(
        r"/dev/nvidia|/dev/kfd|/dev/dri",
        "the processes hold a GPU",
        "GPU state cannot be saved by this version",
    ),
    _compile_failure(
        r"Can't dump file \d+ of that type \[\d+\] \((?P<info>[^)]*)\)|Unknown (?:anon_inode|file|"
        r"shit) .*?(?P<other>\S+)$",
        "a file is open that cannot be saved: {info}",
        "close it before the snapshot, or run the program without it",
    ),
    _compile_failure(
        r"Unsupported mapping found",
        "memory is mapped from something that cannot be saved, for instance a device",
        "run the program without it",
    ),
    _compile_failure(
        r"Too many external terminals",  # criu/tty.c, ETTY_INDEX_MAX
        "the programs have /dev/tty open more than 64 times, which is the most that CRIU saves",
        "let them open it less often: use the standard streams, or close it when it is not needed",
    ),
    _compile_failure(
        r"ctty inheritance detected",
        "a program has a device like /dev/tty open that is not the one of the workload's /dev",
        "open /dev/tty itself, or use the standard streams",
    ),
    _compile_failure(
        r"Found dangling tty|tty: .*(?:master|peer).*(?:not found|outside)|Unable to find a master for|"
        r"Found slave peer index \d+ without|Only one slave external peer|"
        r"Tty .* is not in the process tree|The root process \d+ is not a session leader",
        "a terminal belongs to a process outside of the job",
        "start the job with its output in files, or with a terminal of its own",
    ),
    _compile_failure(
        r"Can't fork for (?P<pid>\d+): File exists|Can't fork .*: File exists|"
        r"Pid \d+ do not match expected (?P<other>\d+)",
        "a process number that the snapshot needs is taken on this machine",
        "end that process, or run jobs in a PID namespace of their own",
    ),
    _compile_failure(
        r"(?P<mount>\d+:\S+) doesn't have a proper root mount",
        "the job sees mounts of the host that CRIU cannot place: {mount}",
        "start it in a mount namespace of its own, as the suite does",
    ),
    _compile_failure(
        r"Mount \d+:(?P<path>\S+) is autodetected external mount|mnt: .*(?:unreachable sharing)",
        "the job sees a mount of the host that was not declared: a mount that came after its start?",
        "undo that mount, then try again",
    ),
    _compile_failure(
        r"mnt: .*(?:Can't|Unable to|Failed to).*(?:bind-)?mount.*?(?P<path>/\S*).*: No such file|"
        r"mnt: No mapping for (?P<other>\S+) mountpoint",
        "a mount that the job needs is not on this machine: {path}",
        "mount it there first",
    ),
    _compile_failure(
        r"Nested mount namespaces are not supported|Nested pid namespace",
        "a process of the job has made namespaces inside namespaces, which cannot be saved",
        "run the job without containers inside",
    ),
    _compile_failure(
        r"Zombies with threads are not supported",
        "a process has ended its first thread while others of its threads run on, and CRIU saves no such process",
        "have the first thread wait for the others (pthread_join) instead of ending",
    ),
    _compile_failure(
        r"cg: BUG at",  # CRIU 4.2 has no cgroup for a zombie root, and fails an assertion
        "the job has ended already",
        "there is nothing left to take a snapshot of",
    ),
    _compile_failure(
        r"Unable to freeze cgroup|(?:cg|cgroup).*(?:Can't|Unable|Failed|BUG)",
        "the job's cgroup cannot be used",
        "see CRIU's own lines; is the cgroup still there, and the root process alive?",
    ),
    _compile_failure(
        r"seccomp.*(?:not supported|Can't)",
        "a seccomp filter of the job cannot be saved on this kernel",
        "run the job without it",
    ),
    _compile_failure(
        r"Timeout reached|Timeout is reached|SEIZE \d+: .*|Can't freeze the tree|tasks .*not stopped",
        "the processes could not all be stopped in time",
        "one is held in the kernel (state D), or traced by a debugger; try again when that is over",
    ),
    _compile_failure(
        r"(?:ptrace|PTRACE_SEIZE|Unable to (?:seize|attach)).*Operation not permitted",
        "a process cannot be traced: a debugger or another snapshot holds it",
        "end the debugger (gdb, strace), then try again",
    ),
    _compile_failure(
        r"(?:Failed to connect to image streamer|image streamer|img_streamer|Broken pipe)",
        "CRIU lost the connection to which it streams",
        "see what the receiving side says",
    ),
    _compile_failure(
        r"No such process|No root item|Can't (?:open|read).*/proc/\d+: No such",
        "a process ended while the snapshot was being taken",
        "try again",
    ),
    _compile_failure(
        r"(?:Unexpected EOF on|Can't open.*\.img|can't read.*image|Magic doesn't match|No .*inventory).*",
        "the images are not complete",
        "verify the snapshot in its store",
    ),
)
