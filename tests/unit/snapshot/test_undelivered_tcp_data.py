"""Whether something is under way to frozen processes from ends of connections that nobody has any more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cedana_sched.snapshot import undelivered_tcp_data
from cedana_sched.snapshot.dump import DumpInterruptedError
from cedana_sched.snapshot.undelivered_tcp_data import await_delivery

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
SERVER, CLIENT = "0100007F:1B9E", "0100007F:D2F0"
OURS, OTHERS = 77, 78


def end(local: str, remote: str, *, unacknowledged: int = 0, inode: int = 0, state: str = "04") -> str:
    return f"{local} {remote} {state} {unacknowledged:08X}:00000000 00:00000000 00000000 0 0 {inode} 1 0"


CLIENTS = end(CLIENT, SERVER, inode=OURS, state="01")


@pytest.fixture
def table(tmp_path: Path) -> Callable[..., Path]:
    """Of the network of process 7, which has the socket `OURS`."""

    def write(*lines: str) -> Path:
        process = tmp_path / "7"
        for folder in ("ns", "net", "fd"):
            (process / folder).mkdir(parents=True)
        (process / "ns/net").touch()
        (process / "fd/0").symlink_to("/dev/null")
        (process / "fd/1").symlink_to(f"socket:[{OURS}]")
        rows = (f"   {index}: {entry}\n" for index, entry in enumerate(lines))
        (process / "net/tcp").write_text(HEAD + "".join(rows))
        return tmp_path

    return write


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(undelivered_tcp_data, "_PATIENCE_SECONDS", 0.0)


def test_what_nobody_sends_any_more_must_arrive_first(table: Callable[..., Path]) -> None:
    with pytest.raises(DumpInterruptedError, match="last 300 bytes"):
        await_delivery([7], table(CLIENTS, end(SERVER, CLIENT, unacknowledged=300)))


def test_a_connection_must_be_whole(table: Callable[..., Path]) -> None:
    with pytest.raises(DumpInterruptedError, match="port 7070 is only half made"):
        await_delivery([7], table(CLIENTS, end(SERVER, CLIENT, state="03")))


def test_what_arrives_in_time_is_no_obstacle(table: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    proc = table(CLIENTS, end(SERVER, CLIENT, unacknowledged=300))

    def arrives(seconds: float) -> None:
        (proc / "7/net/tcp").write_text(f"{HEAD}   0: {CLIENTS}\n")

    monkeypatch.setattr(undelivered_tcp_data, "_PATIENCE_SECONDS", 60.0)
    monkeypatch.setattr("time.sleep", arrives)
    await_delivery([7], proc)
    assert "012C" not in (proc / "7/net/tcp").read_text()


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param((CLIENTS, end(SERVER, CLIENT)), id="all has arrived"),
        pytest.param((CLIENTS, end(SERVER, CLIENT, unacknowledged=300, inode=OTHERS)), id="it is in somebody's hands"),
        pytest.param((CLIENTS, end(SERVER, CLIENT, state="01")), id="it waits to be accepted"),
        pytest.param((CLIENTS, end(SERVER, "0100007F:D2F1", unacknowledged=300)), id="another connection"),
        pytest.param(
            (end(CLIENT, SERVER, inode=OTHERS), end(SERVER, CLIENT, unacknowledged=300)), id="to another process"
        ),
    ],
)
def test_what_loses_nothing_is_no_obstacle(table: Callable[..., Path], lines: tuple[str, ...]) -> None:
    await_delivery([7], table(*lines))


def test_who_has_ended_waits_for_nothing(tmp_path: Path) -> None:
    await_delivery([7], tmp_path)
