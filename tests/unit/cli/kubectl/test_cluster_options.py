"""Which cluster and namespace the options select."""

from __future__ import annotations

from pathlib import Path

import pytest

from cedana_sched.cli.kubectl.cluster_options import ClusterOptions
from cedana_sched.model.errors import UsageError

KUBECONFIG = """
clusters: [{name: c, cluster: {server: "https://localhost"}}]
users: [{name: u, user: {token: t}}]
contexts:
- {name: a, context: {cluster: c, user: u, namespace: lab}}
- {name: b, context: {cluster: c, user: u}}
"""


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Path:
    path = tmp_path / "config"
    path.write_text(KUBECONFIG)
    return path


@pytest.mark.parametrize(("context", "namespace"), [("a", "lab"), ("b", "default")])
def test_namespace_is_that_of_the_context(kubeconfig: Path, context: str, namespace: str) -> None:
    """Though the file has no current context."""
    assert ClusterOptions(kubeconfig=kubeconfig, context=context).selected_namespace() == namespace


def test_in_a_pod_a_named_context_is_that_of_the_kubeconfig(kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setattr("cedana_sched.kube.credentials.KUBE_CONFIG_DEFAULT_LOCATION", str(kubeconfig))
    assert ClusterOptions(context="a").selected_namespace() == "lab"


def test_pod_without_an_account_is_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setattr("cedana_sched.kube.credentials.SERVICE_ACCOUNT", str(tmp_path / "none"))
    with pytest.raises(UsageError, match="cannot be used"):
        ClusterOptions().selected_namespace()


@pytest.mark.parametrize("content", ["", "[]", "a: [b", "contexts: []", KUBECONFIG + "current-context: gone"])
async def test_kubeconfig_that_cannot_be_read_is_named(kubeconfig: Path, content: str) -> None:
    kubeconfig.write_text(content)
    options = ClusterOptions(kubeconfig=kubeconfig)
    with pytest.raises(UsageError, match="cannot be used"):
        options.selected_namespace()
    with pytest.raises(UsageError, match="cannot be used"):
        async with options.open_cluster():
            pass
