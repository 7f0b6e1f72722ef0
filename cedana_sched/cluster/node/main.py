"""The agent's process: prepares the node, then performs the coordinator's orders for its pods."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path

import msgspec
import structlog

from cedana_sched import __version__
from cedana_sched.agent.compatibility_facts import compatibility_of_node
from cedana_sched.agent.dump_budget import DumpBudget, DumpMetrics
from cedana_sched.agent.node_agent import NodeAgent
from cedana_sched.agent.staging import Reserve
from cedana_sched.agent.workload_inspections import WorkloadInspections
from cedana_sched.cluster.configuration import AgentConfiguration
from cedana_sched.cluster.node.capture_detacher import HostCgroupDetacher
from cedana_sched.cluster.node.checkpointable_condition import CheckpointableConditions, PodInspections
from cedana_sched.cluster.node.containers.containerd_host_paths import HostPaths
from cedana_sched.cluster.node.containers.containerd_wait import wait_for_containerd
from cedana_sched.cluster.node.containers.pod_containers import PodContainers
from cedana_sched.cluster.node.containers.pod_names import find_pod_names
from cedana_sched.cluster.node.facts import NodeFacts
from cedana_sched.cluster.node.foreign_socket_monitor import ForeignSocketMonitor, hold_port_event
from cedana_sched.cluster.node.garbage_collector import GarbageCollector
from cedana_sched.cluster.node.gpu_annotation import publish_gpus
from cedana_sched.cluster.node.grace_period_enforcer import OriginalGraceEnforcer, only_sidecars_are_left
from cedana_sched.cluster.node.installation.handler_registration import keep_registered
from cedana_sched.cluster.node.installation.host import Host
from cedana_sched.cluster.node.installation.installation import Installation, InstallationPaths, InstallationResult
from cedana_sched.cluster.node.interruptions.configured_monitoring import monitor_interruptions
from cedana_sched.cluster.node.interruptions.kubelet_shutdown import KubeletShutdown
from cedana_sched.cluster.node.interruptions.remaining_pods import RemainingPods
from cedana_sched.cluster.node.interruptions.shutdown_record import ShutdownRecords
from cedana_sched.cluster.node.kubelet_configuration import KubeletConfigurationReader
from cedana_sched.cluster.node.kubelet_thresholds import KubeletThresholds
from cedana_sched.cluster.node.node_pods import NodePods
from cedana_sched.cluster.node.order_feed import OrderFeed
from cedana_sched.cluster.node.order_validation import PodOrderGuard
from cedana_sched.cluster.node.pending_kills import PendingKills
from cedana_sched.cluster.node.pod_runtime import PodRuntime
from cedana_sched.cluster.node.prestop_server import PreStopServer
from cedana_sched.cluster.node.restoring.heartbeat import send_heartbeats
from cedana_sched.cluster.node.restoring.incarnation_reports import IncarnationReports
from cedana_sched.cluster.node.restoring.pod_restorer import PodRestorer
from cedana_sched.cluster.node.restoring.staging_progress import StagingProgress
from cedana_sched.cluster.node.store_namespace_names import StoreNamespaceNames
from cedana_sched.cluster.node.uninstall import run_until_marked, uninstall
from cedana_sched.cluster.node.unmounted_store_guard import UnmountedStoreGuard
from cedana_sched.component.draining import DrainablePart, run_until_drained
from cedana_sched.component.folder_watches import shared_folder_watches
from cedana_sched.component.health import Ready, serve_health
from cedana_sched.kube.builtin_kinds import Pod
from cedana_sched.kube.client import Api
from cedana_sched.kube.errors import ApiError, UnreadableError
from cedana_sched.kube.events import COMPONENT, EventRecorder
from cedana_sched.kube.server_time import SERVER_TIME
from cedana_sched.kube.token_access import TokenAccess
from cedana_sched.kube.watching import first_unsynced_reason
from cedana_sched.model.compatibility import NodeDescription
from cedana_sched.model.errors import CedanaSchedError
from cedana_sched.model.objects.names import PRESTOP_TOKEN
from cedana_sched.model.orders import Order, Outcome
from cedana_sched.model.path_segment_validation import is_object_name
from cedana_sched.retrying import retry
from cedana_sched.snapshot.criu_toolchain import ensure_toolchain
from cedana_sched.store.snapshot_store import SnapshotStore

log = structlog.get_logger(__name__)

HOST_ROOT = Path("/proc/1/root")
ENTER_HOST = ("nsenter", "--mount=/proc/1/ns/mnt", "--")
"""CRIU runs in the mount namespace of the containers' mounts."""


