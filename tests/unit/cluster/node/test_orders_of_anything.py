"""Whatever stands in an object, the agent goes on, and touches nothing outside its folders.

All of an agent that orders reach is real, but CRIU: the feed, the border, the runtime over a host's files, the folders.
"""

from __future__ import annotations

import asyncio
import copy
import json
import tempfile
from pathlib import Path
from typing import Any, cast

import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cedana_sched.agent.node_agent import NodeAgent
from cedana_sched.agent.staging import Staging
from cedana_sched.cluster.node.containers.containerd_host_paths import HostPaths
from cedana_sched.cluster.node.containers.pod_containers import PodContainers
from cedana_sched.cluster.node.containers.pod_names import find_pod_names
from cedana_sched.cluster.node.node_pods import NodePods
from cedana_sched.cluster.node.order_feed import OrderFeed
from cedana_sched.cluster.node.order_validation import PodOrderGuard
from cedana_sched.cluster.node.pending_kills import PendingKills
from cedana_sched.cluster.node.pod_runtime import PodRuntime
from cedana_sched.cluster.node.restoring.pod_restorer import PodRestorer
from cedana_sched.cluster.node.restoring.staging_progress import StagingProgress
from cedana_sched.kube.own_kinds.order_exchange import OrderedObject
from cedana_sched.kube.resources import Resource
from cedana_sched.kube.response_decoding import Unreadable
from cedana_sched.kube.response_decoding import read as read_object
from cedana_sched.model.orders import Order
from cedana_sched.store.storage_config import StorageConfig
from tests.unit.cluster.node.order_objects import NODE, ORDERS, POD, WORKLOAD, AnsweredApi, body_with, pod_of

PATIENCE_SECONDS = 0.25
"""What waits longer waits for a restore container, which never comes."""

OURS = ("host/var/lib/kubelet/pods", "run", "data", "store")
_WORDS = st.sampled_from(
    ["..", ".", "", "/", "../victim", "../../victim", "../../../../victim/dir", "victim", "/etc/passwd", "a/../../b",
     "x" * 5_000, "\0", "\n", "é", "\ud7ff", "-1", "9" * 40, POD, "tenant-b", "md-1"]
)  # fmt: skip
VALUES: st.SearchStrategy[Any] = (
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | _WORDS
    | st.text(max_size=8) | st.just([]) | st.just({}) | st.just([["../../victim"]]) | st.just({"x": {"y": 7}})
)  # fmt: skip
ANYTHING = st.recursive(VALUES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS, inner, max_size=3))


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    if isinstance(value, dict):
        found += [one for key, inner in value.items() for one in _places(inner, (*path, key))]
    elif isinstance(value, list):
        found += [one for number, inner in enumerate(value) for one in _places(inner, (*path, number))]
    return found


