"""Excerpts of real logs of CRIU 4.2.1 and what a person is told about them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cedana_sched.model.errors import EVIDENCE_LINES
from cedana_sched.snapshot.explain import explain_criu_exit, explain_lines

HARMLESS = "(00.046224) Error (criu/util.c:1534): rlimit: Can't setup RLIMIT_NOFILE for self: Operation not permitted"

IO_URING = """\
pie: 2: Error (criu/pie/parasite.c:588): send_fds failed (-22)
(00.083914) Error (criu/files.c:280): Can't retrieve FDs from socket
(00.083929) Error (compel/src/lib/infect-rpc.c:44): Message reply from daemon is trimmed (12/0)
(00.083940) Error (criu/cr-dump.c:1545): Dump files (pid: 16368) failed with -1
(00.090012) Error (criu/cr-dump.c:1975): Dumping FAILED."""

OUTSIDE = """\
(00.051207) Error (criu/sk-unix.c:874): unix: External socket is used. Consider using --ext-unix-sk option.
(00.063211) Error (criu/cr-dump.c:1975): Dumping FAILED."""

LIMITS = """\
(00.062031) Error (criu/cr-dump.c:389): Can't get rlimit 0: Operation not permitted
(00.062040) Error (criu/cr-dump.c:1584): Dump core (pid: 11712) failed with -1
(00.070011) Error (criu/cr-dump.c:1975): Dumping FAILED."""

IN_FLIGHT = """\
(00.074911) Error (criu/sk-inet.c:185): inet: In-flight connection (l) for 37c822
(00.075122) Error (criu/cr-dump.c:1975): Dumping FAILED."""

GONE = """\
(00.044301)      2: Error (criu/files-reg.c:2353): Can't open file data/written on restore: No such file or directory
(00.044310)      2: Error (criu/files-reg.c:2267): Can't open file data/written: No such file or directory
(00.044320)      2: Error (criu/files.c:1221): Unable to open fd=3 id=0xf
(00.045001) Error (criu/cr-restore.c:1265): 2 exited, status=1
(00.051002) Error (criu/cr-restore.c:2331): Restoring FAILED.
(00.051100) Error (criu/cgroup.c:2055): cg: cgroupd: recv req error: No such file or directory"""

CHANGED = """\
(00.041101)      2: Error (criu/files-reg.c:2175): File usr/bin/python3.11 has bad size 43888 (expect 6831736)
(00.041103)      2: Error (criu/mem.c:1467): `- Can't open vma
(00.042222) Error (criu/cr-restore.c:1265): 2 exited, status=1
(00.048111) Error (criu/cr-restore.c:2331): Restoring FAILED."""

OTHER_BUILD = "(00.041101)  2: Error (criu/files-reg.c:2079): File /usr/lib/libm.so.6 has bad build-ID"

TAKEN = "(00.052100)      2: Error (criu/sk-inet.c:1059): inet: Can't bind inet socket (id 90): Address already in use"

PID = "(00.021000) Error (criu/cr-restore.c:1241): Can't fork for 4711: File exists"

INCOMPLETE = "(00.036110) Error (criu/protobuf.c:72): Unexpected EOF on (empty-image)"

ENDED = "(00.033650) Error (criu/cgroup.c:1032): cg: BUG at criu/cgroup.c:1032"

FULL = """\
(00.101000) Error (criu/image.c:635): Unable to open core-1.img: No space left on device
(00.101100) Error (criu/cr-dump.c:1584): Dump core (pid: 16281) failed with -1"""

MOUNT = "(00.012000) Error (criu/mount.c:1231): mnt: 28:./mnt/data doesn't have a proper root mount"

PIPES = """\
(00.412071) Error (criu/pipes.c:399): OOM storing pipe
(00.412079) Error (criu/cr-dump.c:1545): Dump files (pid: 4711) failed with -1
(00.430011) Error (criu/cr-dump.c:1975): Dumping FAILED."""

OLD = "(00.052000) Error (criu/sockets.c:540): sockets: Can't get 1:16 opt: Operation not supported"

GHOST = (
    "(00.052000) Error (criu/files-reg.c:987): Can't dump ghost file /var/tmp/spool of 734003200 size, increase limit"
)

LOCKS = (
    "(00.052000) Error (criu/file-lock.c:134): Some file locks are hold by dumping tasks! "
    "You can try --file-locks to dump them."
)

THREADS = "(00.071777) Error (criu/seize.c:882): Zombies with threads are not supported"

CTTY = (
    "(00.052000) Error (criu/tty.c:2271): tty: ctty inheritance detected sid/pgrp 12, no PTY peer with sid/pgrp needed"
)

MANY_TTYS = "(00.052000) Error (criu/tty.c:201): tty: Too many external terminals"

SECOND_TERMINAL = "(00.052000) Error (criu/tty.c:421): tty: Only one slave external peer is allowed (index 1)"

TCP = "(00.052000) Error (criu/sk-inet.c:188): inet: Connected TCP socket, consider using --tcp-established option."


@pytest.mark.parametrize(
    ("log", "sentence", "remedy"),
    [
        pytest.param(IO_URING, "io_uring", "switch it off", id="io_uring"),
        pytest.param(OUTSIDE, "connected to a process outside", "start both ends", id="external unix socket"),
        pytest.param(LIMITS, "limits of a process of another user", "CAP_SYS_RESOURCE", id="rlimit"),
        pytest.param(GONE, "gone: /data/written", "put it back", id="missing file"),
        pytest.param(CHANGED, "/usr/bin/python3.11 has 43888 bytes now, and had 6831736", "install", id="size"),
        pytest.param(OTHER_BUILD, "/usr/lib/libm.so.6 is another file now", "put back", id="build-id"),
        pytest.param(TAKEN, "address that the processes used is taken", "ss -tlnp", id="port"),
        pytest.param(PID, "process number that the snapshot needs is taken", "PID namespace", id="PID in use"),
        pytest.param(INCOMPLETE, "not complete", "verify", id="truncated image"),
        pytest.param(ENDED, "ended already", "nothing left", id="zombie root"),
        pytest.param(FULL, "no space left", "free some space", id="ENOSPC"),
        pytest.param(MOUNT, "28:./mnt/data", "mount namespace of its own", id="host mount"),
        pytest.param(PIPES, "more than 1,024 pipes", "open fewer", id="pipes"),
        pytest.param(OLD, "too old for the running kernel", "4.2.1", id="old CRIU"),
        pytest.param(GHOST, "/var/tmp/spool, 734003200 bytes", "raise the limit", id="large deleted file"),
        pytest.param(LOCKS, "hold file locks", "dump with file locks", id="file locks"),
        pytest.param(THREADS, "ended its first thread", "wait for the others", id="threads without the first one"),
        pytest.param(CTTY, "not the one of the workload's /dev", "open /dev/tty itself", id="another /dev/tty"),
        pytest.param(MANY_TTYS, "/dev/tty open more than 64 times", "standard streams", id="/dev/tty"),
        pytest.param(SECOND_TERMINAL, "terminal belongs to a process outside", "of its own", id="two terminals"),
        pytest.param(TCP, "established TCP", "dump with established", id="TCP switched off"),
    ],
)
def test_a_failure_is_told_in_plain_words(log: str, sentence: str, remedy: str) -> None:
    found = explain_lines([HARMLESS, *log.splitlines()], status=1)
    assert sentence in found.message
    assert remedy in found.remedy
    assert "{" not in found.message
    assert log.splitlines()[0] in found.evidence


def test_an_unknown_failure_is_reported_with_the_first_error() -> None:
    found = explain_lines([HARMLESS, "(00.1) Error (criu/x.c:1): the moon is full", "(00.2) Error (x): after"], 1)
    assert found.message == "Error (criu/x.c:1): the moon is full"


def test_a_kill_is_named() -> None:
    assert "SIGKILL" in explain_lines(["(00.1) Dumping pages"], status=-9).message


def test_a_criu_that_said_nothing(tmp_path: Path) -> None:
    found = explain_criu_exit(tmp_path / "missing.log", status=3)
    assert "status 3" in found.message
    assert found.evidence == ()


def test_the_evidence_is_bounded_and_the_log_read_from_its_end(tmp_path: Path) -> None:
    log = tmp_path / "dump.log"
    log.write_text("(00.0) early\n" * 100_000 + "(00.9) Error (criu/x.c:1): number nine\n" * 100)
    found = explain_criu_exit(log, status=1)
    assert len(found.evidence) <= EVIDENCE_LINES
    assert "number nine" in found.message


def test_what_criu_says_before_its_log_is_open_counts(tmp_path: Path) -> None:
    stderr = tmp_path / "stderr"
    stderr.write_text("Error (criu/config.c:1071): invalid argument for -t: -D\n")
    assert "invalid argument" in explain_criu_exit(tmp_path / "none", 1, stderr).message


def test_what_passes_by_itself_is_told_from_what_stays() -> None:
    assert explain_lines(IN_FLIGHT.splitlines(), 1).passes
    assert not explain_lines(OUTSIDE.splitlines(), 1).passes
