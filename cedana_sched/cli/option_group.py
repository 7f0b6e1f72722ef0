"""Options that several commands share: a class has their values, and replaces them in a command's arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, Self, TypeGuard

Options = Mapping[str, tuple[Any, Any]]
"""Annotation and default of each option, by parameter name."""


class OptionGroup(Protocol):
    """A command has such options if one of its parameters has this type."""

    options: ClassVar[Options]

    @classmethod
    def pop_from_arguments(cls, given: dict[str, Any]) -> Self:
        """Pop the values of `options` from a command's arguments."""
        ...


def is_option_group(annotation: Any) -> TypeGuard[type[OptionGroup]]:
    """Return whether a parameter's annotation is such a class."""
    return isinstance(annotation, type) and hasattr(annotation, "pop_from_arguments")
