"""Whoever reads objects of all namespaces says in which of them he acts, or why he must see all.

Nothing else keeps a new watch from acting in a namespace that an admin has excluded.
"""

from __future__ import annotations

import ast
import importlib
import inspect
from types import ModuleType

import pytest

from cedana_sched.kube.resources import Resource
from tests.unit.house.product_modules import product_modules

LISTS = {"list_all", "list_each"}
TOLD = frozenset({"served", "is_served"})
PARTS = ("cedana_sched.cluster.", "cedana_sched_")

EVERYWHERE: dict[tuple[str, str], str] = {
    (
        "cedana_sched.cluster.coordinator.leading_coordinator",
        "PODS",
    ): "`pods` is its part; the rest is let go and cleaned up after",
    (
        "cedana_sched.cluster.coordinator.leading_coordinator",
        "CHECKPOINTS",
    ): "deleted ones leave with what they have in the store",
    ("cedana_sched.cluster.coordinator.orders_to_agents", "CHECKPOINTS"): "answers to orders that end something",
    ("cedana_sched.cluster.coordinator.orders_to_agents", "RESTORES"): "the same",
    ("cedana_sched.cluster.node.order_feed", "CHECKPOINTS"): "`objection_to_order` refuses what begins something",
    ("cedana_sched.cluster.node.order_feed", "RESTORES"): "the same",
    (
        "cedana_sched.cluster.node.node_pods",
        "PODS",
    ): "what is kept of a pod is removed once the pod is not shown any more",
    ("cedana_sched.cluster.node.interruptions.remaining_pods", "PODS"): "every pod ends with its machine",
    ("cedana_sched.cluster.node.unmounted_store_guard", "CHECKPOINTS"): "any snapshot says that there is a store",
    ("cedana_sched.cluster.uninstall.checkpoint_finalizers", "CHECKPOINTS"): "all go",
    ("cedana_sched_armada.doctor_checks", "EVENTS"): "what Armada says of itself, for a person",
    ("cedana_sched_armada.doctor_checks", "PODS"): "of which jobs are protected, for a person",
    (
        "cedana_sched_kubernetes.node_interruptions",
        "PODS",
    ): "what those of a node request; only protected ones in served namespaces are planned",
    ("cedana_sched_kubernetes.node_interruptions", "CHECKPOINTS"): "how fast those of a node were",
    ("cedana_sched_kueue.adapter", "WORKLOADS"): "those in queues with our AdmissionCheck wait for it everywhere",
    ("cedana_sched_kueue.holds_before_restart", "PREEMPTION_HOLDS"): "those of Jobs that are not shown are cancelled",
    (
        "cedana_sched_volcano.doctor.installation_reader",
        "CONFIG_MAPS",
    ): "Volcano's own, wherever that is; it is read alone",
    ("cedana_sched_volcano.doctor.installation_reader", "SERVICES"): "our own, likewise",
    ("cedana_sched_volcano.extender.free_resources", "PODS"): "everybody takes room",
    ("cedana_sched_volcano.nomination_removal", "PODS"): "who waits for the place of a held pod may be anybody",
}
"""By module and kind, why it must see what is excluded as well."""


def _resource(module: ModuleType, given: ast.expr) -> tuple[str, Resource] | None:
    name = given.id if isinstance(given, ast.Name) else ""
    found = getattr(module, name, None)
    return (name, found) if isinstance(found, Resource) else None


def _is_narrow(call: ast.Call, resource_at: int, *, is_watch: bool) -> bool:
    """Whether it reads one namespace, or says in which it acts."""
    named = {one.arg: one.value for one in call.keywords}
    if "within" in named:
        return True
    namespace = named.get("namespace")
    if namespace is None and not is_watch and len(call.args) > resource_at + 1:
        namespace = call.args[resource_at + 1]
    return namespace is not None and not (isinstance(namespace, ast.Constant) and namespace.value is None)


