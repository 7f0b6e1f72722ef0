"""Choice of the agent that removes a snapshot: any can, because all share the store."""

from __future__ import annotations

import random
from collections.abc import Callable

from cedana_sched.kube.builtin_kinds import Node
from cedana_sched.kube.own_kinds.cached_checkpoint import KnownCheckpoint
from cedana_sched.kube.watching import Informer
from cedana_sched.model.objects import names


class RemovalAgentChoice:
    """The nodes whose agents can take removal orders."""

    def __init__(self, nodes: Informer[Node]) -> None:
        self._nodes = nodes
        self.synced = nodes.synced
        self._sinks: list[Callable[[], None]] = []

    def subscribe(self, sink: Callable[[], None]) -> None:
        """Call `sink` when a node becomes able or unable to take orders."""
        if not self._sinks:
            self._nodes.subscribe(self._on_node_changed)
        self._sinks.append(sink)

    def close(self) -> None:
        """Unsubscribe; no sink is called any more."""
        self._sinks.clear()
        self._nodes.unsubscribe(self._on_node_changed)

    def choose_node(self, checkpoint: KnownCheckpoint, tried: set[str]) -> str | None:
        """Return the node that has the order, else the one that took the snapshot, else any; None if there is none.

        `tried` have failed or not answered; if all have, it is cleared, and they get the order again.
        """
        able = {node.metadata.name for node in self._nodes if has_agent(node)}
        if able <= tried:
            tried.clear()
        is_ordered = checkpoint.metadata.labels.get(names.REMOVE_SNAPSHOT) == "true"
        ordered = checkpoint.metadata.labels.get(names.NODE, "") if is_ordered else ""
        left = able - tried
        for preferred in (ordered, checkpoint.node):
            if preferred in left:
                return preferred
        return random.choice(sorted(left)) if left else None  # noqa: S311  # no secret

    def _on_node_changed(self, before: Node | None, now: Node | None) -> None:
        if (before is not None and has_agent(before)) != (now is not None and has_agent(now)):
            for sink in tuple(self._sinks):
                sink()


def has_agent(node: Node) -> bool:
    """Whether the node's agent can take orders."""
    return node.ready and node.metadata.labels.get(names.NODE_PREPARED) == "true"
