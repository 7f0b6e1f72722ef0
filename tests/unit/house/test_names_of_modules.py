"""In a cluster a pod passes through many rooms. A module's name says which it is in, so no two have one name."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

PRODUCT = Path(__file__).parents[3] / "cedana_sched"
OF_EACH_COMPONENT = {"__init__", "__main__", "configuration", "main", "metrics"}
ROUTE = ("adapter", "agent", "cluster", "coordinator", "kube")


def _counted(*rooms: str) -> Counter[str]:
    return Counter(path.stem for room in rooms for path in (PRODUCT / room).rglob("*.py"))


def test_modules_of_the_cluster_have_names_of_their_own() -> None:
    assert [name for name, times in _counted("cluster").items() if times > 1 and name not in OF_EACH_COMPONENT] == []


def test_on_the_route_at_most_one_module_is_called_after_pods_and_one_after_objects() -> None:
    counted = _counted(*ROUTE)
    assert max(counted["pods"], counted["objects"]) <= 1, "call others after what they do with them"
