"""Lets an add-on's webhooks have their certificate."""

from __future__ import annotations

from kubernetes_asyncio.client import ApiException

from tests.cluster.api.client import Api, Object
from tests.cluster.api.waiting import wait_for

_CERTIFICATE = "tests.cluster/certificate"


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
