"""A container is called as ours only where it is ours, and what ours write on a pod nobody else does.

The policies are the chart's own, for one namespace and under another name, so that nothing has to run. It comes before
tests that install the product, whose own policies know of no image but its own.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from itertools import product

import pytest
import pytest_asyncio

from cedana_sched.model.objects.names import (
    EVICTION_REQUESTED,
    EXPECT_SNAPSHOT,
    ID,
    INDEX,
    NOT_PROTECTED,
    POLICY,
    PROTECTED,
    QUEUE_POLICY,
    RESTORE_FROM,
)
from tests.cluster.api.admission import wait_until_refused
from tests.cluster.api.client import Api, Object
from tests.cluster.binaries.build import Binaries
from tests.cluster.errors import ClusterError
from tests.cluster.fixtures.namespace import Namespace
from tests.e2e.product.rendering import of_kind, render
from tests.e2e.product.reserved_names import IMAGE, RESERVED, foreign, harmless

pytestmark = [pytest.mark.any_shape]

KINDS = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
DRY = ("--dry-run=server",)
CREATE = ("create", "--filename=-")


async def create(namespace: Namespace, body: Object, *options: str) -> None:
    await namespace.kubectl(*CREATE, *options, stdin=json.dumps(body).encode())


async def refusal(namespace: Namespace, *arguments: str, body: Object | None = None) -> str:
    with pytest.raises(ClusterError) as caught:
        await namespace.kubectl(*arguments, stdin=json.dumps(body).encode() if body else None)
    return str(caught.value)


@pytest_asyncio.fixture(loop_scope="session")
async def policies(namespace: Namespace, api: Api, helm: Binaries) -> AsyncIterator[None]:
    registry, tag = IMAGE.split("/cedana-sched-agent:")
    image = {"registry": registry, "tag": tag}
    fullname = f"names-{namespace.name[-5:]}"
    told = {"storage": {"posix": {"path": "/x"}}, "fullnameOverride": fullname, "image": image}
    bodies = [
        body
        for body in of_kind(await render(helm, told), *KINDS)
        if body["metadata"]["name"].startswith(f"{fullname}-reserved-")
    ]
    assert len(bodies) == 6
    only = {"matchLabels": {"kubernetes.io/metadata.name": namespace.name}}
    for body in bodies:
        if body["kind"] == KINDS[0]:
            body["spec"]["matchConstraints"]["namespaceSelector"] = only
    try:
        for body in bodies:
            await api.apply(body)
        await create(namespace, harmless()["plain"])
        body, words = foreign()["image"]
        await wait_until_refused(lambda: create(namespace, body, *DRY), words)
        mark = ("annotate", "pod/plain", f"{EVICTION_REQUESTED}=forged", *DRY)
        await wait_until_refused(lambda: namespace.kubectl(*mark), "for cedana-sched alone to write")
        yield
    finally:
        for body in bodies:
            await api.delete(body["apiVersion"], body["kind"], body["metadata"]["name"])


@pytest.mark.usefixtures("policies")
@pytest.mark.parametrize("what", sorted(foreign()))
async def test_what_is_called_as_ours_and_is_not_is_refused(namespace: Namespace, what: str) -> None:
    body, words = foreign()[what]
    assert words in await refusal(namespace, *CREATE, *DRY, body=body)


@pytest.mark.usefixtures("policies")
async def test_what_the_webhook_makes_comes_through_and_lives_on(namespace: Namespace) -> None:
    for name in ("injected", "injected-with-rules", "cloud"):
        await create(namespace, harmless()[name])
    await namespace.kubectl("label", "pod/injected", "a=b")
    await namespace.kubectl("annotate", "pod/injected", "a=b")
    await namespace.kubectl("set", "image", "pod/injected", "main=registry.invalid/app:2")
    image = [{"op": "replace", "path": "/spec/initContainers/0/image", "value": "attacker/image"}]
    said = await refusal(namespace, "patch", "pod/injected", "--type=json", f"--patch={json.dumps(image)}")
    assert "and this one is another" in said


@pytest.mark.usefixtures("policies")
async def test_a_debug_container_neither_has_our_name_nor_reaches_our_volume(namespace: Namespace) -> None:
    await create(namespace, harmless()["injected"])
    named = {"name": "cedana-restore", "image": "x"}
    reaching = {"name": "debug", "image": "x", "volumeMounts": [RESERVED]}
    for pod, container in (("plain", named), ("injected", reaching)):
        patch = json.dumps({"spec": {"ephemeralContainers": [container]}})
        said = await refusal(namespace, "patch", f"pod/{pod}", "--subresource=ephemeralcontainers", f"--patch={patch}")
        assert "cedana-sched injects" in said


@pytest.mark.usefixtures("policies")
async def test_what_ours_write_on_a_pod_nobody_else_does(namespace: Namespace) -> None:
    who = [
        "--as=system:serviceaccount:cedana-system:any",
        "--as-group=system:serviceaccounts:cedana-system",
        "--as-group=system:masters",
    ]
    await namespace.kubectl("annotate", "pod/plain", f"{EVICTION_REQUESTED}=true", *who)
    of_others = (
        f"{one}=forged" for one in (ID, INDEX, POLICY, QUEUE_POLICY, NOT_PROTECTED, RESTORE_FROM, EXPECT_SNAPSHOT)
    )
    for change in (f"{EVICTION_REQUESTED}-", f"{EVICTION_REQUESTED}=forged", *of_others):
        said = await refusal(namespace, "annotate", "pod/plain", change, "--overwrite")
        assert "for cedana-sched alone to write" in said
    await namespace.kubectl("label", "pod/plain", f"{PROTECTED}=false", "--overwrite")
    assert "for cedana-sched alone to say" in await refusal(
        namespace, "label", "pod/plain", f"{PROTECTED}=true", "--overwrite"
    )
    await namespace.kubectl("label", "pod/plain", f"{PROTECTED}=true", "--overwrite", *who)
    await namespace.kubectl("label", "pod/plain", "a=c", "--overwrite")
    for change in (f"{PROTECTED}-", f"{PROTECTED}=false"):
        said = await refusal(namespace, "label", "pod/plain", change, "--overwrite")
        assert "for cedana-sched alone to say" in said
    await namespace.kubectl("label", "pod/plain", f"{PROTECTED}-", *who)


@pytest.mark.usefixtures("policies")
async def test_no_other_write_brings_our_marks_to_a_pod(namespace: Namespace) -> None:
    """Whoever has every right in a namespace may write statuses there, and bind pods."""
    tenant = ("--as=tenant",)
    await namespace.kubectl("create", "rolebinding", "tenant", "--clusterrole=cluster-admin", "--user=tenant")
    for key in (ID, POLICY, EVICTION_REQUESTED):
        patch = json.dumps({"metadata": {"annotations": {key: "forged"}}})
        status = ("patch", "pod/plain", "--subresource=status", f"--patch={patch}", *DRY, *tenant)
        assert "for cedana-sched alone to write" in await refusal(namespace, *status)
    brought: list[Object] = [{"annotations": {key: "forged"}} for key in (ID, POLICY, EVICTION_REQUESTED)]
    brought += [{"labels": {PROTECTED: value}} for value in ("true", "false")]
    for marks, path in product(brought, ("pods/plain/binding", "bindings")):
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": "plain", **marks},
            "target": {"apiVersion": "v1", "kind": "Node", "name": "nowhere"},
        }
        raw = f"--raw=/api/v1/namespaces/{namespace.name}/{path}?dryRun=All"
        said = await refusal(namespace, *CREATE, raw, *tenant, body=binding)
        assert "a Binding brings no marks" in said
    patch = json.dumps({"metadata": {"annotations": {"a": "c"}}})
    await namespace.kubectl("patch", "pod/plain", "--subresource=status", f"--patch={patch}", *DRY, *tenant)
