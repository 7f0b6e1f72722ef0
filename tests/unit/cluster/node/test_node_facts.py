"""What the agent writes on its Node."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from cedana_sched.cluster.node.facts import NodeFacts, cpu_digest
from cedana_sched.kube.client import Api
from cedana_sched.kube.resources import NODES, Resource
from cedana_sched.model.compatibility import Compatibility, NodeDescription
from cedana_sched.model.objects import names

HERE = NodeDescription("x86_64", frozenset({"avx2", "sse4_2"}), (6, 12), "4.2.1", runc="1.3.3")


class Patches:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.last: dict[str, Any] = {}

    async def patch(self, resource: Resource, name: str, namespace: None, patch: dict[str, Any]) -> None:
        assert (resource, name, namespace) == (NODES, "node-1", None)
        self.last = patch["metadata"]


async def test_a_ready_node_says_what_it_is_and_takes_it_back() -> None:
    api = Patches()
    facts = NodeFacts(cast("Api", api), "node-1")
    await facts.publish(HERE, ready=True)
    assert api.last["labels"] == {names.NODE_PREPARED: "true", names.CPU_FEATURES: cpu_digest(HERE)}
    told = msgspec.json.decode(api.last["annotations"][names.NODE_FACTS], type=NodeDescription)
    assert told == HERE
    needed = msgspec.json.decode(api.last["annotations"][names.NODE_FACTS], type=Compatibility)
    assert needed == Compatibility("x86_64", frozenset({"avx2", "sse4_2"}), (6, 12), "4.2.1"), (
        "as an older one reads it"
    )
    await facts.publish(HERE, ready=False)
    assert api.last["labels"][names.NODE_PREPARED] is None
    await facts.withdraw()
    assert api.last["annotations"].keys() == {names.NODE_FACTS, names.NODE_GPUS, names.NODE_INTERRUPTION}
    assert set(api.last["labels"].values()) | set(api.last["annotations"].values()) == {None}


def test_equal_processors_have_equal_labels() -> None:
    assert cpu_digest(HERE) == cpu_digest(msgspec.structs.replace(HERE, kernel=(6, 18), criu="4.3"))
    assert cpu_digest(HERE) != cpu_digest(msgspec.structs.replace(HERE, cpu_features=frozenset({"sse4_2"})))
    assert cpu_digest(HERE) != cpu_digest(msgspec.structs.replace(HERE, architecture="aarch64"))
    assert len(cpu_digest(HERE)) <= 63