async def serve(configuration: AgentConfiguration, stopping: asyncio.Event) -> None:
    """Serve the node until `stopping` is set and work that only this agent can finish is drained; see `draining`."""
    busy: list[DrainablePart] = []
    with shared_folder_watches().keep_open():  # first: later, pods that run as root may hold all inotify instances
        await run_until_drained(stopping, _serve(configuration, busy), busy)


async def _serve(configuration: AgentConfiguration, busy: list[DrainablePart]) -> None:
    """Serve the node until cancelled; if the node is marked for uninstallation, uninstall, then wait to be stopped.

    Raises:
        HostError: the node cannot be prepared; names the cause and the remedy.
    """
    node = configuration.node_name()
    log.info("agent starts", version=__version__, node=node)
    waiting: list[str] = ["the node is being prepared"]

    def refused(what: str, error: ApiError) -> None:
        waiting[:] = [f"{what}: {error}"]

    ready: dict[str, Ready] = {"node": lambda: waiting[0] if waiting else None}
    async with (
        Api.open() as api,
        serve_health(
            configuration.operations_port,
            ready,
            readable=TokenAccess(api) if configuration.metrics_authentication else None,
        ),
    ):
        facts = NodeFacts(api, node)
        installation = Installation(
            Host(HOST_ROOT), InstallationPaths.from_configuration(configuration), facts.wait_ready
        )
        if not await retry("reading of the node", facts.is_marked_for_uninstall, ApiError, on_failure=refused):
            toolchain = await asyncio.to_thread(ensure_toolchain, progress=log.info)
            installed = await installation.install(toolchain)
            compatible = msgspec.structs.asdict(compatibility_of_node(toolchain.version))
            description = NodeDescription(**compatible, runc=installed.runc)
            publish = partial(facts.publish, description, ready=installed.is_active)
            await retry("facts of the node", publish, ApiError, on_failure=refused)
            shutdown = _make_kubelet_shutdown(configuration)
            agent = _Agent(api, node, configuration, installed, shutdown)
            busy.extend(agent.busy)
            ready["objects"] = agent.unsynced_reason
            waiting[:] = ["the agent is starting"]
            watches = [] if shutdown is None else [shutdown.watch(SERVER_TIME.now)]
            notices = monitor_interruptions(
                configuration.interruptions,
                facts.publish_interruption,
                facts.read_interruption,
                RemainingPods(api, node).has_pods,
                watches,
            )
            works = (keep_registered(installation), publish_gpus(facts.publish_gpus, HOST_ROOT), notices)
            await run_until_marked(facts, agent.run(waiting.clear), *works)
        await uninstall(facts, installation)
        await asyncio.Event().wait()


