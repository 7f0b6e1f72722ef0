"""Which other machines the processes of a network have connections to."""

from __future__ import annotations

from pathlib import Path

import pytest

from cedana_sched.snapshot.tcp_table import remote_addresses

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
LINE = "{ends} {state} 00000000:00000000 00:00000000 00000000 0 0 {inode} 1 0"
OUT, OUTS_ADDRESS = "0A5A0A0A:1F90 015A0A0A:D2F0", "10.10.90.1"
MAPPED = "0000000000000000FFFF00000A5A0A0A:1F90 0000000000000000FFFF0000025A0A0A:D2F0"
LISTENS = "00000000:1F90 00000000:0000"
LOOPBACK = "0100007F:1F90 0100007F:D2F0"
ITSELF = "0A5A0A0A:1F90 0A5A0A0A:D2F0"


def line(ends: str, state: str = "01", inode: str = "77") -> str:
    return LINE.format(ends=ends, state=state, inode=inode)


class Proc:
    """Processes, each in a network by its number; `self` is in network 0."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process("self", 0)

    def process(self, pid: str, network: int, *lines: str, ipv6: tuple[str, ...] = ()) -> None:
        folder = self.folder / pid
        (folder / "ns").mkdir(parents=True)
        (folder / "net").mkdir()
        namespace = self.folder / f"namespace-{network}"
        namespace.touch()
        (folder / "ns/net").hardlink_to(namespace)
        for name, entries in (("tcp", lines), ("tcp6", ipv6)):
            rows = (f"   {index}: {entry}\n" for index, entry in enumerate(entries))
            (folder / "net" / name).write_text(HEAD + "".join(rows))

    def remote(self, *pids: int) -> set[str]:
        return set(remote_addresses(pids, self.folder))


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def test_those_that_lead_elsewhere(proc: Proc) -> None:
    proc.process("7", 1, line(LISTENS, "0A"), line(OUT), ipv6=(line(MAPPED),))
    assert proc.remote(7) == {OUTS_ADDRESS, "10.10.90.2"}


@pytest.mark.parametrize("ends", [LOOPBACK, ITSELF])
def test_not_those_within(proc: Proc, ends: str) -> None:
    proc.process("7", 1, line(ends))
    assert proc.remote(7) == set()


@pytest.mark.parametrize(("state", "inode"), [("06", "0"), ("08", "77"), ("01", "0")])
def test_not_those_that_are_over_or_nobodys(proc: Proc, state: str, inode: str) -> None:
    proc.process("7", 1, line(OUT, state, inode))
    assert proc.remote(7) == set()


def test_not_those_of_the_machine_itself(proc: Proc) -> None:
    proc.process("7", 0, line(OUT))
    assert proc.remote(7) == set()


def test_processes_that_ended_are_passed_over(proc: Proc) -> None:
    proc.process("8", 1, line(OUT))
    assert proc.remote(7, 8) == {OUTS_ADDRESS}