def _set(body: Any, path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        body = body[key]
    body[path[-1]] = copy.deepcopy(value)


@st.composite
def spoilt(draw: st.DrawFn) -> tuple[Resource, dict[str, Any]]:
    """An object whose order is fine but for some values; the same value may stand in its spec and in its order."""
    kind, order = draw(st.sampled_from(ORDERS))
    body = body_with(kind, order)
    if draw(st.booleans()):  # what must agree does, so that what lies behind is reached
        word = draw(_WORDS)
        given_order = body["status"]["order"]["order"]
        where = draw(st.sampled_from(["record", "pod", "name", "namespace", "id"]))
        if where == "record":
            key = "restore_uid" if "restore_uid" in given_order else "checkpoint_uid"
            body["spec"]["uid"] = given_order[key] = word
        elif where in {"pod", "name"} and "workload" in given_order:
            key = {"pod": "uid", "name": "name"}[where]
            body["spec"]["podRef"][key] = given_order["workload"][key] = word
        elif where == "namespace":
            for path in [path for path in _places(given_order) if path[-1] == "namespace"]:
                _set(given_order, path, word)
        elif where == "id":
            body["spec"]["identity"]["id"] = word
    for _ in range(draw(st.integers(0, 2))):
        path = draw(st.sampled_from([path for path in _places(body) if path[0] in {"spec", "status"}]))
        try:
            _set(body, path, draw(ANYTHING))
        except (KeyError, TypeError, IndexError):
            continue  # what was above it is something else by now
    return kind, body


class Agent:
    """One node below `root`, wired as `cluster.node.main` does."""

    def __init__(self, root: Path) -> None:
        self.api = AnsweredApi(pod_of(WORKLOAD))
        places = HostPaths(host_root=root / "host")
        places.agent_path(places.bundles).mkdir(parents=True)
        places.agent_path(places.pods).mkdir(parents=True)
        state, data = root / "run", root / "data"
        api, toolchain = cast("Any", self.api), cast("Any", _Toolchain())
        self.feed = OrderFeed(api, NODE, self._perform)
        self.pods = NodePods(api, NODE, self.feed)
        self.pods.informer.synced.set()
        self.pods.informer._put(pod_of(WORKLOAD))
        restorer = PodRestorer(places, state, data, toolchain, self.pods)
        self.pending_kills = PendingKills(state / "doomed", PodContainers(places).kill)
        agent = NodeAgent(
            runtime=PodRuntime(restorer.was_restored, places, self.pending_kills, self.pods),
            restorer=restorer,
            storage=StorageConfig.load({"path": str(root / "store")}),
            toolchain=toolchain,
            cache_directory=data / "cache",
            state_directory=data,
            wait_ended=self.pods.wait_ended_or_backing_off,
            find_peer=self.pods.find_peer,
            show_staging=StagingProgress(places).print_progress,
        )
        self._staging = Staging(data / "staged", "4.2")
        self._border = PodOrderGuard(agent.perform, self.pods.is_on_node, self._owners)
        self._places = places

    async def _owners(self, uid: str) -> set[tuple[str, str]]:
        return await asyncio.to_thread(find_pod_names, uid, self._places)

    def _perform(self, order: Order) -> Any:
        return self._border.perform(order)

    async def hear(self, kind: Resource, one: OrderedObject) -> None:
        async with self.pending_kills, asyncio.TaskGroup() as group:
            self.feed._group = group
            informer = self.feed._informers[kind]
            informer._put(one)
            self.feed._on_object_change(kind, None, one)
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            if tasks:
                await asyncio.wait(cast("Any", tasks), timeout=PATIENCE_SECONDS)
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()


class _Toolchain:
    version = "4.2.1"


def _outside(root: Path) -> dict[str, str]:
    """All that is not the agent's, and what is in it."""
    found = {}
    for path in root.rglob("*"):
        name = str(path.relative_to(root))
        if not name.startswith(OURS):
            found[name] = path.read_text() if path.is_file() else ""
    return found


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(spoilt())
def test_an_agent_obeys_within_its_folders(spoilt_object: tuple[Resource, dict[str, Any]]) -> None:
    kind, body = spoilt_object
    one = read_object(kind, json.dumps(body).encode(), OrderedObject)
    if isinstance(one, Unreadable):
        return  # a mirror leaves it alone
    with tempfile.TemporaryDirectory() as folder, structlog.testing.capture_logs() as logs:
        root = Path(folder) / "a/b/c"
        for victim in (*root.parents[:3], root, root / "host", root / "host/etc"):
            (victim / "victim/dir").mkdir(parents=True)
            (victim / "victim/dir/file").write_text("theirs")

        async def run() -> None:
            before = _outside(Path(folder))
            agent = Agent(root)
            before |= {name: text for name, text in _outside(Path(folder)).items() if name not in before}
            await agent.hear(kind, one)
            after = {name: text for name, text in _outside(Path(folder)).items() if name in before or "victim" in name}
            assert after == before

        asyncio.run(run())
    problems = [one for one in logs if one["log_level"] == "error" or one["event"].startswith("order not carried out")]
    assert problems == []


def test_good_orders_get_that_far() -> None:
    """Else the border would refuse all that is tried above."""
    for kind, order in ORDERS:
        one = read_object(kind, json.dumps(body_with(kind, copy.deepcopy(order))).encode(), OrderedObject)
        assert isinstance(one, OrderedObject)
        with tempfile.TemporaryDirectory() as folder, structlog.testing.capture_logs() as logs:

            async def run(kind: Resource = kind, one: OrderedObject = one, folder: str = folder) -> list[Any]:
                agent = Agent(Path(folder))
                await agent.hear(kind, one)
                return agent.api.answers

            answers = asyncio.run(run())
        assert not any("refuses" in str(answer) for answer in answers), (order, answers)
        assert [one for one in logs if one["event"] == "order refused"] == []
