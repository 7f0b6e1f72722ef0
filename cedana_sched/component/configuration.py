"""Configuration of every component: one JSON file each, in a ConfigMap that the chart writes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final, Literal, Self, TypeVar

from pydantic import Field, ValidationError, model_validator

from cedana_sched.model.errors import UsageError
from cedana_sched.model.objects.base import UserWritten, read_settings
from cedana_sched.model.policy import LONGEST_DEADLINE_SECONDS, PositiveSeconds
from cedana_sched.model.served_namespaces import ServedNamespaces

CONFIGURATION_VARIABLE: Final = "CEDANA_SCHED_CONFIGURATION"
"""Environment variable with the path of the component's file."""

Port = Annotated[int, Field(ge=1, le=65_535)]


LongestDeadline = PositiveSeconds
"""Cap on deadlines of policies; see `model.deadline_cap`."""


class LogConfiguration(UserWritten):
    """Logging to standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["json", "console"] = "json"


class ComponentConfiguration(UserWritten):
    """Configuration of every component."""

    namespace: str
    """Namespace of our own components."""
    log: LogConfiguration = LogConfiguration()
    metrics_authentication: bool = False
    """Whether `/metrics` requires a bearer token that the API server authorizes."""


NEVER_TOUCHED: Final = frozenset({"kube-system", "kube-public", "kube-node-lease"})
"""Namespaces that are never served: Kubernetes' own. The chart excludes them from the webhooks, too, and from all
components schedulers' own (`cedana.excludedNamespaces`)."""


class ServingConfiguration(ComponentConfiguration):
    """Configuration of components that act on tenants' pods."""

    excluded_namespaces: frozenset[str] = frozenset()
    """Namespaces that are not served; after validation including `NEVER_TOUCHED` and our own."""

    @model_validator(mode="after")
    def _exclude_those_that_are_never_touched(self) -> Self:
        excluded = self.excluded_namespaces | NEVER_TOUCHED | {self.namespace}
        object.__setattr__(self, "excluded_namespaces", excluded)
        return self

    @property
    def served_namespaces(self) -> ServedNamespaces:
        """Namespaces where the component acts."""
        return ServedNamespaces(self.excluded_namespaces)


class PodsConfiguration(ServingConfiguration):
    """Configuration of components that protect pods."""

    longest_deadline_seconds: LongestDeadline = LONGEST_DEADLINE_SECONDS


Configuration = TypeVar("Configuration", bound=ComponentConfiguration)


def load(kind: type[Configuration], path: Path | None = None) -> tuple[Configuration, tuple[str, ...]]:
    """Read a component's file: `path`, else the one of `CEDANA_SCHED_CONFIGURATION`.

    Returns:
        The configuration, and settings known only to newer versions: see `read_settings`.

    Raises:
        UsageError: names the file, or the field, its value and the remedy.
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
