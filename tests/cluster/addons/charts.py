"""Installs unmodified Helm charts, with the settings that a cluster without a registry needs.

Helm only writes the objects: whoever installs waits for what they lead to, by watch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.api.client import Api, Object
from tests.cluster.binaries.build import Binaries
from tests.cluster.cache import digest
from tests.cluster.cluster import Cluster
from tests.cluster.commands import run

TOOL = "helm"
_MARK = "tests.cluster/installed-"
_QPS = "1000"
_MANAGER = "tests-of-charts"
"""As which a namespace is made when it is missing: one that is there keeps what others have written on it."""


@dataclass(frozen=True)
class Release:
    """One chart in one namespace.

    Args:
        name: of the release, which charts begin their objects' names with.
        namespace: made when it is missing.
        chart: folder of the chart.
        values: laid over the chart's own; null takes one away.
        hooks: False leaves out what the chart runs before and after.
    """

    name: str
    namespace: str
    chart: Path
    values: Mapping[str, Any]
    hooks: bool = True

    @property
    def _mark(self) -> str:
        return f"{_MARK}{self.name}"

    @property
    def _digest(self) -> str:
        return digest(str(self.chart), dict(self.values))

    async def install(self, cluster: Cluster, api: Api, binaries: Binaries) -> bool:
        """Write the chart's objects; False when the same was done before.

        Raises:
            ClusterError: Helm or the API server refused.
        """
        namespace = await api.apply(_namespace(self.namespace), manager=_MANAGER)
        if namespace["metadata"].get("annotations", {}).get(self._mark) == self._digest:
            return False
        _link_helm(cluster, binaries)
        await run(
            binaries.program("helm"), "upgrade", "--install", self.name, self.chart, f"--namespace={self.namespace}",
            "--values=-", "--reset-values", "--hide-notes", f"--qps={_QPS}", f"--burst-limit={_QPS}",
            *([] if self.hooks else ["--no-hooks"]),
            env=helm_environment(cluster),
            stdin=json.dumps(self.values).encode(),
            log=cluster.place.logs / "addons" / f"helm-{self.name}.log",
            what=f"helm upgrade {self.name} failed",
            remedy="see whether the chart takes these values",
        )  # fmt: skip
        await api.patch("v1", "Namespace", self.namespace, {"metadata": {"annotations": {self._mark: self._digest}}})
        return True

    async def forget(self, api: Api) -> None:
        """Somebody else changes what was written: the next installation writes it again."""
        await api.patch("v1", "Namespace", self.namespace, {"metadata": {"annotations": {self._mark: None}}})

    async def uninstall(self, cluster: Cluster, api: Api, binaries: Binaries) -> None:
        """Take it away again, with what the chart runs before and after; returns when its objects are gone.

        Raises:
            ClusterError: Helm or the API server refused, or what the chart runs failed.
        """
        await self.forget(api)
        await run(
            binaries.program("helm"), "uninstall", self.name, f"--namespace={self.namespace}", "--wait",
            *([] if self.hooks else ["--no-hooks"]),
            env=helm_environment(cluster),
            log=cluster.place.logs / "addons" / f"helm-{self.name}.log",
            what=f"helm uninstall {self.name} failed",
            remedy="see what the chart's hooks say",
        )  # fmt: skip


def helm_environment(cluster: Cluster) -> dict[str, str]:
    """Variables by which Helm works on this cluster and keeps what it keeps beside it."""
    home = cluster.place.root / "helm"
    return {
        "KUBECONFIG": str(cluster.kubeconfig),
        **{f"HELM_{kind}_HOME": str(home / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")},
    }


def default_values(chart: Path) -> dict[str, Any]:
    """What a chart takes where it is told nothing."""
    values: dict[str, Any] = yaml.safe_load((chart / "values.yaml").read_text())
    return values


def overlaid(values: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Values with others laid over them; null stays, by which Helm takes away what a chart has."""
    return dict(values) | {
        name: overlaid(values[name], value)
        if isinstance(value, Mapping) and isinstance(values.get(name), Mapping)
        else value
        for name, value in others.items()
    }


def _namespace(name: str) -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def _link_helm(cluster: Cluster, binaries: Binaries) -> None:
    link = cluster.place.root / "bin" / "helm"
    link.unlink(missing_ok=True)
    link.symlink_to(binaries.program("helm"))
