"""Whether the doctor sees that the API server gets no answer from our webhooks: by a pod that nobody creates."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from cedana_sched.adapter import registry
from cedana_sched.cli.cluster_reader import MissingPermissionError
from cedana_sched.cli.doctor.cluster import webhook_calls
from cedana_sched.kube.client import Api, Object
from cedana_sched.kube.errors import ApiError, ApiUnavailableError, error_of
from cedana_sched.kube.resources import CONFIG_MAPS, NAMESPACES, PODS
from cedana_sched.model.diagnostic_findings import Finding
from cedana_sched.model.objects import names
from cedana_sched.testing.patches import apply_json_patch
from cedana_sched_webhooks.admission import Request
from cedana_sched_webhooks.pod_admission import admit_pod
from tests.unit.cli.conftest import Cli
from tests.unit.webhooks.admission_builders import configuration, knowledge

from .cluster_to_look_at import IMAGE, NAMESPACE, RELEASE, Cluster, said

EXCLUDED = ("kube-system", NAMESPACE)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhook_calls, "PAUSE_SECONDS", 0)


def cluster(*namespaces: str, admit: Callable[[Object], Object] | None = None) -> Cluster:
    """With these namespaces beside the excluded ones; by default no webhook is called."""
    settings = {"coordinator.json": json.dumps({"excludedNamespaces": EXCLUDED}), "agent.json": "{}"}
    made = Cluster().put(CONFIG_MAPS, {"metadata": {"name": RELEASE, "namespace": NAMESPACE}, "data": settings})
    made.put(NAMESPACES, *({"metadata": {"name": name}} for name in (*EXCLUDED, *namespaces)))
    made.admit = admit or made.admit
    return made


async def look(one: Cluster, wanted: str | None = None) -> list[Finding]:
    return await webhook_calls.examine(one.reads, await one.installed(), wanted=wanted)


def by_our_webhook(body: Object) -> Object:
    """What our own code makes of the pod."""
    request = Request("1", body["metadata"]["namespace"], object=body, dry_run=True)
    return apply_json_patch(body, admit_pod(request, knowledge(), configuration()).patch)


def refusing(status: int, message: str, *namespaces: str) -> Callable[[Object], Object]:
    """An API server that lets our webhook answer, and refuses afterwards; only in these namespaces, if any is named."""

    def admit(body: Object) -> Object:
        if not namespaces or body["metadata"]["namespace"] in namespaces:
            said = {"message": message, "reason": "Forbidden"}
            raise error_of("POST /api/v1/pods", status, json.dumps(said).encode())
        return by_our_webhook(body)

    return admit


async def test_a_webhook_that_changes_the_pod_answers() -> None:
    found = await look(cluster("lab", "bio", admit=by_our_webhook))
    assert said(found) == [
        "ok the API server calls pods.sched.cedana.ai, which prepared a pod (dry run in namespace bio)"
    ]


async def test_a_pod_that_nobody_changes_is_a_failure_that_says_what_to_do() -> None:
    (finding,) = await look(cluster("bio"))
    (told,) = said([finding])
    assert told == (
        "fail the API server gets no answer from pods.sched.cedana.ai, 3 times in a row: a pod that requests protection"
        " stays as it was (dry run in namespace bio), and evictions are not held"
    )
    assert "Service cedana-sched-webhooks" in finding.remedy


async def test_one_call_in_vain_is_no_finding() -> None:
    seen: list[Object] = []

    def admit(body: Object) -> Object:
        seen.append(body)
        return body if len(seen) == 1 else by_our_webhook(body)

    assert said(await look(cluster("bio", admit=admit)))[0].startswith("ok")
    assert len(seen) == 2


async def test_the_pod_breaks_no_rule_and_names_the_installed_image() -> None:
    seen: list[Object] = []

    def admit(body: Object) -> Object:
        seen.append(body)
        return by_our_webhook(body)

    await look(cluster("bio", admit=admit))
    (pod,) = seen
    (container,) = pod["spec"]["containers"]
    assert container["image"] == IMAGE
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["resources"]["limits"].keys() == container["resources"]["requests"].keys() == {"cpu", "memory"}
    assert "name" not in pod["metadata"], "one of that name may be there"
    after = by_our_webhook(pod)["spec"]
    assert after["containers"][0].pop("env") == [{"name": "UV_USE_IO_URING", "value": "0"}]
    assert after == pod["spec"], "nor does it with what is written on it"


async def test_a_webhook_that_protects_nobody_has_answered() -> None:
    def admit(body: Object) -> Object:
        annotations = {**body["metadata"]["annotations"], names.NOT_PROTECTED: "metadata.x is no name"}
        return {"metadata": {**body["metadata"], "labels": {names.PROTECTED: "false"}, "annotations": annotations}}

    (told,) = said(await look(cluster("bio", admit=admit)))
    assert told.startswith("warn pods.sched.cedana.ai answers, and does not protect a pod (dry run in namespace bio): ")
    assert told.endswith("metadata.x is no name")


async def test_a_namespace_that_refuses_the_pod_is_passed_over() -> None:
    quota = 'pods "cedana-sched-doctor-x" is forbidden: exceeded quota: small'
    (finding,) = await look(cluster("bio", "lab", admit=refusing(403, quota, "bio")))
    assert said([finding]) == [
        "ok the API server calls pods.sched.cedana.ai, which prepared a pod (dry run in namespace lab)"
    ]


async def test_where_all_refuse_it_is_not_known_and_the_reason_is_said() -> None:
    violates = f'pods "x" is forbidden: violates PodSecurity "restricted:latest": {"x" * 999}'
    (finding,) = await look(cluster(*(f"n{number}" for number in range(9)), admit=refusing(403, violates)))
    (told,) = said([finding])
    assert told.startswith("warn not known whether pods.sched.cedana.ai is called: n0, n1, n2, n3, n4 refuse the pod: ")
    assert 'violates PodSecurity "restricted:latest"' in told
    assert len(told) < 500
    assert "--namespace" in finding.remedy


async def test_a_right_that_is_missing_is_named() -> None:
    with pytest.raises(MissingPermissionError) as raised:
        await look(cluster("bio", "lab", admit=by_our_webhook).deny(PODS, "bio", "lab"))
    assert raised.value.message == "needs create on pods in one of the namespaces bio, lab"
    assert "--namespace" in raised.value.remedy
    assert said(await look(cluster("bio", "lab", admit=by_our_webhook).deny(PODS, "bio")))[0].startswith("ok")


async def test_who_may_not_list_namespaces_names_one() -> None:
    one = cluster("bio", admit=by_our_webhook).deny(NAMESPACES, None)
    with pytest.raises(MissingPermissionError, match="needs list on namespaces") as raised:
        await look(one)
    assert "--namespace" in raised.value.remedy
    assert said(await look(one, "bio"))[0].startswith("ok")


async def test_without_a_served_namespace_there_is_nothing_to_try() -> None:
    assert said(await look(cluster(admit=by_our_webhook))) == [
        "warn not known whether pods.sched.cedana.ai is called: there is no namespace that is served"
    ]


async def test_namespaces_that_end_are_not_tried() -> None:
    one = cluster("lab", admit=by_our_webhook)
    one.put(NAMESPACES, {"metadata": {"name": "ended", "deletionTimestamp": "2026-05-01T12:00:00Z"}})
    assert said(await look(one))[0].endswith("(dry run in namespace lab)")


async def test_the_namespace_that_is_named_is_tried_alone() -> None:
    one = cluster("bio", "lab", admit=by_our_webhook)
    assert said(await look(one, "lab"))[0].endswith("(dry run in namespace lab)")
    assert said(await look(one, NAMESPACE)) == [
        f"warn not known whether pods.sched.cedana.ai is called: namespace {NAMESPACE} is excluded (excludedNamespaces)"
    ]


def test_the_command_passes_the_namespace_on(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    @asynccontextmanager
    async def opened(_: str | None) -> AsyncIterator[Cluster]:
        yield cluster("bio", "lab", admit=by_our_webhook)

    monkeypatch.setattr(registry, "installed_adapters", dict)
    monkeypatch.setattr(Api, "open", opened)
    found = json.loads(cli("doctor", "--cluster", "--namespace", "lab", "-o", "json").stdout)
    told = [one["says"] for one in found if one["check"] == "webhooks"]
    assert told[-1].endswith("(dry run in namespace lab)")


PATH = 'Post "https://webhooks.example:443/d3adb33f/mutate/pods?timeout=5s"'
"""As the API server quotes it; the segment is a secret."""


async def test_where_pods_are_refused_without_an_answer_the_path_is_not_told() -> None:
    message = f'Internal error occurred: failed calling webhook "pods.sched.cedana.ai": failed to call webhook: {PATH}'
    (told,) = said(await look(cluster("bio", admit=refusing(500, message))))
    assert told == (
        "fail the API server gets no answer from pods.sched.cedana.ai, 3 times in a row: a pod that requests protection"
        " is refused (dry run in namespace bio), and evictions are not held"
    )


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (500, f'Internal error occurred: failed calling webhook "x.example": failed to call webhook: {PATH}'),
        (429, 'admission webhook "x.example" denied the request: later'),
        (400, 'admission webhook "x.example" does not support dry run'),
    ],
)
async def test_a_webhook_of_others_that_lets_nothing_through_is_named(status: int, message: str) -> None:
    (told,) = said(await look(cluster("bio", admit=refusing(status, message))))
    assert told.startswith("warn not known whether pods.sched.cedana.ai is called: bio refuses the pod: ")
    assert "x.example" in told
    assert "d3adb33f" not in told


@pytest.mark.parametrize("error", [ApiUnavailableError("nobody there"), ApiUnavailableError("etcd", status=500)])
async def test_an_api_server_that_is_not_well_is_no_finding_of_ours(error: ApiError) -> None:
    def admit(_: Object) -> Object:
        raise error

    with pytest.raises(ApiUnavailableError):
        await look(cluster("bio", admit=admit))
