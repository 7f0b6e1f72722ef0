"""Which connections that nobody has accepted a dump may leave out."""

from __future__ import annotations

from pathlib import Path

import pytest

from cedana_sched.snapshot.pending_connections import can_skip_pending_connections

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
LISTENS = "00000000:1F90 00000000:0000 0A 00000000:00000001 00:00000000 00000000 0 0 439171 1 0"
HERS = "0A5A0A0A:1F90 015A0A0A:D2F0 {state} 00000000:00000000 00:00000000 00000000 0 0 {inode} 1 0"
LOOPBACK = "0100007F:1F90 0100007F:D2F0 01 00000000:00000000 00:00000000 00000000 0 0 0 1 0"
ITSELF = "0A5A0A0A:1F90 0A5A0A0A:D2F0 01 00000000:00000000 00:00000000 00000000 0 0 0 1 0"
MAPPED = (
    "0000000000000000FFFF00000100007F:1F90 0000000000000000FFFF00000100007F:D2F0 01 "
    "00000000:00000000 00:00000000 00000000 0 0 0 1 0"
)
OF_A_PROBE = HERS.format(state="01", inode="0")


def network(proc: Path, *lines: str, ipv6: tuple[str, ...] = (), own: bool = False) -> bool:
    for process, number in (("7", 1), ("self", 1 if own else 2)):
        folder = proc / process
        (folder / "ns").mkdir(parents=True)
        (folder / "net").mkdir()
        namespace = proc / f"namespace-{number}"
        namespace.touch()
        (folder / "ns/net").hardlink_to(namespace)
        for name, entries in (("tcp", lines), ("tcp6", ipv6)):
            rows = (f"   {index}: {entry}\n" for index, entry in enumerate(entries))
            (folder / "net" / name).write_text(HEAD + "".join(rows))
    return can_skip_pending_connections(7, proc)


@pytest.mark.parametrize("state", ["01", "03", "08"])
def test_one_of_another_machine(tmp_path: Path, state: str) -> None:
    assert network(tmp_path, LISTENS, HERS.format(state=state, inode="0"))


@pytest.mark.parametrize("line", [HERS.format(state="01", inode="77"), HERS.format(state="06", inode="0"), LISTENS])
def test_what_is_accepted_or_over_does_not_wait(tmp_path: Path, line: str) -> None:
    assert not network(tmp_path, line)


@pytest.mark.parametrize("line", [LOOPBACK, ITSELF])
def test_never_one_of_the_same_network(tmp_path: Path, line: str) -> None:
    assert not network(tmp_path, LISTENS, OF_A_PROBE, line)


def test_never_one_of_the_same_network_in_ipv6(tmp_path: Path) -> None:
    assert not network(tmp_path, OF_A_PROBE, ipv6=(MAPPED,))


def test_never_in_the_network_of_the_machine(tmp_path: Path) -> None:
    assert not network(tmp_path, LISTENS, OF_A_PROBE, own=True)


def test_nor_of_a_process_that_ended(tmp_path: Path) -> None:
    assert not can_skip_pending_connections(7, tmp_path)