class _Agent:
    """The parts of one node's agent, wired."""

    def __init__(
        self,
        api: Api,
        node: str,
        configuration: AgentConfiguration,
        installed: InstallationResult,
        shutdown: KubeletShutdown | None,
    ) -> None:
        paths = HostPaths(host_root=HOST_ROOT, pods=configuration.kubelet / "pods")
        self._paths = paths
        state, data = configuration.state, configuration.data
        self._feed = OrderFeed(api, node, self._perform, served=configuration.served_namespaces)
        self._pods = NodePods(api, node, self._feed, configuration.served_namespaces, shutdown)
        self._order_guard = PodOrderGuard(self._perform_validated_order, self._pods.is_on_node, self._find_pod_names)
        wait_containerd = partial(wait_for_containerd, paths.agent_path(configuration.containerd_socket))
        self._restorer = PodRestorer(
            paths,
            state,
            data,
            installed.toolchain,
            self._pods,
            configuration.stall_seconds,
            wait_containerd=wait_containerd,
        )
        self._incarnation_reports = IncarnationReports(
            api, self._feed.restores, self._pods.pod, paths, self._restorer.served_incarnations
        )
        containers = PodContainers(paths)
        self._pending_kills = PendingKills(state / "doomed", containers.kill)
        self._runtime = PodRuntime(self._restorer.was_restored, paths, self._pending_kills, self._pods)
        self._detacher = HostCgroupDetacher(configuration.dumps.memory_bytes_each, HOST_ROOT)
        self._agent = NodeAgent(
            runtime=self._runtime,
            restorer=self._restorer,
            storage=configuration.storage,
            toolchain=installed.toolchain,
            cache_directory=data / "cache",
            cache_bytes=configuration.cache_bytes,
            state_directory=data,
            launcher=ENTER_HOST,
            reserve=_staging_reserve(configuration),
            namespace_share=configuration.staging_namespace_share,
            budget=DumpBudget(configuration.dumps.at_once, configuration.dumps.memory_bytes, DumpMetrics()),
            stall_seconds=configuration.stall_seconds,
            detacher=self._detacher,
            store_in_use=True,  # pods are restored only if Checkpoints, or annotations of the pods, name snapshots
            wait_ended=self._pods.wait_ended_or_backing_off,
            find_peer=self._pods.find_peer,
            show_staging=StagingProgress(paths).print_progress,
        )
        store_guard = UnmountedStoreGuard(api, self._agent.perform, configuration.storage.path)
        self._kept = StoreNamespaceNames(api, store_guard.perform, configuration.shared_namespaces)
        self._pre_stop = PreStopServer(
            self._pods.pod_of_prestop_token,
            self._pending_kills.on_container_ending,
            self._pods.wait_released,
            on_answered=self._on_container_ending,
        )
        self._own_grace = OriginalGraceEnforcer(
            self._pods.wait_released, self._pods.is_deleted, containers, self._pods.is_served
        )
        conditions = CheckpointableConditions(api, self._pods.pod)
        self._inspections = WorkloadInspections(self._agent.inspect, conditions.publish)
        self._pod_inspections = PodInspections(self._inspections, self._pods.is_served, SERVER_TIME.seconds)
        self.busy: tuple[DrainablePart, ...] = (self._feed,)
        self._hold_socket = configuration.hold_socket
        self._events = EventRecorder(api, COMPONENT)

        def taken(text: str) -> None:
            self._events.record_event(hold_port_event(node, text))

        self._hold_port = ForeignSocketMonitor(
            configuration.hold_port, configuration.hold_listeners_folder, taken, self._pod_display_names
        )
        self._collector = _make_garbage_collector(api, node, configuration)
        self._deletions: asyncio.TaskGroup | None = None

    async def run(self, ready: Callable[[], None]) -> None:
        """Serve until cancelled; `ready` is called once the agent serves."""
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._pending_kills)
            await self._detacher.prepare_groups()
            await stack.enter_async_context(self._agent)
            group = await stack.enter_async_context(asyncio.TaskGroup())
            self._deletions = group
            self._pods.subscribe(self._on_pod_change)
            self._pods.subscribe(self._pod_inspections.on_pod_change)
            group.create_task(self._pods.run(), name="pods")
            await self._pods.informer.synced.wait()
            group.create_task(self._feed.run(), name="orders")
            await self._feed.wait_synced()
            await retry("pods that return", self._find_unlabeled_pods, ApiError)
            await self._remove_rest_of_gone_pods()
            group.create_task(send_heartbeats(self._paths), name="heartbeats")
            group.create_task(self._incarnation_reports.run(), name="new incarnations")
            group.create_task(self._hold_port.run(), name="foreign sockets")
            group.create_task(self._events.run(), name="events")
            group.create_task(self._inspections.run(), name="looks at pods that have started")
            if self._collector is not None:
                group.create_task(self._collector.run(), name="turns to collect garbage")
            await stack.enter_async_context(self._pre_stop.serve(self._hold_socket))
            log.info("agent serves", pods=len(self._pods.informer))
            ready()
            await asyncio.Event().wait()

    def unsynced_reason(self) -> str | None:
        """Return what is not listed yet, and why; None once everything is."""
        return first_unsynced_reason(self._pods.informer, self._feed.checkpoints, self._feed.restores)

    def _perform(self, order: Order) -> AsyncIterator[Outcome]:
        return self._order_guard.perform(order)

    async def _find_pod_names(self, pod_uid: str) -> set[tuple[str, str]]:
        return await asyncio.to_thread(find_pod_names, pod_uid, self._paths)

    def _pod_display_names(self, pod_uid: str) -> set[str]:
        return {f"{namespace}/{name}" for namespace, name in find_pod_names(pod_uid, self._paths)}

    def _perform_validated_order(self, order: Order) -> AsyncIterator[Outcome]:
        return self._kept.perform(order)

    def _on_pod_change(self, before: Pod | None, now: Pod | None) -> None:
        assert self._deletions is not None  # noqa: S101  # set before the watch begins
        if now is None:
            if before is not None:
                self._pending_kills.drop(before.metadata.uid)
                self._runtime.forget_pod(before.metadata.uid)
                self._own_grace.on_pod_gone(before.metadata.uid)
                self._deletions.create_task(self._remove_rest_of_gone_pods(), name=f"rest of {before.metadata.name}")
        elif now.metadata.deletion_timestamp and (before is None or not before.metadata.deletion_timestamp):
            self._deletions.create_task(self._on_pod_deleted(now), name=f"deletion of {now.metadata.name}")
            self._own_grace.on_pod_ending(now, self._deletions)
        elif _has_grace_changed(before, now) or _has_ended_but_its_sidecars(before, now):
            self._own_grace.on_pod_ending(now, self._deletions)

    def _on_container_ending(self, pod: Pod, container: str) -> None:
        assert self._deletions is not None  # noqa: S101  # set before anything is served
        self._own_grace.on_container_ending(pod, container, self._deletions)

    async def _remove_rest_of_gone_pods(self) -> None:
        await self._feed.wait_synced()  # an agent that has not listed the work in flight removes nothing
        try:
            await self._agent.remove_stale_staging([restore.spec.uid for restore in self._feed.restores])
            await asyncio.to_thread(self._restorer.forget_all_but, self._pods.uids())
        except Exception:  # residue of one pod must not thaw the others; retried at the next deletion
            log.exception("rest of pods not removed")

    async def _find_unlabeled_pods(self) -> None:
        """Find pods whose label was removed before the agent started; otherwise they would count as gone."""
        for workload in (restore.workload for restore in self._feed.restores):
            if is_object_name(workload.name):
                with suppress(UnreadableError):  # no Restore can be performed for such a pod
                    await self._pods.is_on_node(workload)

    async def _on_pod_deleted(self, pod: Pod) -> None:
        try:
            await self._restorer.cancel_restore(pod.metadata.uid)
            await self._pending_kills.on_deleted(pod.metadata.uid, starts_again=_is_restarted_by_kubelet(pod))
        except CedanaSchedError as error:  # the kubelet kills it when its own grace expires
            log.warning("pod does not end", pod=pod.metadata.name, error=str(error))
        except Exception:  # a defect in one pod must not end the dumps of the others
            log.exception("pod does not end", pod=pod.metadata.name)


