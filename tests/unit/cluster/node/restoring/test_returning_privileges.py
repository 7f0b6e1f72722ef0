"""What the agent refuses of a snapshot's privileges and images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cedana_sched.cluster.node.containers.bundles import Bundles
from cedana_sched.cluster.node.restoring.privilege_checks import (
    fail_overprivileged,
    recorded_privileges,
    refuse_other_images,
    refuse_other_service_account,
)
from cedana_sched.kube.builtin_kinds import Container, Metadata, Pod, PodSpec
from cedana_sched.model.errors import RestoreError
from cedana_sched.model.objects.names import RESTORE_CONTAINER
from cedana_sched.runtime_handler.plan import COLD, FAIL, RESTORE, ContainerPlan, ContainerResult, Plan, read_result
from cedana_sched.runtime_handler.privilege_comparison import Confinement, Credentials, Privileges
from cedana_sched.runtime_handler.privilege_record import encode
from cedana_sched.runtime_handler.runc_restore import RESTORED
from tests.unit.cluster.node.bundle_tree import Host

SAME = Privileges(
    Confinement(
        masked_paths=frozenset({"/proc/kcore", "/proc/keys", "/sys/firmware", "/proc/absent"}),
        own_namespaces=frozenset({"pid", "mount"}),
        joined_namespaces=frozenset({"network", "ipc"}),
    ),
    Credentials(),
)
"""Of the containers of this host."""
BACK = ContainerResult(restored=True, id="c")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / "host")


def checked(
    host: Host, folder: Path, privileges: Privileges | None, fallback: str = COLD, *, continued: bool = True
) -> ContainerResult:
    host.container("c")
    if continued:
        host.write(host.places.states / "c" / RESTORED, "")
    plan = Plan(RESTORE, fallback=fallback, containers={"main": ContainerPlan("/i", "/w", privileges=privileges)})
    running = Bundles(host.places).workload_containers("p1")
    return fail_overprivileged(str(folder), plan, {"main": BACK}, running, host.places)["main"]


def test_what_came_back_as_it_may_stays(host: Host, tmp_path: Path) -> None:
    assert checked(host, tmp_path, SAME) == BACK


@pytest.mark.parametrize("fallback", [COLD, FAIL])
@pytest.mark.parametrize("privileges", [None, SAME._replace(container=Confinement(user=5))])
def test_what_an_earlier_handler_let_through_counts_as_failed(
    host: Host, tmp_path: Path, privileges: Privileges | None, fallback: str
) -> None:
    result = checked(host, tmp_path, privileges, fallback)
    assert (result.restored, result.cold) == (False, fallback == COLD)
    assert "privileges" in result.why
    assert read_result(str(tmp_path), "main") == result


def test_what_its_kubelet_has_started_anew_is_as_it_may_be(host: Host, tmp_path: Path) -> None:
    assert checked(host, tmp_path, None, continued=False) == BACK


def test_records_are_read_by_container() -> None:
    facts = json.loads(json.dumps({"privileges": {"main": encode(SAME)}}))
    assert recorded_privileges(facts) == {"main": SAME}
    assert recorded_privileges({}) == {}


@pytest.mark.parametrize("found", [[], {"main": None}, {"main": {"version": 2}}, "x"])
def test_a_record_that_cannot_be_read_is_refused(found: Any) -> None:
    with pytest.raises(RestoreError, match="record of privileges cannot be read"):
        recorded_privileges({"privileges": found})


def pod(**images: str) -> Pod:
    containers = tuple(Container(name, image) for name, image in images.items())
    return Pod(metadata=Metadata(name="p", uid="u"), spec=PodSpec(containers=containers))


@pytest.mark.parametrize("recorded", [{"main": "a:2"}, {"main": None}, {}, None, "a:1", {"main": "a:1@sha256:0"}])
def test_an_image_that_is_not_the_same_is_refused(recorded: Any) -> None:
    with pytest.raises(RestoreError, match=r"container main: image: .* in the snapshot, a:1 in the new container"):
        refuse_other_images({"images": recorded}, ["main"], pod(main="a:1", beside="b:1"))


@pytest.mark.parametrize("facts", [{"service_account": "deployer"}, {"service_account": None}, {}])
def test_a_pod_of_another_account_is_refused(facts: dict[str, Any]) -> None:
    of_default = Pod(metadata=Metadata(name="p", uid="u"), spec=PodSpec(service_account_name="default"))
    refuse_other_service_account({"service_account": "default"}, of_default)
    with pytest.raises(RestoreError, match=r"ServiceAccount: .* in the snapshot, default in the new pod"):
        refuse_other_service_account(facts, of_default)


def with_init(**restart_policies: str | None) -> Pod:
    inits = tuple(Container(name, "b:1", restart_policy=policy) for name, policy in restart_policies.items())
    spec = PodSpec(containers=(Container("main", "a:1"),), init_containers=inits)
    return Pod(metadata=Metadata(name="p", uid="u"), spec=spec)


def test_a_container_that_was_not_in_the_pod_is_refused() -> None:
    for added in (pod(main="a:1", beside="b:1"), with_init(beside="Always")):
        with pytest.raises(RestoreError, match="container beside: it was not in the pod when the snapshot was taken"):
            refuse_other_images({"images": {"main": "a:1"}}, ["main"], added)


def test_a_container_that_had_ended_is_known_as_well() -> None:
    refuse_other_images({"images": {"main": "a:1", "beside": "b:1"}}, ["main"], pod(main="a:1", beside="b:1"))
    refuse_other_images({"images": {"main": "a:1", "beside": "b:1"}}, ["main"], with_init(beside="Always"))
    with pytest.raises(RestoreError, match="container beside: image: b:2 in the snapshot, b:1 in the new container"):
        refuse_other_images({"images": {"main": "a:1", "beside": "b:2"}}, ["main"], pod(main="a:1", beside="b:1"))


def test_init_containers_that_end_before_the_others_begin_are_no_matter() -> None:
    refuse_other_images({"images": {"main": "a:1"}}, ["main"], with_init(**{"prepare": None, RESTORE_CONTAINER: None}))
