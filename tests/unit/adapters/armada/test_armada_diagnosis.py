"""What the doctor says of Armada's jobs in a cluster."""

from __future__ import annotations

from typing import Any, cast

import pytest

from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.errors import RefusedByServerError
from cedana_sched.kube.events import COMPONENT
from cedana_sched.kube.resources import EVENTS, PODS
from cedana_sched.model.objects import names
from cedana_sched_armada import adapter, doctor_checks
from cedana_sched_armada.executor_labels import JOB_LABEL
from tests.unit.cli.doctor.cluster.cluster_to_look_at import Cluster, said


def job(number: int, namespace: str = "lab", *, protected: bool = True, held: bool = True, **more: Any) -> Object:
    labels = {JOB_LABEL: str(number)} | ({names.PROTECTED: "true"} if protected else {})
    annotations = {names.PRESTOP_TOKEN: "t"} if held else {}
    metadata = {"name": f"armada-{number}-0", "namespace": namespace, "labels": labels, "annotations": annotations}
    return {"metadata": metadata, "status": {"phase": "Running"}} | more


def event(reason: str, message: str, component: str = COMPONENT, namespace: str = "lab") -> Object:
    metadata = {"name": f"{reason}.{message}", "namespace": namespace}
    return {"metadata": metadata, "reason": reason, "message": message, "reportingComponent": component}


async def look(cluster: Cluster) -> list[str]:
    return said(await adapter.ArmadaAdapter.diagnose(cast("Api", cluster)))


async def test_a_cluster_without_its_jobs() -> None:
    stranger: Object = {"metadata": {"name": "x", "namespace": "lab"}, "status": {"phase": "Running"}}
    over = job(1, status={"phase": "Succeeded"})
    assert await look(Cluster().put(PODS, stranger, over)) == ["ok none of its jobs is in this cluster"]


async def test_jobs_that_are_held_are_well() -> None:
    cluster = Cluster().put(PODS, job(1), job(2, protected=False, held=False)).put(EVENTS, event("Held", "x"))
    assert await look(cluster) == ["ok 1 of its 2 pods here are protected"]


async def test_protected_jobs_that_nothing_holds_are_told_of() -> None:
    """Armada asks nobody before it preempts: without the preStop hook their work is lost."""
    bare = [job(number, f"lab-{number}", held=False) for number in range(7)]
    [finding] = await look(Cluster().put(PODS, job(9), *bare, bare[0]).put(EVENTS))
    assert finding == (
        "warn 8 protected pods of its jobs have no preStop hook of ours, and lose their work when it preempts them: in "
        "lab-0, lab-1, lab-2, lab-3, lab-4 and 2 more"
    )


async def test_an_armada_that_is_not_heard_is_told_of_in_its_words() -> None:
    denied, untrusted = event(doctor_checks.DENIED, "no verb watch"), event(doctor_checks.NOT_TRUSTED, "x" * 5_000)
    assert await look(
        Cluster().put(PODS, job(1)).put(EVENTS, event(doctor_checks.DENIED, "older"), denied, untrusted)
    ) == [
        f"warn within the last hour its events could not be followed ({reason}; Events: {count}): one in namespace "
        f"lab says: '{text}'"
        for reason, count, text in (("ArmadaDenied", 2, "no verb watch"), ("ArmadaCertificateInvalid", 1, "x" * 300))
    ]
    assert set(adapter._EVENT_REASONS.values()) == {doctor_checks.DENIED, doctor_checks.NOT_TRUSTED}


async def test_what_others_write_in_events_does_not_count() -> None:
    events = event(doctor_checks.DENIED, "no verb watch"), event(doctor_checks.DENIED, "run this", "me", "tenant")
    [finding] = await look(Cluster().put(PODS, job(1)).put(EVENTS, *events))
    assert finding.endswith("Events: 1): one in namespace lab says: 'no verb watch'")


async def test_an_event_in_our_name_moves_no_terminal_and_says_whose_namespace_it_is_of() -> None:
    forged = event(doctor_checks.DENIED, "\x1b[2J\ncedana-sched: run this", namespace="tenant")
    [finding] = await look(Cluster().put(PODS, job(1)).put(EVENTS, forged))
    assert finding.isprintable()
    assert finding.endswith("in namespace tenant says: '\ufffd[2J\ufffdcedana-sched: run this'")


async def test_who_may_not_look_is_told_so() -> None:
    with pytest.raises(RefusedByServerError):
        await look(Cluster().deny(PODS))
