"""Waits until an add-on's webhooks answer."""

from __future__ import annotations

import json

import tenacity
from kubernetes_asyncio.client import ApiException

from tests.cluster.api.client import Api, Object
from tests.cluster.api.waiting import wait_for
from tests.cluster.errors import ClusterError

_WITHIN = 30
_CERTIFICATE = "tests.cluster/certificate"


class _NoAnswerError(Exception):
    pass


async def certificate_is_mounted(api: Api, namespace: str, secret: str) -> None:
    """Let pods see at once the certificate that a controller among them makes for its webhooks.

    They wait for it in a volume, which the kubelet brings up to date at its next look at the pod: within a minute, or
    when something of the pod changes.
    """

    def has_certificate(body: Object) -> bool:
        return bool(body.get("data", {}).get("tls.crt"))

    made = await wait_for(api, "v1", "Secret", secret, has_certificate, namespace=namespace)
    change = {"metadata": {"annotations": {_CERTIFICATE: made["metadata"]["resourceVersion"]}}}
    for pod in await api.objects("v1", "Pod", namespace):
        try:
            await api.patch("v1", "Pod", pod["metadata"]["name"], change, namespace)
        except ApiException as error:
            if error.status != 404:  # an older one, which has gone since
                raise


async def webhooks_answer(api: Api, question: Object) -> None:
    """Return when the API server gets an answer from the webhooks that see this object being created.

    A ready pod is not enough: the API server hears of its address a moment later, and no watch shows what it knows.

    Args:
        api: the cluster.
        question: an object that its webhooks accept; it is not created.

    Raises:
        ClusterError: they do not answer.
    """
    resource = await api.resource(question["apiVersion"], question["kind"])
    path = resource.path(question["metadata"].get("namespace"))
    try:
        async for attempt in tenacity.AsyncRetrying(
            wait=tenacity.wait_fixed(0.1),
            stop=tenacity.stop_after_delay(_WITHIN),
            retry=tenacity.retry_if_exception_type(_NoAnswerError),
            reraise=True,
        ):
            with attempt:
                await _ask(api, path, question)
    except _NoAnswerError as error:
        raise ClusterError(
            f"the webhooks of {question['kind']} do not answer: {error}",
            remedy="see the log of the pods behind their Service",
        ) from None


async def _ask(api: Api, path: str, question: Object) -> None:
    try:
        await api.call("POST", path, body=question, query={"dryRun": "All"})
    except ApiException as error:
        said = json.loads(error.body or b"{}").get("message", "")
        if error.status == 500 and "failed calling webhook" in said:
            raise _NoAnswerError(said) from None
        if error.status != 409:  # it exists: the webhooks let it pass once
            raise
