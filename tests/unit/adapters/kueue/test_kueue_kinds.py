"""Which pods Kueue stops with what, by owner references and by the names of groups, for kinds that no code names."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, cast

import msgspec
import pytest

from cedana_sched.adapter.contract import Preempted
from cedana_sched.adapter.settings import read_section
from cedana_sched.kube.builtin_kinds import Metadata, OwnerReference, Pod
from cedana_sched.kube.client import Object
from cedana_sched.kube.index import Index
from cedana_sched.kube.resources import JOBS, Resource
from cedana_sched.model.errors import UsageError
from cedana_sched.model.objects import names
from cedana_sched.model.objects.object_names import hold_name
from cedana_sched.model.pod_indexing import POD_SET, pod_place_of
from cedana_sched.model.preemption import HeldObject, Release, Signal, Verdict
from cedana_sched_kueue.admission_check_decisions import CONTINUES_BY_ROLE, PODS_NAME_THEIR_ID, decide_check_answer
from cedana_sched_kueue.managed_kinds import ManagedKind, ManagedKinds, Settings
from cedana_sched_kueue.managed_objects import LONGEST_CHAIN, ManagedObject, ManagedObjects, own_uid, owner_uid
from cedana_sched_kueue.objects import PodSet, Workload
from cedana_sched_kueue.pod_workloads import GROUP_NAME, PodWorkloads
from cedana_sched_kueue.preemptions import EvictionDetector
from tests.unit.adapters.kueue.kueue_builders import (
    EVICTED_AT,
    NAMESPACE,
    HandMirror,
    OnePolicy,
    changed,
    job,
    owner,
    pod,
    preempted,
    template,
    workload,
)
from tests.unit.adapters.kueue.kueue_stage import PodGroupStage

_CREW = Resource("x.example/v1", "Crew", "crews")
_KIND = ManagedKind(api_version="x.example/v1", kind="Crew", resource="crews")
_CREW_UID = "crew-uid"
_BY_CREW = owner(_CREW_UID, "crew", "Crew", "x.example/v1")


def crew(spec: dict[str, Any] | None = None, **metadata: Any) -> ManagedObject:
    """An object of a kind of which the adapter has the name alone."""
    body = {"metadata": {"name": "crew", "namespace": NAMESPACE, "uid": _CREW_UID, **metadata}, "spec": spec or {}}
    return msgspec.json.decode(msgspec.json.encode(body), type=ManagedObject)


class Crews:
    """A world with Crews, Jobs, Workloads and pods."""

    def __init__(self) -> None:
        self.crews: HandMirror[ManagedObject] = HandMirror()
        self.jobs: HandMirror[ManagedObject] = HandMirror()
        self.workloads: HandMirror[Workload] = HandMirror()
        self.pods: HandMirror[Pod] = HandMirror()
        by_owner = Index(owner_uid, self.workloads)
        self.objects = ManagedObjects({JOBS: self.jobs, _CREW: self.crews})
        self.preemptions = EvictionDetector(
            self.objects,
            PodWorkloads(self.workloads, by_owner, self.pods),
            Index(own_uid, self.workloads),
            by_owner,
            Index(owner_uid, self.pods),
            OnePolicy(),
            lambda: 1_000.0,
        )

    def signal(self, uid: str = _CREW_UID) -> Signal:
        (report,) = self.preemptions.reports_due(uid)
        assert isinstance(report, Preempted)
        return report.signal


def victims(signal: Signal) -> list[str]:
    return [victim.workload.name for victim in signal.victims]


def evicted(*owners: OwnerReference, **metadata: Any) -> Workload:
    return changed(preempted(), owner_references=owners, **metadata)


# -- by owner references


def test_pods_of_all_that_an_object_owns_are_saved_with_its_own() -> None:
    world = Crews()
    world.crews.put(crew())
    world.jobs.put(changed(job(), owner_references=(_BY_CREW,)))
    world.pods.put(pod(0))
    world.pods.put(changed(pod(1), owner_references=(_BY_CREW,)))
    world.pods.put(changed(pod(2), owner_references=(owner("another"),)))
    world.workloads.put(evicted(_BY_CREW))
    signal = world.signal()
    assert victims(signal) == ["md-0", "md-1"]
    assert signal.held == HeldObject("x.example/v1", "Crew", NAMESPACE, "crew", _CREW_UID)
    assert world.preemptions.suspended_owner_of(pod(0)) == _CREW_UID


def test_what_another_namespace_claims_to_be_owned_is_not() -> None:
    world = Crews()
    world.crews.put(crew())
    world.jobs.put(changed(job(), owner_references=(_BY_CREW,), namespace="other"))
    world.pods.put(pod(0))
    world.pods.put(changed(pod(1), owner_references=(_BY_CREW,)))
    world.workloads.put(evicted(_BY_CREW))
    assert victims(world.signal()) == ["md-1"]


def test_objects_that_own_each_other_end_the_search() -> None:
    world = Crews()
    world.crews.put(changed(crew(), owner_references=(owner(),)))
    world.jobs.put(changed(job(), owner_references=(_BY_CREW,)))
    world.pods.put(pod(0))
    world.workloads.put(evicted(_BY_CREW))
    assert victims(world.signal()) == ["md-0"]
    assert len(tuple(world.objects.owners_of(pod(0)))) == LONGEST_CHAIN


def test_an_object_that_is_gone_owns_nothing_any_more() -> None:
    world = Crews()
    child = changed(job(), owner_references=(_BY_CREW,))
    world.crews.put(crew())
    world.jobs.put(child)
    world.jobs.drop(child)
    found = world.objects.find(_CREW_UID)
    assert found is not None
    assert world.objects.owned_by(found) == (_CREW_UID,)


@pytest.mark.parametrize(
    ("spec", "suspended"),
    [
        ({}, False),
        ({"suspend": None, "runPolicy": None}, False),
        ({"suspend": True}, True),
        ({"runPolicy": {"suspend": True}}, True),
        ({"suspend": False, "runPolicy": {"suspend": False}}, False),
    ],
)
def test_both_fields_suspend(spec: dict[str, Any], suspended: bool) -> None:
    assert crew(spec).suspended is suspended


@pytest.mark.parametrize("field", [{"suspend": "yes"}, {"runPolicy": []}, {"runPolicy": {"suspend": 1}}])
def test_a_field_of_another_type_makes_the_object_unreadable(field: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        crew(field)


@pytest.mark.parametrize(
    ("spec", "names_identity"),
    [
        ({"a": [{"b": {"metadata": {"annotations": {names.ID: "x"}}}}]}, True),
        ({"roles": {"x": {"template": {"spec": {"containers": [{"env": [{"name": "CEDANA_CHECKPOINT"}]}]}}}}}, True),
        ({"a": [names.POLICY, "CEDANA_CHECKPOINTS"]}, False),
    ],
)
def test_an_id_is_found_wherever_a_kind_keeps_its_templates(spec: dict[str, Any], names_identity: bool) -> None:
    assert crew(spec).names_identity is names_identity


def test_the_spec_is_not_kept() -> None:
    assert len(msgspec.json.encode(crew({"filler": "x" * 100_000}))) < 1_000


# -- pods that Kueue stops one by one


def grouped(index: int, group: str = "crew-1") -> Pod:
    one = pod(index)
    return changed(one, labels={**one.metadata.labels, GROUP_NAME: group}, owner_references=())


def test_a_group_is_saved_as_a_whole_and_no_other_with_it() -> None:
    world = Crews()
    for one in (grouped(0), grouped(1), grouped(2, "crew-2"), changed(grouped(3), namespace="other")):
        world.pods.put(one)
    world.workloads.put(evicted(name="crew-1"))
    signal = world.signal("workload-1")
    assert victims(signal) == ["md-0", "md-1"]
    assert {victim.gang for victim in signal.victims} == {"workload-1"}
    assert signal.held == HeldObject("kueue.x-k8s.io/v1beta2", "Workload", NAMESPACE, "crew-1", "workload-1")


def test_a_workload_of_one_pod_saves_that_pod() -> None:
    world = Crews()
    world.pods.put(changed(pod(0), owner_references=(owner("rs", "serve", "ReplicaSet", "apps/v1"),)))
    world.pods.put(pod(1))
    world.workloads.put(evicted(owner("pod-0", "md-0", "Pod", "v1")))
    assert victims(world.signal("workload-1")) == ["md-0"]


def test_a_workload_that_an_object_controls_is_no_groups_whatever_its_name() -> None:
    world = Crews()
    world.pods.put(grouped(0, "job-md-12345"))
    world.workloads.put(evicted(owner()))
    assert world.preemptions.reports_due("workload-1") == ()
    assert world.preemptions.suspended_owner_of(grouped(0, "job-md-12345")) is None


def test_a_release_is_over_once_no_pod_of_the_group_runs() -> None:
    world = Crews()
    world.pods.put(grouped(0))
    world.workloads.put(evicted(name="crew-1"))
    name = hold_name(world.signal("workload-1").uid)
    assert world.preemptions.annotation_correction("workload-1") == (False, None)
    world.pods.put(changed(grouped(0), annotations={**pod(0).metadata.annotations, names.RELEASED_HOLD: name}))
    world.preemptions.on_released(f"workload-1@{EVICTED_AT}")
    assert world.preemptions.reports_due("workload-1") == ()
    world.pods.put(changed(grouped(0), deletion_timestamp=EVICTED_AT))
    assert world.preemptions.pending_eviction("workload-1") is None


class _Patient(PodGroupStage):
    """Kueue has no release yet."""

    def _may_be_suspended(self, job: Object) -> bool:
        return False


async def test_each_pod_of_a_group_is_told_of_the_release() -> None:
    """The change makes Kueue try again, which would otherwise wait longer and longer."""
    stage = _Patient()
    async with asyncio.timeout(60), stage.adapter() as adapter:
        members = await stage.start(members=2)
        await stage.preempt(members[0])
        async with aclosing(cast("AsyncGenerator[Preempted]", adapter.reports())) as reports:
            signal = (await anext(reports)).signal
        await adapter.release(Release(signal.uid, {one.uid: Verdict.COMMITTED for one in members}))
        released = [(stage.pod_of(one) or {})["metadata"]["annotations"].get(names.RELEASED_HOLD) for one in members]
    assert released == [hold_name(signal.uid)] * 2


# -- the check


@pytest.mark.parametrize("controller", [owner(kind="Pod", api_version="v1"), None])
def test_pods_that_are_there_get_no_id(controller: OwnerReference | None) -> None:
    """A policy of ours denies writes of ids on pods that are there, and Kueue could start nothing."""
    found = decide_check_answer(
        changed(workload(), owner_references=() if controller is None else (controller,)),
        "hourly",
        ManagedKinds((_KIND,)),
        lambda _: False,
    )
    assert (found.pod_set_updates, found.note) == ((), PODS_NAME_THEIR_ID)


def test_each_template_of_a_kind_gets_the_id_of_the_object() -> None:
    pod_sets = (PodSet("lead", template()), PodSet("rest", template({names.ID: "mine"})))
    gated = workload(owned_by=_BY_CREW, pod_sets=pod_sets)
    found = decide_check_answer(gated, None, ManagedKinds((_KIND,)), lambda _: False)
    assert found.pod_set_updates == ({"name": "lead", "annotations": {names.ID: "crew-crew-uid"}},)
    assert found.note == CONTINUES_BY_ROLE


def test_the_template_is_the_role_where_no_label_of_a_known_kind_says_one() -> None:
    assert pod_place_of({POD_SET: "lead"}, {}).role == ("lead",)
    assert pod_place_of({POD_SET: "main"}, {}).role == ()
    known = {POD_SET: "lead", "jobset.sigs.k8s.io/replicatedjob-name": "a", "jobset.sigs.k8s.io/job-index": "1"}
    assert pod_place_of(known, {}).role == ("a", "1")


def test_pods_of_a_group_are_numbered_by_their_label() -> None:
    assert pod_place_of({"kueue.x-k8s.io/pod-group-pod-index": "3"}, {}).index == 3


# -- settings


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ({"apiVersion": "v1", "kind": "Pod", "resource": "pods"}, "kueue.kinds.0.apiVersion: 'v1' cannot be used"),
        ({"apiVersion": "a.b/v1", "kind": "crew", "resource": "crews"}, "kueue.kinds.0.kind: 'crew' cannot be used"),
        ({"apiVersion": "a.b/v1", "kind": "Crew", "resource": "a/b"}, "kueue.kinds.0.resource: 'a/b' cannot be used"),
        ({"apiVersion": "batch/v1", "kind": "Job", "resource": "jobs"}, "Job of batch is there already"),
    ],
)
def test_a_kind_that_cannot_be_followed_is_refused(kind: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        read_section("kueue", Settings, {"kinds": [kind]})
    assert message in str(refused.value)


def test_an_owner_of_another_version_is_of_the_kind() -> None:
    kinds = ManagedKinds((_KIND,))
    assert kinds.resource_of(OwnerReference("x.example/v2", "Crew", "crew", "1")) == _CREW
    assert kinds.resource_of(OwnerReference("y.example/v1", "Crew", "crew", "1")) is None
    assert kinds.resource_of(None) is None


def test_metadata_of_a_workload_is_enough_to_stand_for_its_pods() -> None:
    assert ManagedObject(Metadata(name="a")).suspended is False