def _make_garbage_collector(api: Api, node: str, configuration: AgentConfiguration) -> GarbageCollector | None:
    """Return None if agents have the keys of the whole store."""
    if configuration.collection_turns is None:
        return None
    open_store = partial(SnapshotStore.open, configuration.storage, collecting=True)
    return GarbageCollector(api, node, configuration.collection_turns, configuration.namespace, open_store)


def _staging_reserve(configuration: AgentConfiguration) -> Callable[[], Reserve]:
    """Return the admin's reserve, else the kubelet's."""
    share = configuration.staging_reserve
    if share is not None:
        return lambda: Reserve(share, inode_share=share)
    return KubeletThresholds(_kubelet_folder(configuration)).read_reserve


def _make_kubelet_shutdown(configuration: AgentConfiguration) -> KubeletShutdown | None:
    """Return None if pods are not saved when the kubelet shuts the node down."""
    if not configuration.interruptions.node_shutdown:
        return None
    folder = _kubelet_folder(configuration)
    records = ShutdownRecords([parent / "shutdown.json" for parent in (configuration.state, configuration.data)])
    return KubeletShutdown(folder, records, KubeletConfigurationReader(folder))


def _kubelet_folder(configuration: AgentConfiguration) -> Path:
    return HOST_ROOT / configuration.kubelet.relative_to("/")


def _is_restarted_by_kubelet(pod: Pod) -> bool:
    """Return whether the kubelet restarts containers that die, and makes a preStop call before it ends one."""
    return pod.spec.restart_policy != "Never" and PRESTOP_TOKEN in pod.metadata.annotations


def _has_grace_changed(before: Pod | None, now: Pod) -> bool:
    if before is None:
        return False
    return now.metadata.deletion_grace_period_seconds != before.metadata.deletion_grace_period_seconds


def _has_ended_but_its_sidecars(before: Pod | None, now: Pod) -> bool:
    return only_sidecars_are_left(now) and not (before and only_sidecars_are_left(before))
