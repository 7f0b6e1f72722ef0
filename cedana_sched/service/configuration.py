"""What every component is told, and how its file is read: one JSON file each, in a ConfigMap that the chart writes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final, Literal, Self, TypeVar

from pydantic import Field, ValidationError, model_validator

from cedana_sched.model.errors import UsageError
from cedana_sched.model.objects.base import Written, read_settings
from cedana_sched.model.policy import LONGEST_DEADLINE_SECONDS, PositiveSeconds
from cedana_sched.model.served import Served

CONFIGURATION_VARIABLE: Final = "CEDANA_SCHED_CONFIGURATION"
"""Environment variable that names the component's file."""

Port = Annotated[int, Field(ge=1, le=65_535)]


LongestDeadline = PositiveSeconds
"""What no deadline of a policy may exceed; see `model.deadline_cap`."""


class LogConfiguration(Written):
    """How a component logs, to its standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["json", "console"] = "json"


class ComponentConfiguration(Written):
    """The configuration of every component."""

    namespace: str
    """Of our own components."""
    log: LogConfiguration = LogConfiguration()
    metrics_authentication: bool = False
    """Whether `/metrics` is read only by whom the API server lets, by his bearer token."""


NEVER_TOUCHED: Final = frozenset({"kube-system", "kube-public", "kube-node-lease", "kueue-system"})
"""Namespaces that are never served: Kubernetes' own and Kueue's. The chart keeps them from the webhooks too
(`cedana.excludedNamespaces`)."""


class ServingConfiguration(ComponentConfiguration):
    """The configuration of components that do something with pods of others."""

    excluded_namespaces: frozenset[str] = frozenset()
    """Whose pods are left alone; once read, with those that are never touched and our own."""

    @model_validator(mode="after")
    def _exclude_those_that_are_never_touched(self) -> Self:
        excluded = self.excluded_namespaces | NEVER_TOUCHED | {self.namespace}
        object.__setattr__(self, "excluded_namespaces", excluded)
        return self

    @property
    def served(self) -> Served:
        """Where the component acts."""
        return Served(self.excluded_namespaces)


class PodsConfiguration(ServingConfiguration):
    """The configuration of components that protect pods."""

    longest_deadline_seconds: LongestDeadline = LONGEST_DEADLINE_SECONDS


Configuration = TypeVar("Configuration", bound=ComponentConfiguration)


def load(kind: type[Configuration], path: Path | None = None) -> tuple[Configuration, tuple[str, ...]]:
    """Read a component's file: the one that is named, else that of `CEDANA_SCHED_CONFIGURATION`.

    Returns:
        What it says, and the settings that only a newer version knows: see `read_settings`.

    Raises:
        UsageError: naming the file, or the field, its value and the remedy.
    """
    named = str(path or os.environ.get(CONFIGURATION_VARIABLE, ""))
    if not named:
        raise UsageError(CONFIGURATION_VARIABLE, named, "names no file", remedy="set it, as the chart does")
    try:
        return read_settings(kind, Path(named).read_bytes())
    except OSError as error:
        raise UsageError(
            CONFIGURATION_VARIABLE, named, f"cannot be read: {error.strerror}", remedy="see whether it is mounted"
        ) from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(str(part) for part in first["loc"]) or named
        remedy = f"{first['msg'].removeprefix('Value error, ')} (in {named})"
        value = first["input"] if isinstance(first["input"], str | int | float | bool) else "(shown in the file)"
        raise UsageError(field, value, "is not a valid setting", remedy=remedy) from None
