"""In a namespace that is not served the coordinator does nothing but let go of what waits there for it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, cast

import msgspec
import pytest
from msgspec.structs import replace

from cedana_sched.adapter.cluster_contract import ClusterAccess
from cedana_sched.adapter.contract import Preempted, PreemptionCancelled, Report, Starting
from cedana_sched.cluster.configuration import CoordinatorConfiguration
from cedana_sched.cluster.coordinator import pod_end_confirmation
from cedana_sched.cluster.coordinator.checkpoint_indexes import CheckpointsById
from cedana_sched.cluster.coordinator.excluded_namespace_cancellation import ExcludedNamespacesAdapter
from cedana_sched.cluster.coordinator.leading_coordinator import LeadingCoordinator
from cedana_sched.cluster.coordinator.pod_node_dependencies import PodNodeDependencies
from cedana_sched.cluster.coordinator.pod_reports import PodReports
from cedana_sched.cluster.coordinator.scheduling_gates import Gates
from cedana_sched.coordinator.core import ReleaseHold, Reported
from cedana_sched.kube.builtin_kinds import Container, Metadata, Pod, PodSpec
from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.errors import decoded
from cedana_sched.kube.own_kinds.cached_checkpoint import KnownCheckpoint
from cedana_sched.kube.resources import CHECKPOINTS, JOBS, PODS
from cedana_sched.model.objects import names
from cedana_sched.model.orders import Abort, Aborted, Frozen
from cedana_sched.model.policy import CheckpointPolicy
from cedana_sched.model.preemption import Signal, Verdict
from cedana_sched.model.records import CheckpointStep, Restore, RestoreStep
from cedana_sched.model.served_namespaces import EVERYWHERE, ServedNamespaces
from cedana_sched.testing import FakeApi
from cedana_sched_volcano.objects import POD_GROUPS
from tests.unit.cluster.coordinator.filled_mirrors import SavedSnapshots, filled, known_beginnings, known_checkpoints
from tests.unit.cluster.coordinator.test_object_journal import checkpoint
from tests.unit.cluster.coordinator.test_objects_of_records import RESTORE
from tests.unit.coordinator.core.core_builders import Told, victim
from tests.unit.kube.moody_api_server import MoodyApiServer

EXCLUDED = ServedNamespaces(frozenset({"bio"}))
WHY = "namespace bio is excluded (excludedNamespaces)"
BOTH = pytest.mark.parametrize("served", [EVERYWHERE, EXCLUDED], ids=["served", "excluded"])


async def _turns() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def _reported(reports: Any) -> list[Report]:
    """All that it reports by now."""
    heard = list[Report]()

    async def read() -> None:
        async for report in reports:
            heard.append(report)

    reading = asyncio.create_task(read())
    await _turns()
    reading.cancel()
    with suppress(asyncio.CancelledError):
        await reading
    return heard


# -- what is seen


async def test_components_and_adapters_see_no_pod_of_it() -> None:
    server = MoodyApiServer()
    for namespace in ("lab", "bio", "kube-system"):
        metadata = {"name": "one", "namespace": namespace}
        server.put(PODS, {"metadata": {**metadata, "labels": {names.PROTECTED: "true"}}})
        server.put(JOBS, {"metadata": metadata})
        server.put(POD_GROUPS, {"metadata": metadata})
    configuration = CoordinatorConfiguration(
        namespace="ours", excluded_namespaces=frozenset({"bio"}), adapters=("kueue", "volcano")
    )
    async with server.serving() as api, asyncio.timeout(60):
        leader = LeadingCoordinator(api, configuration, "me")
        kueue, volcano = (cast("Any", leader._adapters[name]) for name in ("kueue", "volcano"))
        unprepared = leader._missed_by_webhook
        async with leader.run_coordinator():
            informers = [leader.pods, kueue._pods, volcano._pods, unprepared.unlabelled, unprepared.refused]
            informers += [kueue._informers.by_resource[JOBS], volcano._groups]
            for informer in informers:
                await informer.synced.wait()
            shown = [{one.metadata.namespace for one in informer} for informer in informers]
    assert shown == [{"lab"}] * len(informers)


# -- what is being saved


def _held() -> Told:
    """A hold of one victim in `bio`, which is frozen."""
    told = Told()
    told.report(Preempted(Signal("s1", "kueue", (victim(),), "InCohortReclamation", observed_at=told.now)))
    return told.tell(Frozen("s1.w1.1"))


async def test_a_hold_that_stands_when_its_namespace_is_excluded_is_called_off_and_released() -> None:
    told = _held()
    told.restart()
    excluded = ExcludedNamespacesAdapter(EXCLUDED)
    excluded.on_records_saved(told.core.records(), ())
    [cancelled] = await _reported(excluded.reports())
    assert cancelled == PreemptionCancelled("s1", WHY)
    told.tell(Reported(ExcludedNamespacesAdapter.name, cancelled))
    assert told.order(Abort).checkpoint_uid == "s1.w1.1", "it is thawed"
    told.tell(Aborted("s1.w1.1"))
    [release] = [one for one in told.said if isinstance(one, ReleaseHold)]
    assert (release.adapter, release.release.verdicts) == ("kueue", {"w1": Verdict.NOT_NEEDED})


async def test_one_that_comes_later_is_called_off_once() -> None:
    excluded, heard = ExcludedNamespacesAdapter(EXCLUDED), list[Report]()
    excluded.on_records_saved((), ())

    async def read() -> None:
        async for report in excluded.reports():
            heard.append(report)

    reading = asyncio.create_task(read())
    await _turns()
    for step in (CheckpointStep.WAITING, CheckpointStep.FREEZING, CheckpointStep.ABORTING, CheckpointStep.FAILED):
        excluded.on_records_saved((checkpoint(1, step),), ())
    await _turns()
    assert heard == [PreemptionCancelled("s", WHY)]
    reading.cancel()
    assert await _reported(excluded.reports()) == [], "it is over"


@pytest.mark.parametrize("step", [CheckpointStep.READY, CheckpointStep.FAILED])
async def test_what_is_settled_stays_as_it_is(step: CheckpointStep) -> None:
    excluded = ExcludedNamespacesAdapter(EXCLUDED)
    excluded.on_records_saved((checkpoint(1, step),), ())
    assert await _reported(excluded.reports()) == []


async def test_what_is_saved_elsewhere_goes_on() -> None:
    excluded = ExcludedNamespacesAdapter(ServedNamespaces(frozenset({"kube-system"})))
    excluded.on_records_saved((checkpoint(1, CheckpointStep.DUMPING),), ())
    assert await _reported(excluded.reports()) == []


async def test_the_coordinator_that_leads_calls_it_off() -> None:
    """As it is wired: the report comes to the core, and with it what was loaded from the journal."""
    configuration = CoordinatorConfiguration(namespace="ours", excluded_namespaces=frozenset({"bio"}))
    leader = LeadingCoordinator(FakeApi(), configuration, "me")
    leader._on_records_saved((checkpoint(1, CheckpointStep.DUMPING),), ())
    adapter = leader.coordinator._adapters[ExcludedNamespacesAdapter.name]
    assert await _reported(adapter.reports()) == [PreemptionCancelled("s", WHY)]


# -- what waits for a return


class _Policies:
    def policy_named(self, name: str | None, namespace: str) -> CheckpointPolicy:
        return CheckpointPolicy()

    def policy_of_pod(self, pod: Pod) -> CheckpointPolicy:
        return CheckpointPolicy()


_FAILED = msgspec.convert(
    {"metadata": {"name": "md-1", "namespace": "bio"}, "spec": {"identity": {"id": "md", "index": 3}}}, KnownCheckpoint
)


def _returning(*init_containers: str, identifier: str = "md") -> Pod:
    annotations = {names.ID: identifier, names.INDEX: "3", names.RESTORE_IDENTITY: f"{identifier}/3@12"}
    containers = tuple(Container(name) for name in init_containers)
    return Pod(
        Metadata("md-3", "bio", "uid-3", "1", annotations=annotations), PodSpec("n1", init_containers=containers)
    )


def _pod_reports(
    served: ServedNamespaces,
    *pods: Pod,
    api: Any = None,
    dependencies: PodNodeDependencies | None = None,
    events: Any = None,
) -> PodReports:
    """A Checkpoint of `md` is there, which failed."""
    informer = filled(*pods)
    informer.synced.set()
    nothing = cast("Any", None)
    access = ClusterAccess(api, events, informer, _Policies(), SavedSnapshots(), "ours", nothing, served=served)
    return PodReports(access, dependencies or PodNodeDependencies(), known_beginnings(), known_checkpoints(_FAILED))


@BOTH
@pytest.mark.parametrize("waits", [True, False])
async def test_only_who_waits_in_our_container_is_told_how_to_begin(served: ServedNamespaces, waits: bool) -> None:
    """Its node refuses to continue it, and it begins anew; see `order_border`."""
    pod = _returning(*([names.RESTORE_CONTAINER] if waits else ["theirs"]))
    reports = await _reported(_pod_reports(served, pod).reports())
    is_told = waits or served is EVERYWHERE
    assert [type(report) for report in reports] == ([Starting] if is_told else [])


@BOTH
async def test_who_waits_in_our_container_without_a_snapshot_is_given_no_restore_there(
    served: ServedNamespaces,
) -> None:
    """No Checkpoint is there under its id, and it names none of another cluster's: whoever wrote the container."""
    reports = _pod_reports(served, _returning(names.RESTORE_CONTAINER, identifier="made-up")).reports()
    assert [type(report) for report in await _reported(reports)] == ([Starting] if served is EVERYWHERE else [])


