"""Pods that a policy selects by their labels are saved; others, and those of other namespaces, are left alone."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest
import pytest_asyncio

from cedana_sched.model.objects.names import API_VERSION, PROTECT, PROTECTED, QUEUE_POLICY
from tests.cluster.api.client import Object
from tests.cluster.errors import ClusterError
from tests.cluster.fixtures.audit import Audit
from tests.cluster.fixtures.namespace import Namespace
from tests.cluster.patience import patient
from tests.e2e.product.cordoning import drained
from tests.e2e.product.history import of_ours
from tests.e2e.product.installation import Product
from tests.e2e.product.owners import LABEL, NAME, continued, counting_pod, deployment
from tests.e2e.product.policies import own_policy

pytestmark = [pytest.mark.nodes(2), pytest.mark.any_shape, pytest.mark.exhaustive]

KEPT: Final = {"tier": "kept"}
"""Labels of the pods that the policy of a test selects."""
TEAM: Final = "team"
"""Label of a namespace."""
SELECTED: Final[Object] = {"podSelector": {"matchLabels": KEPT}}


@pytest_asyncio.fixture(loop_scope="session")
async def installed_with_selectors(release: Product) -> Product:
    """The product, whose policies may select pods."""
    await release.ensure(kubernetes={"enabled": True, "podSelectors": True})
    return release


async def test_pods_that_a_policy_selects_continue_and_keep_it_whatever_their_author_writes(
    namespace: Namespace, installed_with_selectors: Product, toolbox: str
) -> None:
    await namespace.kubectl("label", "namespace", namespace.name, f"{TEAM}={namespace.name}")
    of_team = {"namespaceSelector": {"matchLabels": {TEAM: namespace.name}}}
    body = _labelled(deployment(toolbox))
    async with (
        own_policy(namespace, **SELECTED, **of_team, deadlineSeconds=111) as policy,
        counting_pod(namespace, body) as following,
    ):
        (pod,) = await namespace.pods(f"{LABEL}={NAME}")
        assert pod["metadata"]["annotations"][QUEUE_POLICY] == policy
        name = f"pod/{pod['metadata']['name']}"
        for written in (f"{QUEUE_POLICY}=default", f"{QUEUE_POLICY}-"):
            with pytest.raises(ClusterError, match="are for cedana-sched alone to write"):
                await namespace.kubectl("annotate", "--overwrite", name, written)
        with pytest.raises(ClusterError, match="whether a pod is protected is for cedana-sched alone"):
            await namespace.kubectl("label", name, f"{PROTECTED}-")
        await namespace.kubectl("label", name, *(f"{key}-" for key in KEPT))
        async with drained(namespace, following.nodes[0][0]):
            await continued(namespace, following)
        (checkpoint,) = await namespace.api.objects(API_VERSION, "Checkpoint", namespace.name)
    assert checkpoint["status"]["phase"] == "Ready"
    assert checkpoint["spec"]["policy"]["deadlineSeconds"] == 111


@pytest.mark.parametrize("beyond", ["other labels", "another namespace", "a namespace that may not use it"])
async def test_pods_that_no_policy_selects_are_drained_as_without_us(
    beyond: str, namespace: Namespace, installed_with_selectors: Product, toolbox: str, audit: Audit
) -> None:
    body = deployment(toolbox) if beyond == "other labels" else _labelled(deployment(toolbox))
    narrowed: dict[str, Object] = {
        "other labels": {},
        "another namespace": {"namespaceSelector": {"matchLabels": {TEAM: "others"}}},
        "a namespace that may not use it": {"allowedNamespaces": {"from": "Names", "names": ["others"]}},
    }
    async with own_policy(namespace, **SELECTED, **narrowed[beyond]):
        async with counting_pod(namespace, body) as following:
            (pod,) = await namespace.pods(f"{LABEL}={NAME}")
            with pytest.raises(ClusterError, match="whether a pod is protected is for cedana-sched alone"):
                await namespace.kubectl("label", f"pod/{pod['metadata']['name']}", f"{PROTECTED}=true")
            async with drained(namespace, following.nodes[0][0]):
                await asyncio.wait_for(following.said(0, len(following.lines(0)) + 10), patient(120))
            counts = following.by_pod(0)[1]
            assert counts == [str(number) for number in range(len(counts))], "it began anew"
        assert of_ours(audit, namespace.name) == []


async def test_policy_that_selects_a_pod_precedes_that_of_its_namespace_and_the_authors_choice_precedes_neither(
    namespace: Namespace, installed_with_selectors: Product, toolbox: str
) -> None:
    """The author names another policy, as the annotation of a queue, that selects in the namespace."""
    await namespace.kubectl("label", "namespace", namespace.name, f"{PROTECT}=true")
    async with own_policy(namespace, **SELECTED) as policy:
        for labels, expected in ((KEPT, policy), ({}, None)):
            body = _labelled(deployment(toolbox), labels)
            body["spec"]["template"]["metadata"]["annotations"] = {QUEUE_POLICY: policy}
            async with counting_pod(namespace, body):
                (pod,) = await namespace.pods(f"{LABEL}={NAME}")
                assert pod["metadata"]["labels"][PROTECTED] == "true"
                assert pod["metadata"]["annotations"].get(QUEUE_POLICY) == expected
            await namespace.kubectl("delete", "deployment", NAME, "--wait", "--cascade=foreground")


def _labelled(body: Object, labels: Object | None = None) -> Object:
    metadata = body["spec"]["template"]["metadata"]
    metadata["labels"] = metadata["labels"] | (KEPT if labels is None else labels)
    return body
