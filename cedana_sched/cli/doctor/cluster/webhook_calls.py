"""Whether the API server reaches our webhooks: a dry run creates a pod that one of them mutates.

The API server skips a webhook that does not answer (`failurePolicy: Ignore`) without an error to the client, and ready
endpoints do not prove that the API server can reach them. Nothing is stored. The check covers one API server and one
replica of the webhooks.
"""

from __future__ import annotations

import asyncio
import re
from typing import Final

from cedana_sched.cli.cluster_reader import ClusterReader, MissingPermissionError, summarize_names
from cedana_sched.cli.doctor.check_runner import Finding, Level
from cedana_sched.cli.doctor.cluster import webhooks
from cedana_sched.cli.doctor.cluster.installation import Installation
from cedana_sched.cli.doctor.cluster.release_settings import read_settings
from cedana_sched.kube.builtin_kinds import PartialObject
from cedana_sched.kube.client import Object
from cedana_sched.kube.errors import ApiError, ApiUnavailableError
from cedana_sched.kube.resources import NAMESPACES, PODS
from cedana_sched.model.objects import names
from cedana_sched.model.served_namespaces import ServedNamespaces

CHECK: Final = webhooks.CHECK
WEBHOOK: Final = names.POD_WEBHOOK
NAME: Final = "cedana-sched-doctor"
"""Prefix of the pod's name, and the id by which the pod opts in."""
MOST_TRIED: Final = 5
"""Limit of namespaces."""
TIMES: Final = 3
PAUSE_SECONDS = 1.0
_LONGEST_REASON: Final = 300
"""Characters."""
_NAME_ONE: Final = "name a served namespace in which you may create pods: --namespace"
_OF_WEBHOOK: Final = re.compile(r'(?P<silent>failed calling)? ?(?:admission )?webhook "(?P<name>[^"]+)"')
"""In the API server's answer, where a webhook keeps an object out (k8s.io/apiserver, pkg/admission/plugin/webhook)."""


class _RefusedError(Exception):
    """The API server rejects the pod in a namespace; the message is for users."""


async def examine(reads: ClusterReader, one: Installation, *, wanted: str | None = None) -> list[Finding]:
    """Check that our webhook mutates a pod that opts in, in the given namespace or the first one that admits the pod.

    Raises:
        CedanaSchedError: the release's settings differ from the chart's format.
        ApiError: the API server is unavailable.
    """
    served = (await read_settings(reads, one)).served
    if wanted is not None and (objection := served.objection(wanted)):
        return _unknown_findings(objection)
    there = [wanted] if wanted is not None else await _served_namespaces(reads, served)
    if not there:
        return _unknown_findings("there is no namespace that is served")
    denied, refused = list[str](), dict[str, str]()
    for namespace in there[:MOST_TRIED]:
        try:
            return [await _try_creating_pod(reads, one, namespace)]
        except MissingPermissionError:
            denied.append(namespace)
        except _RefusedError as error:
            refused[namespace] = str(error)
    if not refused:
        where = f"namespace {denied[0]}" if len(denied) == 1 else f"one of the namespaces {summarize_names(denied)}"
        raise MissingPermissionError(f"needs create on pods in {where}", remedy=_NAME_ONE)
    verb = "refuses" if len(refused) == 1 else "refuse"
    return _unknown_findings(f"{summarize_names(refused)} {verb} the pod: {next(iter(refused.values()))}")


async def _served_namespaces(reads: ClusterReader, served: ServedNamespaces) -> list[str]:
    try:
        found = await reads.read_objects(NAMESPACES, into=PartialObject)
    except MissingPermissionError as error:
        raise MissingPermissionError(error.message, remedy=_NAME_ONE) from error
    there = (one.metadata for one in found if one.metadata.deletion_timestamp is None)
    return sorted(one.name for one in there if served.includes(one.name))


async def _try_creating_pod(reads: ClusterReader, one: Installation, namespace: str) -> Finding:
    """Create the pod there, with retries: a webhook that does not answer once may be in a rollout."""
    where, became = f"(dry run in namespace {namespace})", ""
    for attempt in range(TIMES):
        if attempt:
            await asyncio.sleep(PAUSE_SECONDS)
        try:
            pod = await reads.create_dry_run(PODS, _test_pod(namespace, one.product_image), into=PartialObject)
        except ApiError as error:
            if not _is_our_webhook_silent(error):
                raise _RefusedError(_rejection_reason(error)) from error
            became = "is refused"
            continue
        mark = pod.metadata.labels.get(names.PROTECTED)
        if mark == "true":
            return Finding(CHECK, Level.OK, f"the API server calls {WEBHOOK}, which prepared a pod {where}")
        if mark is not None:
            why = pod.metadata.annotations.get(names.NOT_PROTECTED, "no reason is given")[:_LONGEST_REASON]
            message = f"{WEBHOOK} answers, and does not protect a pod {where}: {why}"
            return Finding(CHECK, Level.WARN, message, "mend what it names; see the log of the webhooks")
        became = "stays as it was"
    message = (
        f"the API server gets no answer from {WEBHOOK}, {TIMES} times in a row: a pod that requests protection"
        f" {became} {where}, and evictions are not held"
    )
    remedy = (
        f"let every API server reach port 9443 of the pods behind Service {one.name}-webhooks"
        " (docs/operations.md#ports); its log says 'failed calling webhook', and why"
    )
    return Finding(CHECK, Level.FAIL, message, remedy)


def _is_our_webhook_silent(error: ApiError) -> bool:
    """Return whether the pod is rejected because our webhook does not answer (`webhooks.podFailurePolicy: Fail`)."""
    found = _OF_WEBHOOK.search(error.message)
    return found is not None and bool(found["silent"]) and found["name"] == WEBHOOK


def _rejection_reason(error: ApiError) -> str:
    """Return why the pod is rejected, without the URL by which the API server calls a webhook: its path may be secret.

    Raises:
        ApiUnavailableError: the error does not concern this pod.
    """
    found = _OF_WEBHOOK.search(error.message)
    if found is not None and found["silent"]:
        return f"webhook {found['name']} does not answer"
    if found is None and isinstance(error, ApiUnavailableError):
        raise error
    return (error.message.partition(f": {error.status} ")[2] or error.message)[:_LONGEST_REASON]


def _unknown_findings(why: str) -> list[Finding]:
    return [Finding(CHECK, Level.WARN, f"not known whether {WEBHOOK} is called: {why}", _NAME_ONE)]


def _test_pod(namespace: str, image: str) -> Object:
    """Return a pod that opts in, and that Pod Security `restricted` and most quotas admit.

    Its own preStop hook keeps the webhook from adding one, which a cluster's default level may forbid.
    """
    room = {"cpu": "10m", "memory": "16Mi"}
    container = {
        "name": "main",
        "image": image,
        "command": ["true"],
        "resources": {"requests": room, "limits": room},
        "lifecycle": {"preStop": {"exec": {"command": ["true"]}}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    return {
        "metadata": {"generateName": f"{NAME}-", "namespace": namespace, "annotations": {names.ID: NAME}},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
        },
    }
