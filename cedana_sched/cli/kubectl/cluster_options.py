"""Options that select a cluster and its namespaces, as kubectl has them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

import typer

from cedana_sched.cli.option_group import Options
from cedana_sched.model.errors import UsageError

if TYPE_CHECKING:
    from cedana_sched.kube.client import Api

_PANEL = "Cluster"

KubeconfigOption = Annotated[
    Path | None,
    typer.Option(
        "--kubeconfig", help="How the cluster is reached.", show_default="as for kubectl", rich_help_panel=_PANEL
    ),
]
ContextOption = Annotated[
    str | None,
    typer.Option(
        "--context", help="Context of the kubeconfig.", show_default="the current one", rich_help_panel=_PANEL
    ),
]

OPTIONS: Options = {
    "namespace": (
        Annotated[
            str | None,
            typer.Option(
                "--namespace", "-n", help="A namespace.", show_default="that of the context", rich_help_panel=_PANEL
            ),
        ],
        None,
    ),
    "all_namespaces": (
        Annotated[bool, typer.Option("--all-namespaces", "-A", help="All namespaces.", rich_help_panel=_PANEL)],
        False,
    ),
    "kubeconfig": (KubeconfigOption, None),
    "context_name": (ContextOption, None),
}


@dataclass(frozen=True)
class ClusterOptions:
    """The cluster, and the namespace; `namespace` of None is that of the context."""

    options: ClassVar[Options] = OPTIONS
    namespace: str | None = None
    all_namespaces: bool = False
    kubeconfig: Path | None = None
    context: str | None = None

    @classmethod
    def pop_from_arguments(cls, given: dict[str, Any]) -> Self:
        """See `OptionGroup`."""
        return cls(*(given.pop(name) for name in OPTIONS))

    def selected_namespace(self) -> str | None:
        """Return the namespace whose objects are shown; None: all.

        Raises:
            UsageError: two options contradict each other, or the kubeconfig cannot be used.
        """
        if self.all_namespaces:
            if self.namespace is not None:
                raise UsageError(
                    "--namespace", self.namespace, "does not go with --all-namespaces", remedy="leave one of them out"
                )
            return None
        return self.namespace or self._namespace_of_context()

    @asynccontextmanager
    async def open_cluster(self) -> AsyncIterator[Api]:
        """Open a client of the API server.

        Raises:
            UsageError: the kubeconfig cannot be used.
        """
        from cedana_sched.kube.client import Api

        async with Api.open(self._kubeconfig_path(), context=self.context) as api:
            yield api

    def _namespace_of_context(self) -> str:
        from cedana_sched.kube.credentials import namespace_of_context

        return namespace_of_context(self._kubeconfig_path(), self.context)

    def _kubeconfig_path(self) -> str | None:
        return None if self.kubeconfig is None else str(self.kubeconfig)
