"""What all kinds have in common."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainSerializer, ValidationError

from cedana_sched.model.identity import IDENTITY_PATTERN, LARGEST_GENERATION, LARGEST_INDEX, NAMESPACE_UID_PATTERN
from cedana_sched.model.objects.field_names import api_name
from cedana_sched.model.segments import (
    LONGEST_SEGMENT,
    MANIFEST_DIGEST_PATTERN,
    OBJECT_NAME_PATTERN,
    POD_UID_PATTERN,
    RECORD_UID_PATTERN,
)

LARGEST_NUMBER = 2**53
"""An integer that JSON's readers agree upon."""


class _Model(BaseModel):
    def to_json(self) -> dict[str, Any]:
        """Plain values as they stand in the object; what is not known is left out."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class Written(_Model):
    """What people write: a field that we do not know is an error in a file. Names are camelCase, as in Kubernetes."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=api_name, populate_by_name=True)


M = TypeVar("M", bound=BaseModel)


def read_kept(model: type[M], body: object) -> M:
    """A part of an object as the API server keeps it: fields of a newer version are passed over, whoever wrote them.

    In an upgrade the definitions of our kinds come first, and fill new fields with their defaults. A field that nobody
    knows the API server does not keep, and `kubectl` names it to whoever has written it.

    Raises:
        pydantic.ValidationError: a field cannot be what it is.
    """
    return model.model_validate(body, extra="ignore")


def read_settings(model: type[M], body: bytes | object) -> tuple[M, tuple[str, ...]]:
    """What a chart tells a component, JSON or plain values, and the settings that are passed over: nobody knows them.

    While a release is upgraded, or where an older image is pinned, the file is a newer chart's than the component. What
    people write into the chart's values, its schema checks.

    Raises:
        pydantic.ValidationError: a setting that is known cannot be what it is.
    """
    validate: Callable[..., M] = model.model_validate_json if isinstance(body, bytes) else model.model_validate
    try:
        return validate(body), ()
    except ValidationError as error:
        unknown = [one for one in error.errors(include_url=False) if one["type"] == "extra_forbidden"]
        if not unknown:
            raise
        return validate(body, extra="ignore"), tuple(".".join(map(str, one["loc"])) for one in unknown)


class Reported(_Model):
    """What we write for people to read: fields of a newer version are passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=api_name, populate_by_name=True)


def _utc(time: datetime) -> datetime:
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


def _micro_time(time: datetime) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _text(longest: int, pattern: str | None = None) -> Any:
    """What the API server takes. What is there is read all the same: an older installation may have written it."""
    extra: dict[str, Any] = {"maxLength": longest}
    return Field(json_schema_extra=extra if pattern is None else extra | {"pattern": f"^({pattern})$"})


RecordUid = Annotated[str, _text(LONGEST_SEGMENT, RECORD_UID_PATTERN)]
"""Of a Checkpoint, Restore or PreemptionHold: its name in logs, and a file's name on nodes."""
PodUid = Annotated[str, _text(36, POD_UID_PATTERN)]
NamespaceUid = Annotated[str, _text(36, NAMESPACE_UID_PATTERN)]
ObjectName = Annotated[str, _text(253, OBJECT_NAME_PATTERN)]
"""Of a pod or a node."""
IdentityPart = Annotated[str, _text(63, IDENTITY_PATTERN)]
"""Of an identity; a folder's name in the store."""
Index = Annotated[int, Field(ge=0, json_schema_extra={"maximum": LARGEST_INDEX})]
Generation = Annotated[int, Field(ge=1, json_schema_extra={"maximum": LARGEST_GENERATION})]
ManifestDigest = Annotated[str, _text(64, MANIFEST_DIGEST_PATTERN)]
Number = Annotated[int, Field(ge=1, json_schema_extra={"maximum": LARGEST_NUMBER})]
"""Of an order."""

MicroTime = Annotated[
    datetime,
    AfterValidator(_utc),
    PlainSerializer(_micro_time, return_type=str, when_used="json"),
    Field(json_schema_extra={"format": "date-time"}),
]
"""A moment, to the microsecond, as in Kubernetes' own `MicroTime`."""


def moment(seconds: float) -> datetime:
    """Seconds since the epoch as a moment."""
    return datetime.fromtimestamp(seconds, tz=UTC)


def parsed(text: str) -> datetime | None:
    """A moment as RFC 3339 writes it; None when it is none."""
    try:
        return _utc(datetime.fromisoformat(text))
    except ValueError:
        return None


ConditionStatus = Literal["True", "False", "Unknown"]


class Condition(Reported):
    """metav1.Condition: what holds, since when, why in one word, and what is awaited in a sentence."""

    type: Annotated[str, Field(max_length=316)]
    status: ConditionStatus
    reason: Annotated[str, Field(min_length=1, max_length=1024)]
    message: Annotated[str, Field(max_length=32768)] = ""
    last_transition_time: MicroTime
