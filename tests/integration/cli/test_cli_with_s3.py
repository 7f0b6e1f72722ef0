"""The command line finds the running engine's S3 store: only the keys come from the caller's environment."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from cedana_sched.cli.main import app
from cedana_sched.model.identity import Identity
from cedana_sched.store.snapshot_store import SnapshotStore
from tests.servers.snapshots import take
from tests.servers.versitygw import ACCESS_KEY, SECRET_KEY, Server, s3_server
from tests.unit.cli.fake_engine import AN_ENGINE, FakeEngine

__all__ = ["s3_server"]

pytestmark = pytest.mark.s3

KEYS = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}


def test_snapshots_of_the_running_engines_bucket(s3_server: Server, tmp_path: Path) -> None:
    config = s3_server.new_bucket()
    assert config.s3 is not None
    take(SnapshotStore.open(config), Identity("default", "md"), {"pages-1.img": b"x" * 100_000})
    engine = FakeEngine(tmp_path)
    engine.view = msgspec.structs.replace(
        AN_ENGINE, store=str(config), store_endpoint=config.s3.endpoint, store_region=config.s3.region
    )
    engine.start()
    try:
        arguments = ["--state-dir", str(tmp_path), "-o", "json", "snapshots"]
        listed = CliRunner().invoke(app, [*arguments, "list"], env=KEYS)
        assert [one["snapshot"] for one in json.loads(listed.stdout)] == ["default/md/0/main@1"]
        verified = CliRunner().invoke(app, [*arguments, "verify", "--all"], env=KEYS)
        assert verified.exit_code == 0, verified.stderr
        denied = CliRunner().invoke(app, [*arguments, "list"], env=KEYS | {"AWS_SECRET_ACCESS_KEY": "wrong"})
        assert denied.exit_code == 4
    finally:
        engine.stop()
