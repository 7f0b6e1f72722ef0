"""Names, slots and locks of clusters, without any cluster."""

from __future__ import annotations

import asyncio
import signal
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from tests.cluster import lifetime
from tests.cluster.errors import ClusterError
from tests.cluster.machine import network
from tests.cluster.place import HOME_VARIABLE, SLOTS, Place, check_name, link_of


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "clusters"))
    return tmp_path / "clusters"


@pytest.fixture
def routes(monkeypatch: pytest.MonkeyPatch) -> list[IPv4Network]:
    """What this host has routes to; none of its interfaces is asked for."""
    routes: list[IPv4Network] = []

    async def routed() -> list[IPv4Network]:
        return routes

    monkeypatch.setattr(network, "routed_networks", routed)
    return routes


def _up(home: Path, name: str, slot: int) -> None:
    (home / name).mkdir(parents=True)
    (home / name / "slot").write_text(str(slot))
    lifetime.mark_up(Place(name, slot), "{}")


@pytest.mark.parametrize("name", ["", "9lives", "Test", "a_b", "a-", "a" * 31, "a.b", "../a"])
def test_name_that_folders_and_hosts_cannot_bear_is_refused(name: str) -> None:
    with pytest.raises(ClusterError, match=r"^CLUSTER_NAME is "):
        check_name(name)


def test_everything_outside_of_a_cluster_bears_its_name_or_slot() -> None:
    one, two = Place("one", 3), Place("two", 4)

    for each in ("root", "logs", "namespace", "group", "interface", "link", "kubeconfig"):
        assert getattr(one, each) != getattr(two, each)
    assert not one.link.overlaps(two.link)
    assert one.logs.parent == one.root.parent  # they stay when the root is removed


async def test_first_free_slot_is_taken_beside_other_clusters_and_routes(home: Path, routes: list[IPv4Network]) -> None:
    _up(home, "other", 0)
    routes += [IPv4Network("0.0.0.0/0"), link_of(1)]

    place = await lifetime.claim("unit-mine")

    assert place.slot == 2
    assert (place.root / "slot").read_text() == "2"


async def test_range_in_use_altogether_is_one_sentence(home: Path, routes: list[IPv4Network]) -> None:
    routes.append(IPv4Network("10.0.0.0/8"))
    home.mkdir()

    with pytest.raises(ClusterError, match=r"^no range of addresses between 10.213.0.0/30 and .* is free; take"):
        await lifetime.claim("unit-mine")
    assert list(home.iterdir()) == []


async def test_cluster_that_is_up_is_not_claimed_again(home: Path) -> None:
    _up(home, "unit-mine", 0)
    with pytest.raises(ClusterError, match=r"^the cluster 'unit-mine' is up already; run `make cluster-down`"):
        await lifetime.claim("unit-mine")


async def test_rest_of_a_killed_run_is_cleared(home: Path, routes: list[IPv4Network]) -> None:
    (home / "unit-mine" / "machines").mkdir(parents=True)
    (home / "unit-mine" / "slot").write_text("")  # killed while it was written
    (home / "unit-mine.logs" / "node").mkdir(parents=True)

    place = await lifetime.claim("unit-mine")

    assert place.slot == 0
    assert sorted(path.name for path in home.rglob("*")) == ["slot", "unit-mine"]


async def test_half_written_slot_of_a_neighbour_takes_no_range(home: Path, routes: list[IPv4Network]) -> None:
    (home / "other").mkdir(parents=True)
    (home / "other" / "slot").write_text("")
    assert (await lifetime.claim("unit-mine")).slot == 0


async def test_logs_stay_where_they_are_when_a_cluster_did_not_come_up(home: Path) -> None:
    place = Place("unit-mine", SLOTS)
    (place.logs / "node").mkdir(parents=True)
    place.root.mkdir()

    await lifetime.remove(place, keep_logs=True)
    assert sorted(path.name for path in home.iterdir()) == ["unit-mine.logs"]

    assert await lifetime.take_down("unit-mine")
    assert list(home.iterdir()) == []
    assert not await lifetime.take_down("unit-mine")


async def test_two_do_not_change_one_cluster_at_once_and_the_lock_leaves_no_file(home: Path) -> None:
    with (
        lifetime.alone("unit-mine"),
        lifetime.alone("other"),
        pytest.raises(ClusterError, match=r"^another process brings the cluster 'unit-mine' up or down"),
        lifetime.alone("unit-mine"),
    ):
        pass
    with lifetime.alone("unit-mine"):
        pass
    assert list(home.iterdir()) == []


async def test_home_that_cannot_be_written_is_one_sentence(home: Path) -> None:
    home.write_text("in the way")
    with (
        pytest.raises(ClusterError, match=r"where clusters live, cannot be written to: .*; run it as root, or set"),
        lifetime.alone("unit-mine"),
    ):
        pass


@pytest.mark.parametrize("ctrl_c", [signal.default_int_handler, signal.SIG_IGN], ids=["foreground", "background"])
def test_sigterm_is_a_clean_end_while_a_cluster_changes(home: Path, ctrl_c: signal.Handlers) -> None:
    cleared: list[str] = []

    async def change() -> None:
        with lifetime.alone("unit-mine"):
            try:
                signal.raise_signal(signal.SIGTERM)
                await asyncio.Event().wait()
            finally:
                await asyncio.to_thread(cleared.append, "what was half-started")

    before, sigterm = signal.signal(signal.SIGINT, ctrl_c), signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(change())
    finally:
        signal.signal(signal.SIGINT, before)
    assert cleared == ["what was half-started"]
    assert signal.getsignal(signal.SIGTERM) is sigterm
    assert list(home.iterdir()) == []


def test_cluster_that_is_not_up_has_no_place(home: Path) -> None:
    with pytest.raises(ClusterError, match=r"^the cluster 'unit-mine' is not up; run `make cluster-up`$"):
        lifetime.place_of_running("unit-mine")