def reads_of_all(name: str, text: str) -> set[tuple[str, str]]:
    """Module and kind of each read that would show what is excluded."""
    found = set[tuple[str, str]]()
    module: ModuleType | None = None
    for call in ast.walk(ast.parse(text)):
        if not isinstance(call, ast.Call):
            continue
        is_watch = isinstance(call.func, ast.Name) and call.func.id == "Watch"
        is_list = isinstance(call.func, ast.Attribute) and call.func.attr in LISTS
        resource_at = 1 if is_watch else 0
        if not (is_watch or is_list) or len(call.args) <= resource_at:
            continue
        module = module or importlib.import_module(name)
        resource = _resource(module, call.args[resource_at])
        assert resource is not None or _is_given(call.args[resource_at]), f"{name}:{call.lineno}: of which kind?"
        if resource is not None and resource[1].namespaced and not _is_narrow(call, resource_at, is_watch=is_watch):
            found.add((name, resource[0]))
    return found


def _is_given(kind: ast.expr) -> bool:
    """Whether somebody else says which kind it is: a parameter, or what an object was made with."""
    return isinstance(kind, ast.Attribute) or (isinstance(kind, ast.Name) and kind.id.islower())


def untold(name: str, text: str) -> set[str]:
    """Whom a module makes or calls without saying which namespaces are served, although it can be said."""
    found = set[str]()
    module: ModuleType | None = None
    for call in ast.walk(ast.parse(text)):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
            continue
        module = module or importlib.import_module(name)
        called = getattr(module, call.func.id, None)
        if not inspect.isclass(called) and not inspect.isfunction(called):
            continue
        try:
            names = list(inspect.signature(called).parameters)
        except ValueError:  # of one that is not written in Python
            continue
        for asked in TOLD.intersection(names):
            is_told = len(call.args) > names.index(asked) or any(one.arg in {asked, None} for one in call.keywords)
            if not is_told:
                found.add(f"{call.func.id}({asked})")
    return found


def test_who_can_be_told_which_namespaces_are_served_is_told() -> None:
    """They are served all where nobody says it, for tests."""
    parts = [
        (name, path) for name, path in product_modules() if name.startswith(PARTS) and not name.endswith("__main__")
    ]
    found = {(name, one) for name, path in parts for one in untold(name, path.read_text(encoding="utf-8"))}
    assert found == set()


@pytest.mark.parametrize(
    ("call", "is_told"),
    [
        ("NodePods(api, node, feed)", False),
        ("NodePods(api, node, feed, served)", True),
        ("OrderFeed(api, node, perform, served=served)", True),
        ("OrderFeed(api, node, perform, clock)", False),
        ("OriginalGraceEnforcer(wait, is_deleted, containers)", False),
    ],
)
def test_who_is_not_told(call: str, is_told: bool) -> None:
    assert bool(untold("cedana_sched.cluster.node.main", call)) is not is_told


def test_who_reads_all_namespaces_says_in_which_he_acts_or_why_not() -> None:
    found = set[tuple[str, str]]()
    for name, path in product_modules():
        text = path.read_text(encoding="utf-8")
        if "Watch(" in text or "list_all(" in text or "list_each(" in text:
            found |= reads_of_all(name, text)
    assert found == EVERYWHERE.keys()


@pytest.mark.parametrize(
    ("read", "shows"),
    [
        ("Watch(api, PODS, Pod)", True),
        ("Watch(api, PODS, Pod, labels='a=b')", True),
        ("Watch(api, PODS, Pod, namespace=None)", True),
        ("Watch(api, PODS, Pod, within=served)", False),
        ("Watch(api, PODS, Pod, namespace=ours)", False),
        ("Watch(api, NODES, Node)", False),
        ("api.list_all(PODS, into=Pod)", True),
        ("api.list_all(PODS, None, into=Pod)", True),
        ("api.list_all(PODS, query=query, into=Pod)", True),
        ("api.list_all(PODS, namespace, into=Pod)", False),
    ],
)
def test_what_is_found(read: str, shows: bool) -> None:
    module = "cedana_sched.cluster.coordinator.leading_coordinator"
    assert reads_of_all(module, f"async def f(api, served, ours, namespace, query):\n    {read}\n") == (
        {(module, "PODS")} if shows else set()
    )
