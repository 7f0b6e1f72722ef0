"""How each kind of fault is brought about and healed. Healing returns when what was taken away is there again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path

from tests.cluster.addons.kueue import NAMESPACE as KUEUE
from tests.cluster.addons.volcano import NAMESPACE as VOLCANO
from tests.cluster.api.waiting import has_condition, wait_for
from tests.cluster.control_plane.control_plane import ControlPlane
from tests.cluster.nodes.node import Node
from tests.e2e.product import parts
from tests.e2e.product.chaos.plan import Fault, Ground
from tests.e2e.product.chaos.world import Befallen, World, insist, now
from tests.e2e.product.installation import COORDINATOR, WEBHOOKS
from tests.e2e.product.rendering import NAMESPACE

_FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")
_FAKETIME_THERE = "/opt/faketime/libfaketime.so.1"
_SCHEDULERS = {"kueue": (KUEUE, "control-plane=controller-manager"), "volcano": (VOLCANO, "app=volcano-scheduler")}

Bringing = Callable[[World, Fault], AbstractAsyncContextManager[None]]


@asynccontextmanager
async def befalling(world: World, fault: Fault) -> AsyncIterator[None]:
    """Bring a fault about; the block ends when it is to be healed, and leaving it returns when it is."""
    began = now()
    world.steps.say(f"chaos: {fault}")
    try:
        async with KINDS[fault.kind](world, fault):
            yield
    finally:
        target = world.node(fault.target).name if fault.ground is Ground.NODE else fault.target
        world.history.append(Befallen(fault.kind, target, began, now()))
        world.steps.say(f"chaos: {fault.kind} {fault.target} is over after {now() - began:.1f} s")


def _at_once(work: Callable[[World, Fault], Awaitable[None]]) -> Bringing:
    """A fault that heals itself: what was killed is started again by whoever watches over it."""

    @asynccontextmanager
    async def bring(world: World, fault: Fault) -> AsyncIterator[None]:
        await work(world, fault)
        yield

    return bring


# --- parts


async def _kill_part(world: World, fault: Fault) -> None:
    await insist(lambda: parts.kill_processes(world.cluster, world.api, fault.target))


async def _delete_part(world: World, fault: Fault) -> None:
    await insist(lambda: parts.delete_pods(world.cluster, world.api, fault.target))


async def _kill_scheduler(world: World, fault: Fault) -> None:
    if fault.target == "kube-scheduler":
        machine = world.cluster.control_plane.machine
        await insist(lambda: machine.restart_service("kube-scheduler"))
        return
    namespace, selector = _SCHEDULERS[fault.target]
    await insist(lambda: parts.signal_all(world.cluster, world.api, namespace, selector))


@asynccontextmanager
async def _webhooks_away(world: World, _: Fault) -> AsyncIterator[None]:
    async def scale(replicas: int) -> None:
        await world.api.patch("apps/v1", "Deployment", WEBHOOKS, {"spec": {"replicas": replicas}}, NAMESPACE)

    await insist(lambda: scale(0))
    try:
        yield
    finally:
        await insist(lambda: scale(2))


@asynccontextmanager
async def _clock_apart(world: World, fault: Fault) -> AsyncIterator[None]:
    """The coordinator's clock differs from everybody else's; it begins anew for that, and again afterwards."""

    def patch(*, apart: bool) -> object:
        environment = [
            {"name": name, **({"value": value} if apart else {"$patch": "delete"})}
            for name, value in (
                ("LD_PRELOAD", _FAKETIME_THERE),
                ("FAKETIME", f"{fault.target}"),
                ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
            )
        ]
        volume = {"name": "faketime", "hostPath": {"path": str(Path(_FAKETIME_THERE).parent)}}
        mount = {"name": "faketime", "mountPath": str(Path(_FAKETIME_THERE).parent)}
        gone = {"$patch": "delete"}
        spec = {
            "volumes": [volume if apart else {"name": "faketime", **gone}],
            "containers": [
                {
                    "name": "coordinator",
                    "env": environment,
                    "volumeMounts": [mount if apart else {"mountPath": mount["mountPath"], **gone}],
                }
            ],
        }
        return {"spec": {"template": {"spec": spec}}}

    async def lay(*, apart: bool) -> None:
        await world.api.patch_strategically("apps/v1", "Deployment", COORDINATOR, patch(apart=apart), NAMESPACE)

    for node in world.cluster.nodes.values():
        await insist(partial(_lay_faketime, node))
    await insist(lambda: lay(apart=True))
    try:
        yield
    finally:
        await insist(lambda: lay(apart=False))


async def _lay_faketime(node: Node) -> None:
    await node.run("mkdir", "-p", str(Path(_FAKETIME_THERE).parent))
    await node.run("dd", f"of={_FAKETIME_THERE}", "status=none", stdin=_FAKETIME.read_bytes())


# --- the control plane


async def _restart_api_server(world: World, _: Fault) -> None:
    await insist(lambda: _control_plane(world).restart("kube-apiserver"))


@asynccontextmanager
async def _api_server_away(world: World, _: Fault) -> AsyncIterator[None]:
    async with _control_plane(world).without("kube-apiserver"):
        yield


async def _restart_etcd(world: World, _: Fault) -> None:
    await insist(lambda: _control_plane(world).restart("etcd"))


def _control_plane(world: World) -> ControlPlane:
    return world.cluster.control_plane


# --- the store


def _store(mode: str) -> Bringing:
    @asynccontextmanager
    async def bring(world: World, _: Fault) -> AsyncIterator[None]:
        world.outside.behave(mode)
        try:
            yield
        finally:
            world.outside.behave("pass")

    return bring


# --- nodes


@asynccontextmanager
async def _node_killed(world: World, fault: Fault) -> AsyncIterator[None]:
    node = world.node(fault.target)
    node.kill()
    try:
        yield
    finally:
        await insist(lambda: _start(world, fault))


async def _start(world: World, fault: Fault) -> None:
    """Also when an earlier attempt has booted it, and the API server was away then."""
    node = world.node(fault.target)
    node.kill()
    await world.cluster.start_node(node)


async def _cut_is_seen(world: World, fault: Fault) -> None:
    """The Node is Ready again: until then its pods are not."""
    name = world.node(fault.target).name
    await insist(lambda: wait_for(world.api, "v1", "Node", name, has_condition("Ready"), within=60))


@asynccontextmanager
async def _node_cut(world: World, fault: Fault) -> AsyncIterator[None]:
    node = world.node(fault.target)
    await node.cut()
    try:
        yield
    finally:
        await node.rejoin()
        await _cut_is_seen(world, fault)


def _restart(service: str) -> Callable[[World, Fault], Awaitable[None]]:
    async def restart(world: World, fault: Fault) -> None:
        await insist(lambda: world.node(fault.target).restart(service))

    return restart


KINDS: Mapping[str, Bringing] = {
    "part-killed": _at_once(_kill_part),
    "part-deleted": _at_once(_delete_part),
    "scheduler-killed": _at_once(_kill_scheduler),
    "webhooks-away": _webhooks_away,
    "clock-apart": _clock_apart,
    "api-server-restarted": _at_once(_restart_api_server),
    "api-server-away": _api_server_away,
    "etcd-restarted": _at_once(_restart_etcd),
    "store-slow": _store("slow"),
    "store-refusing": _store("refuse"),
    "store-full": _store("full"),
    "store-wrong-bytes": _store("wrong"),
    "node-killed": _node_killed,
    "node-rebooted": _node_killed,
    "node-cut": _node_cut,
    "containerd-restarted": _at_once(_restart("containerd")),
    "kubelet-restarted": _at_once(_restart("kubelet")),
}


async def bring_about(world: World, faults: list[Fault]) -> None:
    """All faults of a plan, each at its time; those that take the same thing away wait for one another."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    grounds = {fault.ground: asyncio.Lock() for fault in faults}

    async def one(fault: Fault) -> None:
        await _until(began + fault.at)
        async with grounds[fault.ground], befalling(world, fault):
            await _until(loop.time() + fault.seconds)

    async with asyncio.TaskGroup() as group:
        for fault in faults:
            group.create_task(one(fault), name=str(fault))


async def _until(at: float) -> None:
    """Until this time of the loop: here it is the passing of time itself that is wanted."""
    await asyncio.sleep(max(0.0, at - asyncio.get_running_loop().time()))
