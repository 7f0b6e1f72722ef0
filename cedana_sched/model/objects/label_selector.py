"""Kubernetes' LabelSelector, as a user writes it into an object of ours."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from cedana_sched.model.objects.base import UserWritten

_KEY: Final = r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
LabelKey = Annotated[str, Field(max_length=317, pattern=_KEY)]
LabelValue = Annotated[str, Field(max_length=63, pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$")]


class LabelRequirement(UserWritten):
    """One requirement of `matchExpressions`."""

    key: LabelKey
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: tuple[LabelValue, ...] = ()
    """Of the operators `In` and `NotIn`."""

    @model_validator(mode="after")
    def _check_values(self) -> Self:
        if bool(self.values) != (self.operator in {"In", "NotIn"}):
            raise ValueError("write values with the operators In and NotIn, and with no other")
        return self


class LabelSelector(UserWritten):
    """Selects labels that meet all requirements. An empty selector selects everything."""

    match_labels: Annotated[dict[str, LabelValue], Field(default_factory=dict)]
    match_expressions: tuple[LabelRequirement, ...] = ()

    @field_validator("match_labels")
    @classmethod
    def _check_keys(cls, labels: dict[str, str]) -> dict[str, str]:
        if (wrong := next((key for key in labels if re.fullmatch(_KEY, key) is None), None)) is not None:
            raise ValueError(f"{wrong[:80]!r} is no key of a label: write [PREFIX/]NAME, as in app.kubernetes.io/name")
        return labels

    @property
    def is_empty(self) -> bool:
        """Whether it selects everything."""
        return not self.match_labels and not self.match_expressions

    @property
    def keys(self) -> frozenset[str]:
        """Keys of the labels that decide."""
        return frozenset(self.match_labels) | {one.key for one in self.match_expressions}