@pytest.mark.parametrize("said", [{names.EXPECT_SNAPSHOT: "true"}, {names.RESTORE_FROM: "from-another-cluster/3@12"}])
async def test_a_pod_that_waits_for_what_another_cluster_has_saved_begins(said: dict[str, str]) -> None:
    pod = _returning(names.RESTORE_CONTAINER, identifier="from-another-cluster")
    pod.metadata.annotations.update(said)
    assert [type(one) for one in await _reported(_pod_reports(EXCLUDED, pod).reports())] == [Starting]


async def test_a_leader_gives_a_restore_to_whom_it_had_wait_alone() -> None:
    """As it is wired, and with Checkpoints that it sees after the pods."""
    server = MoodyApiServer()
    for name in ("made-up", "md"):
        pod = msgspec.to_builtins(_returning(names.RESTORE_CONTAINER, identifier=name))
        pod["metadata"] |= {"name": name, "uid": f"uid-of-{name}", "labels": {names.PROTECTED: "true"}}
        server.put(PODS, pod)
    server.put(CHECKPOINTS, msgspec.to_builtins(_FAILED))
    configuration = CoordinatorConfiguration(namespace="ours", excluded_namespaces=frozenset({"bio"}))
    async with server.serving() as api, asyncio.timeout(60):
        leader = LeadingCoordinator(api, configuration, "me")
        reports = leader.coordinator._adapters[PodReports.name].reports()
        async with leader.run_coordinator():
            assert cast("Starting", await anext(aiter(reports))).identity.id == "md"


