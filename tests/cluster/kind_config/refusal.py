"""How this room refuses: file, field path, value, and what to do about it, in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from tests.cluster.errors import ClusterError

_LONGEST_VALUE = 80


class RefusedFieldError(ClusterError):
    """One field says what the test cluster cannot honour, or what kind would not accept either."""

    def __init__(self, field: str, value: object, problem: str, *, remedy: str, file: Path | None = None) -> None:
        self.field, self.value, self.problem = field, value, problem
        shown = repr(value)
        if len(shown) > _LONGEST_VALUE:
            shown = f"{shown[:_LONGEST_VALUE]}…"
        super().__init__(": ".join(filter(None, [str(file or ""), field, f"{shown} {problem}"])), remedy=remedy)

    def in_file(self, file: Path) -> Self:
        """The same, with the file's name in front."""
        return type(self)(self.field, self.value, self.problem, remedy=self.remedy, file=file)


def refused(problem: str, remedy: str, **part: object) -> PydanticCustomError:
    """What a validator raises; `field` and `value` name a part of what it validates."""
    return PydanticCustomError("refused", "{problem}", {"problem": problem, "remedy": remedy, **part})


def first_refusal(error: ValidationError, field: str, *, unknown: str) -> RefusedFieldError:
    """The first problem that pydantic found below `field`; `unknown` says what a field is that its model lacks."""
    problem = error.errors()[0]
    context = problem.get("ctx", {})
    place = [part for part in problem["loc"] if part != "[key]"]
    if "field" in context:
        place.append(context["field"])
    where = field_path(field, *place)
    value = context.get("value", problem["input"])
    message = str(problem["msg"])
    match problem["type"]:
        case "missing":
            return RefusedFieldError(field_path(field, *place[:-1]), place[-1], "is missing", remedy="add it")
        case "extra_forbidden":
            return RefusedFieldError(where, value, unknown, remedy="correct the field's name, or remove it")
        case "refused":
            return RefusedFieldError(where, value, message, remedy=context["remedy"])
        case _:
            return RefusedFieldError(where, value, "cannot be used", remedy=f"{message[:1].lower()}{message[1:]}")


def field_path(*parts: object) -> str:
    """Such as `nodes[1].labels.tier`."""
    path = ""
    for part in parts:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part:
            key = str(part)
            path += f".{key}" if path else key
    return path
