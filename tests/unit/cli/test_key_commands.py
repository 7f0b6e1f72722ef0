"""`keys` and `--key-file`, on a real folder."""

import json
from pathlib import Path

import msgspec
import pytest

from cedana_sched.cli.exit_codes import ExitCode
from cedana_sched.model.identity import Identity, namespace_store_key
from tests.servers.sealing import sealed_store
from tests.servers.snapshots import take

from .conftest import Cli
from .fake_engine import AN_ENGINE, FakeEngine


@pytest.fixture
def keys(cli: Cli, tmp_path: Path) -> str:
    """A file of keys, and in the state directory a store that is sealed with it."""
    file = tmp_path / "keys"
    assert cli("keys", "new", str(file)).exit_code == 0
    take(sealed_store(tmp_path / "store", file), Identity("default", "md"), {"core.img": b"memory"})
    return str(file)


def test_the_life_of_a_key(cli: Cli, keys: str) -> None:
    before = Path(keys).read_text().splitlines()
    newest = json.loads(cli("keys", "rotate", keys, "-o", "json").stdout)["key"]
    assert json.loads(cli("keys", "rewrap", "--key-file", keys, "-o", "json").stdout) == {"default": 1}
    Path(keys).write_text("\n".join(line for line in Path(keys).read_text().splitlines() if line.startswith(newest)))
    assert before[-1] not in Path(keys).read_text()

    assert "1 of 1 snapshots are whole" in cli("snapshots", "verify", "--all", "--key-file", keys).stdout

    erased = cli("keys", "erase", "default", "--key-file", keys)
    assert erased.stdout == "default: 1 data keys and 1 snapshots erased\n"
    assert json.loads(cli("snapshots", "list", "--key-file", keys, "-o", "json").stdout) == []
    assert cli("keys", "erase", "default").exit_code == ExitCode.NOT_FOUND


def test_a_name_alone_erases_none_of_the_namespaces_that_had_it(cli: Cli, keys: str, tmp_path: Path) -> None:
    whole = namespace_store_key("team-a", "0a1b2c3d-0000-4000-8000-000000000001")
    take(sealed_store(tmp_path / "store", Path(keys)), Identity(whole, "md"), {"core.img": b"memory"})

    refused = cli("keys", "erase", "team-a", "--key-file", keys)
    assert refused.exit_code == ExitCode.NOT_FOUND
    assert f"name one of {whole}" in refused.stderr
    assert cli("keys", "erase", whole, "--key-file", keys).stdout == f"{whole}: 1 data keys and 1 snapshots erased\n"


def test_without_the_key_the_error_names_it(cli: Cli, keys: str) -> None:
    refused = cli("snapshots", "list")
    assert refused.exit_code == ExitCode.REFUSED
    assert "keyFile: none is given" in refused.stderr
    assert "--key-file" in refused.stderr


def test_what_is_not_sealed_is_read_if_it_is_accepted(cli: Cli, keys: str, tmp_path: Path) -> None:
    store = sealed_store(tmp_path / "older", None)
    manifest = take(store, Identity("default", "md"), {"core.img": b"memory"})
    command = ("snapshots", "inspect", str(manifest.ref), "--store", str(tmp_path / "older"), "--key-file", keys)

    refused = cli(*command)
    assert refused.exit_code == ExitCode.REFUSED
    assert "is not sealed" in refused.stderr
    assert cli(*command, "--accept-unsealed").exit_code == 0
    alone = cli("snapshots", "list", "--accept-unsealed")
    assert alone.exit_code == ExitCode.USAGE
    assert "acceptUnsealed" in alone.stderr


def test_the_file_is_the_running_engines(engine: FakeEngine, cli: Cli, keys: str, tmp_path: Path) -> None:
    engine.view = msgspec.structs.replace(AN_ENGINE, store=str(tmp_path / "store"), key_file=keys)
    assert len(json.loads(cli("snapshots", "list", "-o", "json").stdout)) == 1
    assert f"with {keys}" in cli("engine", "status").stdout


def test_a_file_that_others_can_read_is_refused(cli: Cli, keys: str) -> None:
    Path(keys).chmod(0o644)
    refused = cli("snapshots", "list", "--key-file", keys)
    assert refused.exit_code == ExitCode.USAGE
    assert "chmod 600" in refused.stderr