@BOTH
async def test_our_label_is_not_put_back_there(served: ServedNamespaces, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_end_confirmation, "LOOK_AGAIN_SECONDS", 0.001)
    server, dependencies = FakeApi(), PodNodeDependencies()
    pod = _returning()
    server.put(PODS, msgspec.to_builtins(pod))
    workload = replace(RESTORE.workload, uid="uid-3", name="md-3")
    running: Restore = replace(RESTORE, workload=workload, finished_at=None, step=RestoreStep.RUNNING)
    dependencies.on_records_saved((running,), ())
    told = list[Any]()

    class Events:
        record_event = told.append

    reports = _pod_reports(served, api=server, dependencies=dependencies, events=Events())
    looking = asyncio.create_task(reports.run())
    await _reported(reports.reports())
    await asyncio.sleep(0.05)
    looking.cancel()
    assert len(told) == (1 if served is EVERYWHERE else 0)
    assert bool(server.traffic.writes) is (served is EVERYWHERE)


class _Gated:
    """A pod of `bio` behind our gate, whose snapshot is in flight."""

    def __init__(self) -> None:
        metadata = {"name": "md-1", "namespace": "bio", "uid": "u", "annotations": {names.ID: "md", names.INDEX: "1"}}
        gates = [{"name": "somebody/else"}, {"name": names.RESTORE_GATE}]
        self.pod: Object = {"metadata": metadata, "spec": {"schedulingGates": gates}}
        self.patches: list[Object] = []

    async def get(self, _: Any, name: str, __: str, *, into: type[Any]) -> Any:
        return decoded(f"GET {name}", msgspec.json.encode(self.pod), into)

    async def patch(self, _: Any, __: str, ___: str, patch: list[Object]) -> None:
        self.patches += patch[2:]


@BOTH
async def test_no_gate_of_ours_stays_closed_there(served: ServedNamespaces) -> None:
    server, nothing = _Gated(), filled()
    nothing.synced.set()
    gates = Gates(
        cast("Api", server), filled(msgspec.convert(server.pod, Pod)), filled(), CheckpointsById(nothing), served=served
    )
    gates.on_records_saved((checkpoint(1, CheckpointStep.DUMPING),))
    opening = asyncio.create_task(gates.run())
    await _turns()
    opening.cancel()
    with suppress(asyncio.CancelledError):
        await opening
    removed = [
        {"op": "test", "path": "/spec/schedulingGates/1/name", "value": names.RESTORE_GATE},
        {"op": "remove", "path": "/spec/schedulingGates/1"},
    ]
    assert server.patches == ([] if served is EVERYWHERE else removed)
