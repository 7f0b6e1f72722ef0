"""After the last fault: waits until the cluster is calm again, then collects all that the judge needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from functools import partial

from cedana_sched.model.objects.names import API_VERSION
from cedana_sched.model.records import CheckpointStep, HoldStep, RestoreStep
from tests.cluster.addons.volcano import NAMESPACE as VOLCANO
from tests.cluster.api.client import Object
from tests.cluster.api.waiting import wait_for_all
from tests.cluster.errors import ClusterError
from tests.cluster.fixtures.audit import Audit
from tests.cluster.fixtures.namespace import Namespace
from tests.cluster.nodes.node import Node
from tests.e2e.product import parts
from tests.e2e.product.chaos.account import Account
from tests.e2e.product.chaos.load import Load, Sim
from tests.e2e.product.chaos.program import Word
from tests.e2e.product.chaos.world import World, insist

CALM_WITHIN_SECONDS = 720.0
"""A Job whose pods a lost node has failed again and again gets its next one after up to ten minutes (Kubernetes)."""
_WORDS = 20
"""So much a replica says before it counts as running: two seconds."""
_LAST_STEPS: Mapping[str, Collection[str]] = {
    "PreemptionHold": {HoldStep.RELEASED},
    "Checkpoint": {CheckpointStep.READY, CheckpointStep.FAILED},
    "Restore": {RestoreStep.ENDED, RestoreStep.FAILED},
}
_FROZEN = """
for file in $(find /sys/fs/cgroup -name cgroup.freeze -o -name freezer.state 2>/dev/null); do
    case $(cat "$file") in 1|FROZEN|FREEZING)
        folder=$(dirname "$file")
        for pid in $(cat "$folder/cgroup.procs"); do echo "$pid $(tr '\\0' ' ' <"/proc/$pid/cmdline")"; done ;;
    esac
done
"""


async def wait_until_calm(world: World, load: Load) -> None:
    """Every part is ready, and every replica counts.

    Volcano's controllers are begun anew, as a person would: between attempts to sync a job while the API
    server or a webhook was away they pause ever longer.

    Raises:
        ClusterError: some replica does not, in time; which ones.
    """
    await insist(lambda: parts.signal_all(world.cluster, world.api, VOLCANO, "app=volcano-controller"))
    await insist(lambda: parts.whole(world.api, within=120))
    begun = len(world.outside.words())
    try:
        await world.outside.wait_for_words(
            lambda words: not _silent(words[begun:], load.sims), within=CALM_WITHIN_SECONDS
        )
    except TimeoutError:
        silent = ", ".join(_silent(world.outside.words()[begun:], load.sims))
        raise ClusterError(
            f"{CALM_WITHIN_SECONDS:.0f} s after the last fault these do not run: {silent}",
            remedy="see their Restores and the agents' logs",
        ) from None


def _silent(words: Sequence[Word], sims: Sequence[Sim]) -> list[str]:
    """Replicas that have said next to nothing."""
    said = Counter(f"{word.remembered[0]}/{word.job}/{word.remembered[1]}" for word in words)
    replicas = [f"{sim.key}/{index}" for sim in sims for index in range(sim.pods)]
    return [replica for replica in replicas if said[replica] < _WORDS]


async def account_of(world: World, load: Load, audit: Audit, namespaces: Sequence[Namespace]) -> Account:
    """All that is known, once the records of everything that ended are at their last steps, or do not get there."""
    found = {kind: [one for space in namespaces for one in await _at_last(space, kind)] for kind in _LAST_STEPS}
    frozen = [f"{line} on {node.name}" for node in world.cluster.nodes.values() for line in await _frozen_on(node)]
    return Account(
        words=world.outside.words(),
        node_of=world.node_of,
        history=world.history,
        deleted=frozenset(world.deleted),
        checkpoints=found["Checkpoint"],
        restores=found["Restore"],
        holds=found["PreemptionHold"],
        events=[one for space in namespaces for one in await insist(partial(space.events))],
        writes=audit.writes(),
        frozen=frozen,
        expected={sim.key: sim.pods for sim in load.sims},
    )


async def _at_last(namespace: Namespace, kind: str) -> list[Object]:
    """All objects of a kind: at their last steps, or as they are after two minutes."""
    last = _LAST_STEPS[kind]

    def are_over(found: list[Object]) -> bool:
        return all(one.get("status", {}).get("step") in last for one in found)

    try:
        return await wait_for_all(
            namespace.api, API_VERSION, kind, are_over, namespace=namespace.name, within=120
        )  # fmt: skip
    except ClusterError:
        return await insist(partial(namespace.api.objects, API_VERSION, kind, namespace.name))


async def _frozen_on(node: Node) -> list[str]:
    said = await node.run("sh", "-c", _FROZEN)
    return [line for line in said.splitlines() if line.strip()]
