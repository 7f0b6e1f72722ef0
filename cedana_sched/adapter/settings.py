"""Reads an adapter's section of a component's configuration; the adapter defines its fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import structlog
from pydantic import ValidationError

from cedana_sched.model.errors import UsageError
from cedana_sched.model.objects.base import UserWritten, read_settings

log = structlog.get_logger(__name__)

Section = TypeVar("Section", bound=UserWritten)


def read_section(name: str, kind: type[Section], section: Mapping[str, Any]) -> Section:
    """Validate the section `name`; fields known only to newer versions are logged.

    Raises:
        UsageError: names the field, its value and the remedy.
    """
    try:
        settings, unknown = read_settings(kind, section)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join((name, *map(str, first["loc"])))
        value = first["input"] if isinstance(first["input"], str | int | float | bool) else "(shown in the file)"
        remedy = first["msg"].removeprefix("Value error, ")
        raise UsageError(field, value, "cannot be used", remedy=remedy) from error
    for setting in unknown:
        log.warning("setting passed over, which a newer version supports", setting=f"{name}.{setting}")
    return settings
