"""A name that somebody else wrote, as an owner's in a pod, leads to no other object than one of that name."""

from __future__ import annotations

import pytest
from aiohttp import web
from kubernetes_asyncio.client import ApiClient, Configuration

from cedana_sched.kube.builtin_kinds import PartialObject
from cedana_sched.kube.client import Api
from cedana_sched.kube.errors import AbsentError
from cedana_sched.kube.resources import JOBS, NODES, PODS
from tests.unit.kube.served_api import served

LEADING_ELSEWHERE = (
    "../../../../../api/v1/namespaces/kube-system/secrets/s",
    "j/status",
    "j?pretty=true",
    "j#x",
    "%2e%2e",
    "j%2Fstatus",
    "j k",
    "ü",
)


def test_plain_names_are_as_they_are() -> None:
    assert PODS.path("lab", "md-0", "status") == "/api/v1/namespaces/lab/pods/md-0/status"
    assert JOBS.path() == "/apis/batch/v1/jobs"
    assert NODES.path(None, "node.example:1") == "/api/v1/nodes/node.example:1"


@pytest.mark.parametrize("name", LEADING_ELSEWHERE)
async def test_a_name_is_one_segment_when_it_comes_to_the_api_server(name: str) -> None:
    asked: list[tuple[str, tuple[str, ...]]] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append((request.query_string, request.rel_url.raw_parts))
        assert request.match_info["name"] == name
        return web.json_response({"metadata": {"name": "j", "namespace": "lab"}})

    async with served({"/apis/batch/v1/namespaces/lab/jobs/{name}": answer}) as api:
        await api.get(JOBS, name, "lab", into=PartialObject)
    [(query, parts)] = asked
    assert query == ""
    assert parts[:-1] == ("/", "apis", "batch", "v1", "namespaces", "lab", "jobs")


@pytest.mark.parametrize("name", [".", ".."])
@pytest.mark.parametrize("where", ["namespace", "name"])
async def test_names_that_clients_resolve_are_nobodys(name: str, where: str) -> None:
    namespace, job = (name, "j") if where == "namespace" else ("lab", name)
    with pytest.raises(AbsentError):
        JOBS.path(namespace, job)
    async with ApiClient(Configuration()) as client:
        api = Api(client)
        assert await api.find(JOBS, job, namespace, into=PartialObject) is None
