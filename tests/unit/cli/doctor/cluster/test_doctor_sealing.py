"""Whether the doctor misses the key, and reads nothing that a Secret holds."""

from __future__ import annotations

import json

import pytest

from cedana_sched.cli.cluster_reader import MissingPermissionError
from cedana_sched.cli.doctor.cluster import sealing
from cedana_sched.kube.client import Object
from cedana_sched.kube.resources import CONFIG_MAPS, SECRETS
from cedana_sched.model.errors import CedanaSchedError

from .cluster_to_look_at import NAMESPACE, RELEASE, Cluster

SECRET: Object = {"metadata": {"name": "our-keys", "namespace": NAMESPACE}}


def agents(secret: str | None) -> Object:
    volumes = [{"name": "temporary", "emptyDir": {}}]
    volumes += [{"name": "keys", "secret": {"secretName": secret}}] if secret else []
    metadata = {"name": f"{RELEASE}-agent", "namespace": NAMESPACE}
    return {"metadata": metadata, "spec": {"template": {"spec": {"volumes": volumes}}}}


def told(**storage: bool) -> Object:
    data = {"coordinator.json": "{}", "agent.json": json.dumps({"storage": storage})}
    return {"metadata": {"name": RELEASE, "namespace": NAMESPACE}, "data": data}


async def test_a_key_that_is_there_is_well() -> None:
    cluster = Cluster().put(sealing.DAEMON_SETS, agents("our-keys")).put(SECRETS, SECRET)
    assert await cluster.findings(sealing.check_key_secret) == [
        "ok the key that seals snapshots is in Secret our-keys; keep a copy elsewhere"
    ]


async def test_a_key_that_is_gone_is_a_failure() -> None:
    (finding,) = await Cluster().put(sealing.DAEMON_SETS, agents("our-keys")).findings(sealing.check_key_secret)
    assert finding.startswith("fail Secret our-keys is not there")


async def test_snapshots_that_are_not_sealed_are_warned_of() -> None:
    (finding,) = await Cluster().put(sealing.DAEMON_SETS, agents(None)).findings(sealing.check_key_secret)
    assert finding.startswith("warn snapshots are not sealed")


async def test_without_the_right_nobody_says_that_the_key_is_gone() -> None:
    cluster = Cluster().put(sealing.DAEMON_SETS, agents("our-keys")).deny(SECRETS)
    with pytest.raises(MissingPermissionError, match="needs get on secrets in namespace cedana-system"):
        await cluster.findings(sealing.check_key_secret)


async def test_agents_that_cannot_be_found_leave_it_open() -> None:
    with pytest.raises(CedanaSchedError, match="not known: there is no DaemonSet"):
        await Cluster().put(sealing.DAEMON_SETS).findings(sealing.check_key_secret)


async def test_unsealed_snapshots_are_warned_of_while_they_are_accepted() -> None:
    assert await Cluster().put(CONFIG_MAPS, told()).findings(sealing.check_unsealed_snapshots) == []
    (finding,) = await Cluster().put(CONFIG_MAPS, told(acceptUnsealed=True)).findings(sealing.check_unsealed_snapshots)
    assert finding.startswith("warn agents accept snapshots that are not sealed")


@pytest.mark.parametrize("accepts", [{}, {"acceptUnsealed": True}])
async def test_agents_that_have_the_key_and_do_not_use_it_are_warned_of(accepts: dict[str, bool]) -> None:
    """It is the first step of an installation that begins to seal, and easily left at that."""
    cluster = Cluster().put(CONFIG_MAPS, told(writeUnsealed=True, **accepts))
    (finding,) = await cluster.findings(sealing.check_unsealed_snapshots)
    assert finding.startswith("warn agents have the key and seal nothing")


@pytest.mark.parametrize("text", ["", "[]", "{"])
async def test_settings_that_cannot_be_read_are_said(text: str) -> None:
    broken = {**told(), "data": {"coordinator.json": text, "agent.json": "{}"}}
    with pytest.raises(CedanaSchedError, match="ConfigMap cedana-sched cannot be read"):
        await Cluster().put(CONFIG_MAPS, broken).findings(sealing.check_unsealed_snapshots)
    with pytest.raises(CedanaSchedError, match="there is no ConfigMap cedana-sched"):
        await Cluster().findings(sealing.check_unsealed_snapshots)
