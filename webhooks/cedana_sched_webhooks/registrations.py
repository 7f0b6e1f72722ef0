"""The fields of webhook configurations that we maintain: `caBundle`, and the path of each webhook.

The chart omits both, so that an upgrade preserves both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from cedana_sched.kube.builtin_kinds import WebhookConfiguration
from cedana_sched.kube.client import Object
from cedana_sched.kube.patch_preconditions import same_version_tests
from cedana_sched.model.objects.names import GROUP

MUTATE: Final = "/mutate/"
PODS: Final = f"{MUTATE}pods"
STATUSES: Final = f"{MUTATE}pods/status"
VALIDATE: Final = "/validate/"


def paths_by_hook_name(paths: Iterable[str]) -> dict[str, str]:
    """Map webhook names to paths: `/mutate/pods` is `pods.sched.cedana.ai`, `/toy/pods` `toy-pods.sched.cedana.ai`."""
    return {f"{_hook_name(path)}.{GROUP}": path for path in paths}


def _hook_name(path: str) -> str:
    if path == STATUSES:
        return "statuses"
    return path.removeprefix(MUTATE).removeprefix(VALIDATE).strip("/").replace("/", "-")


class Registration(msgspec.Struct, frozen=True):
    """Desired content of each configuration: the CA bundle in base64, paths by webhook name."""

    bundle: str
    paths: Mapping[str, str]

    def patch(self, configuration: WebhookConfiguration) -> list[Object]:
        """Return a patch, empty if nothing differs; it fails if the configuration was replaced or changed meanwhile."""
        changes: list[Object] = []
        for index, webhook in enumerate(configuration.webhooks):
            client, path = webhook.client_config, self.paths.get(webhook.name)
            place = f"/webhooks/{index}/clientConfig"
            operations: list[Object] = []
            if client.ca_bundle != self.bundle:
                operations.append({"op": "add", "path": f"{place}/caBundle", "value": self.bundle})
            if path is not None and client.service is not None and client.service.path != path:
                operations.append({"op": "add", "path": f"{place}/service/path", "value": path})
            if operations:
                changes.append({"op": "test", "path": f"/webhooks/{index}/name", "value": webhook.name})
                changes += operations
        return [*same_version_tests(configuration.metadata), *changes] if changes else []
