"""Base classes and field types shared by all kinds."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainSerializer, ValidationError

from cedana_sched.model.identity import IDENTITY_PATTERN, LARGEST_GENERATION, LARGEST_INDEX, NAMESPACE_UID_PATTERN
from cedana_sched.model.objects.field_names import api_name
from cedana_sched.model.path_segment_validation import (
    LONGEST_SEGMENT,
    MANIFEST_DIGEST_PATTERN,
    OBJECT_NAME_PATTERN,
    POD_UID_PATTERN,
    RECORD_UID_PATTERN,
)

LARGEST_NUMBER = 2**53
"""Largest integer that all JSON parsers represent exactly."""


class _Model(BaseModel):
    def to_json(self) -> dict[str, Any]:
        """Serialize to plain JSON values; unset fields are omitted."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

    @classmethod
    def wire_name(cls, field: str) -> str:
        """Return the name of a field in objects, for merge patches; raises KeyError if there is no such field."""
        return cls.model_fields[field].alias or field


class UserWritten(_Model):
    """Base of user-written types: unknown fields in a file are errors. Names are camelCase, as in Kubernetes."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=api_name, populate_by_name=True)


M = TypeVar("M", bound=BaseModel)


def parse_stored_object(model: type[M], body: object) -> M:
    """Parse part of an object from the API server, ignoring unknown fields of newer versions.

    An upgrade installs the CRDs first, which default new fields. The API server prunes unknown fields, and `kubectl`
    reports them to the user.

    Raises:
        pydantic.ValidationError: a field has an invalid value.
    """
    return model.model_validate(body, extra="ignore")


def read_settings(model: type[M], body: bytes | object) -> tuple[M, tuple[str, ...]]:
    """Parse a component's settings, JSON or plain values; also return the unknown settings that were ignored.

    During an upgrade, or with a pinned older image, the chart that wrote the file is newer than the component. The
    chart's schema validates values written by users.

    Raises:
        pydantic.ValidationError: a known setting has an invalid value.
    """
    validate: Callable[..., M] = model.model_validate_json if isinstance(body, bytes) else model.model_validate
    try:
        return validate(body), ()
    except ValidationError as error:
        unknown = [one for one in error.errors(include_url=False) if one["type"] == "extra_forbidden"]
        if not unknown:
            raise
        return validate(body, extra="ignore"), tuple(".".join(map(str, one["loc"])) for one in unknown)


class ReportedStatus(_Model):
    """Base of status types, written by the product: fields of newer versions are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=api_name, populate_by_name=True)


def _to_utc(time: datetime) -> datetime:
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


def _micro_time(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _bounded_text_field(longest: int, pattern: str | None = None) -> Any:
    """Text with a schema that the API server enforces; reading is lenient, for objects of older installations."""
    extra: dict[str, Any] = {"maxLength": longest}
    return Field(json_schema_extra=extra if pattern is None else extra | {"pattern": f"^({pattern})$"})


RecordUid = Annotated[str, _bounded_text_field(LONGEST_SEGMENT, RECORD_UID_PATTERN)]
"""Uid of a Checkpoint, Restore or PreemptionHold record; used in logs and as a file name on nodes."""
PodUid = Annotated[str, _bounded_text_field(36, POD_UID_PATTERN)]
NamespaceUid = Annotated[str, _bounded_text_field(36, NAMESPACE_UID_PATTERN)]
ObjectName = Annotated[str, _bounded_text_field(253, OBJECT_NAME_PATTERN)]
"""Name of a pod or node."""
IdentityPart = Annotated[str, _bounded_text_field(63, IDENTITY_PATTERN)]
"""Part of an identity; a folder name in the store."""
Index = Annotated[int, Field(ge=0, json_schema_extra={"maximum": LARGEST_INDEX})]
Generation = Annotated[int, Field(ge=1, json_schema_extra={"maximum": LARGEST_GENERATION})]
ManifestDigest = Annotated[str, _bounded_text_field(64, MANIFEST_DIGEST_PATTERN)]
Number = Annotated[int, Field(ge=1, json_schema_extra={"maximum": LARGEST_NUMBER})]
"""Number of an order."""

MicroTime = Annotated[
    datetime,
    AfterValidator(_to_utc),
    PlainSerializer(_micro_time, return_type=str, when_used="json"),
    Field(json_schema_extra={"format": "date-time"}),
]
"""Timestamp with microseconds, as Kubernetes' `MicroTime`."""


def utc_datetime_of(seconds: float) -> datetime:
    """Convert seconds since the epoch to a timestamp."""
    return datetime.fromtimestamp(seconds, tz=UTC)


ConditionStatus = Literal["True", "False", "Unknown"]


class Condition(ReportedStatus):
    """metav1.Condition: a status with its last transition, a machine-readable reason and a human-readable message."""

    type: Annotated[str, Field(max_length=316)]
    status: ConditionStatus
    reason: Annotated[str, Field(min_length=1, max_length=1024)]
    message: Annotated[str, Field(max_length=32768)] = ""
    last_transition_time: MicroTime
