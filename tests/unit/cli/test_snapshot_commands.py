"""`snapshots` and `store`, on a real folder."""

import json
import os
import random
import time
from pathlib import Path

import msgspec
import pytest

from cedana_sched.model.identity import Identity, SnapshotRef, namespace_store_key
from cedana_sched.model.lineage import Lineage
from cedana_sched.model.manifest import FORMAT_VERSION
from cedana_sched.store.manifest_format import encode_manifest
from cedana_sched.store.snapshot_store import SnapshotStore
from cedana_sched.store.storage_config import StorageConfig
from cedana_sched.store.store_presence import NOTES
from tests.servers.snapshots import metadata, take

from .conftest import Cli
from .fake_engine import AN_ENGINE, FakeEngine

MEMORY = random.Random(1).randbytes(300_000)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two generations of one workload, one of another in another namespace."""
    path = tmp_path / "store"
    store = SnapshotStore.open(StorageConfig(path=path))
    for identity in (Identity("default", "md"), Identity("default", "md"), Identity("team-b", "train")):
        take(store, identity, {"pages-1.img": MEMORY + bytes(200_000)})
    return path


def names(output: str) -> list[str]:
    return [view["snapshot"] for view in json.loads(output)]


def test_list_shows_every_generation_with_raw_sizes_in_json(cli: Cli, folder: Path) -> None:
    output = cli("snapshots", "list", "-o", "json").stdout
    assert names(output) == ["default/md/0/main@1", "default/md/0/main@2", "team-b/train/0/main@1"]
    first, second, _ = json.loads(output)
    assert first["read_bytes"] == 500_000
    assert first["reused_bytes"] == 0
    assert second["reused_bytes"] > 0


@pytest.mark.parametrize(
    ("id_", "generations"), [("md", 2), ("default/md", 2), ("team-b/md", 0), ("team-b/train", 1), ("team-b/", 1)]
)
def test_list_of_an_id(cli: Cli, folder: Path, id_: str, generations: int) -> None:
    assert len(names(cli("snapshots", "list", id_, "-o", "json").stdout)) == generations


def test_a_namespaces_name_stands_for_all_that_had_it(cli: Cli, folder: Path) -> None:
    uids = [f"0a1b2c3d-0000-4000-8000-00000000000{number}" for number in (1, 2)]
    store = SnapshotStore.open(StorageConfig(path=folder))
    for uid in uids:
        take(store, Identity(namespace_store_key("team-b", uid), "train"), {"pages-1.img": MEMORY})

    assert len(names(cli("snapshots", "list", "team-b/train", "-o", "json").stdout)) == 3
    one = f"team-b.{uids[0]}/train"
    assert names(cli("snapshots", "list", one, "-o", "json").stdout) == [f"{one}/0/main@1"]
    assert f"{one}/0/main@1" in cli("snapshots", "inspect", f"{one}@1").stdout


def test_list_as_a_table(cli: Cli, folder: Path) -> None:
    heading, row, *_ = cli("snapshots", "list").stdout.splitlines()
    assert heading.split() == ["SNAPSHOT", "AGE", "SIZE", "ZERO", "REUSED", "STORED", "REASON"]
    assert row.split()[0] == "default/md/0/main@1"


def test_the_store_is_the_running_engines(engine: FakeEngine, cli: Cli, folder: Path, tmp_path: Path) -> None:
    elsewhere = folder.rename(tmp_path / "elsewhere")
    assert cli("snapshots", "list").exit_code != 0
    engine.view = msgspec.structs.replace(AN_ENGINE, store=str(elsewhere))
    assert len(names(cli("snapshots", "list", "-o", "json").stdout)) == 3


def test_inspect_tells_size_and_origin(cli: Cli, folder: Path) -> None:
    text = cli("snapshots", "inspect", "default/md@1").stdout
    assert "default/md/0/main@1" in text
    view = json.loads(cli("snapshots", "inspect", "default/md@1", "-o", "json").stdout)
    assert view["size_bytes"] == 500_000
    assert view["streams_bytes"] == {"pages-1.img": 500_000}


def test_inspect_names_what_a_snapshot_left_behind(cli: Cli, tmp_path: Path) -> None:
    store = SnapshotStore.open(StorageConfig(path=tmp_path / "store"))
    for run in ("first", "that began anew"):
        with store.begin(Identity("default", "md"), checkpoint_uid=run, lineage=Lineage(run)) as writer:
            writer.commit(metadata(run))
    for snapshot, left in (("default/md@1", "-"), ("default/md@2", "@1")):
        lines = cli("snapshots", "inspect", snapshot).stdout.splitlines()
        assert [line.split() for line in lines if "Does not continue" in line] == [["Does", "not", "continue:", left]]


def test_verify_reads_everything(cli: Cli, folder: Path) -> None:
    result = cli("snapshots", "verify", "--all")
    assert (result.exit_code, result.stdout) == (0, "3 of 3 snapshots are whole\n")
    assert result.stderr.count(" ok ") == 3


def test_verify_finds_a_damaged_byte(cli: Cli, folder: Path) -> None:
    pack = max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 1
    pack.chmod(0o600)
    pack.write_bytes(data)
    result = cli("snapshots", "verify", "--all", "-o", "json")
    assert result.exit_code == 1
    assert not all(report["ok"] for report in json.loads(result.stdout))
    *logged, error = map(json.loads, result.stderr.splitlines())
    assert {line["event"] for line in logged} == {"chunk_read_again"}
    assert error["kind"] == "IntegrityError"
    assert error["evidence"]


def test_verify_all_names_a_snapshot_whose_manifest_is_damaged(cli: Cli, folder: Path) -> None:
    [manifest] = (path for path in folder.rglob("*.manifest") if "team-b" in str(path))
    data = bytearray(manifest.read_bytes())
    data[len(data) // 2] ^= 1
    manifest.chmod(0o600)
    manifest.write_bytes(data)
    result = cli("snapshots", "verify", "--all")
    assert (result.exit_code, result.stdout) == (1, "2 of 3 snapshots are whole\n")
    assert "damaged: team-b/train/0/main@1" in result.stderr


def test_verify_says_no_count_of_a_snapshot_of_a_newer_format(cli: Cli, folder: Path) -> None:
    ref = SnapshotRef(Identity("team-b", "train"), 1)
    [file] = (path for path in folder.rglob("*.manifest") if "team-b" in str(path))
    newer = encode_manifest(
        SnapshotStore.open(StorageConfig(path=folder)).open_snapshot(ref).manifest, version=FORMAT_VERSION + 1
    )
    file.chmod(0o600)
    file.write_bytes(newer)
    one, everything = cli("snapshots", "verify", str(ref)), cli("snapshots", "verify", "--all")
    assert (one.exit_code != 0, one.stdout) == (True, "")
    assert "upgrade" in one.stderr
    assert (everything.exit_code, everything.stdout) == (one.exit_code, "2 of 2 snapshots are whole\n")


def test_rm_removes_and_gc_frees(cli: Cli, folder: Path) -> None:
    assert cli("snapshots", "rm", "default/md@1", "team-b/train@1").exit_code == 0
    assert names(cli("snapshots", "list", "-o", "json").stdout) == ["default/md/0/main@2"]
    reports = {report["namespace"]: report for report in json.loads(cli("snapshots", "gc", "-o", "json").stdout)}
    assert set(reports) == {"default", "team-b"}
    assert cli("snapshots", "verify", "default/md@2").exit_code == 0


def test_gc_by_hand_marks_at_once_and_removes_after_its_grace(cli: Cli, folder: Path) -> None:
    def removed_and_marked(*grace: str) -> tuple[int, int]:
        [report] = json.loads(cli("snapshots", "gc", "--namespace", "team-b", *grace, "-o", "json").stdout)
        return report["removed_packs"], report["condemned_packs"]

    assert cli("snapshots", "rm", "team-b/train@1").exit_code == 0
    assert removed_and_marked() == (0, 1)
    [marker] = (path for path in folder.rglob("condemned/*") if path.is_file())
    for age, grace, removed in ((14 * 60, (), 0), (50 * 60, ("--grace", "1h"), 0), (16 * 60, (), 1)):
        os.utime(marker, (time.time() - age,) * 2)
        assert removed_and_marked(*grace) == (removed, 0)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("inspect", "default/md@9"), 3, "'default/md/0/main@9' does not exist"),
        (("inspect", "md"), 2, "write namespace/id@generation"),
        (("rm", "default/md@x"), 2, "cannot be read"),
        (("verify",), 2, "give one of the two"),
        (("verify", "default/md@1", "--all"), 2, "give one of the two"),
        (("list", "--store", "ftp://x"), 2, "cannot be read as a place"),
        (("list", "--store", "s3://UPPER/x"), 2, "bucket"),
        (("list", "--store", "/dev/null/x"), 4, "/dev/null"),
    ],
)
def test_bad_input_is_named(cli: Cli, folder: Path, arguments: tuple[str, ...], code: int, said: str) -> None:
    result = cli("snapshots", *arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    assert said in result.stderr
    assert "remedy: " in result.stderr


def test_without_any_store_it_is_asked_for(cli: Cli) -> None:
    result = cli("snapshots", "list")
    assert result.exit_code == 3
    assert "name one with --store" in result.stderr


def test_store_check_says_what_the_store_can_do(cli: Cli, tmp_path: Path) -> None:
    result = cli("store", "check", "--store", str(tmp_path / "new"))
    assert result.exit_code == 0
    assert "Conditional create:  yes" in result.stdout
    report = json.loads(cli("store", "check", "--store", str(tmp_path / "new"), "-o", "json").stdout)
    assert report["write_bytes_per_second"] > 0


def test_an_s3_store_that_does_not_answer_is_unreachable(cli: Cli) -> None:
    """Port 9 of this machine: nothing listens there."""
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    place = ("--store", "s3://bucket/x", "--s3-endpoint", "http://127.0.0.1:9", "--s3-allow-http")
    result = cli("store", "check", *place, env=keys)
    assert result.exit_code == 7
    assert "the bucket bucket/x at http://127.0.0.1:9" in result.stderr
    assert "remedy: " in result.stderr


def test_a_store_whose_mount_is_away_is_unreachable(cli: Cli, folder: Path, tmp_path: Path) -> None:
    SnapshotStore.open(StorageConfig(path=folder), notes=tmp_path / NOTES).list()
    [note] = (tmp_path / NOTES).iterdir()
    folder.rename(tmp_path / "elsewhere")
    folder.mkdir()
    result = cli("snapshots", "list")
    assert (result.exit_code, result.stdout) == (7, "")
    assert f"remove {note}" in result.stderr
    assert list(folder.iterdir()) == []
    note.unlink()
    assert names(cli("snapshots", "list", "-o", "json").stdout) == []


def test_references_stay_readable() -> None:
    assert str(SnapshotRef.parse("default/md@1")) == "default/md/0/main@1"
