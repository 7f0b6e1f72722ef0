"""What an admin tells the adapter: where Armada is, who we are there, which queues, and how often a job comes back.

It is the part `armada` of the coordinator's file. Names are camelCase, as in Kubernetes. Secrets are in files of their
own. Passwords and tokens are read anew whenever they are used, so that they can be replaced; what `tls` names is read
once, at the start.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

import structlog
from pydantic import Field, ValidationError, field_validator, model_validator

from cedana_sched.model.errors import UsageError
from cedana_sched.model.objects.base import Written, read_settings

log = structlog.get_logger(__name__)

SECTION = "armada"
PENDING_CHECK_SECONDS = 300.0
"""Armada's executor gives a pod back that has no node for this long, and the preemptor's pod waits for the victim's."""


class TlsSettings(Written):
    """How Armada's certificate is checked, and ours, where it asks for one. All are PEM files."""

    ca: Path | None = None
    """Who signed Armada's certificate; None: whoever the machine trusts."""
    certificate: Path | None = None
    key: Path | None = None
    server_name: str | None = None
    """The name in Armada's certificate, where it is not that of the URL."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key go together: name both, or neither")
        return self


class BasicSettings(Written):
    """A user of Armada's `basicAuth`."""

    username: Annotated[str, Field(min_length=1)]
    password_file: Path


class TokenSettings(Written):
    """A bearer token, such as a ServiceAccount's projected one."""

    file: Path


class OidcSettings(Written):
    """Client credentials at an OpenID provider."""

    provider_url: Annotated[str, Field(pattern=r"^https?://.+")]
    client_id: Annotated[str, Field(min_length=1)]
    client_secret_file: Path
    scopes: tuple[str, ...] = ()


class AuthSettings(Written):
    """Who we are to Armada: one of these, or nobody."""

    basic: BasicSettings | None = None
    token: TokenSettings | None = None
    oidc: OidcSettings | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        named = [name for name in ("basic", "token", "oidc") if getattr(self, name) is not None]
        if len(named) > 1:
            raise ValueError(f"{' and '.join(named)} exclude each other: name one")
        return self


class LimitSettings(Written):
    """A job that is preempted again and again comes back ever later, and at last not at all."""

    resubmissions: Annotated[int, Field(ge=0, le=10_000)] = 20
    """In a row; a run of `freshAfterSeconds` begins a new row."""
    first_pause_seconds: Annotated[float, Field(ge=0, le=86_400)] = 10.0
    """Between a preemption and the second resubmission in a row; it doubles from there. The first is not delayed."""
    longest_pause_seconds: Annotated[float, Field(ge=0, le=86_400)] = 600.0
    fresh_after_seconds: Annotated[float, Field(gt=0)] = 3_600.0
    give_up_seconds: Annotated[float, Field(gt=0)] = 86_400.0
    """From a preemption until its job is given up where Armada refuses every resubmission, at the earliest."""

    def pause(self, number: int) -> float:
        """Seconds from the preemption to resubmission `number` of a row, which counts from 1."""
        if number <= 1:
            return 0.0
        return min(self.first_pause_seconds * 2.0 ** min(number - 2, 30), self.longest_pause_seconds)


class ArmadaSettings(Written):
    """The whole section."""

    url: Annotated[str, Field(min_length=1)]
    """`host:port` of Armada's server (gRPC)."""
    tls: TlsSettings | None = None
    """None: unencrypted."""
    auth: AuthSettings = AuthSettings()
    only_queues: tuple[str, ...] | None = None
    """Jobs of other queues are left alone, also where they are protected. None: of no queue."""
    queues: frozenset[str] = frozenset()
    """See `QueueSettings`."""
    hold_seconds: Annotated[float, Field(gt=0, lt=PENDING_CHECK_SECONDS)] = 240.0
    """From a preemption until its victims are let go at the latest."""
    settle_seconds: Annotated[float, Field(ge=0, le=600)] = 10.0
    """How long Armada may take to show a job in its event stream; so long we wait before a submission is repeated
    whose outcome is not known."""
    limits: LimitSettings = LimitSettings()

    @field_validator("url")
    @classmethod
    def _host_and_port(cls, url: str) -> str:
        if "://" in url:
            raise ValueError("write host:port without a scheme; `tls` says whether it is encrypted")
        host, _, port = url.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:  # gRPC would take 443
            raise ValueError("write host:port; Armada's server mostly listens on 50051")
        return url

    @classmethod
    def read(cls, section: Mapping[str, Any] | None) -> Self:
        """Check the section of the coordinator's file.

        Raises:
            UsageError: it is missing, or naming the field, its value and the remedy.
        """
        if section is None:
            raise UsageError(SECTION, None, "is missing", remedy="say at least where Armada is: armada.url")
        return _checked(cls, section)

    def opts_in(self, queue: str) -> bool:
        """Whether protected jobs of this queue are ours to save."""
        return self.only_queues is None or queue in self.only_queues


class QueueSettings(Written):
    """The section of that name in the webhooks' file."""

    queues: frozenset[str] = frozenset()
    """All of whose jobs are protected, also where nobody names an id. Those of others are where somebody does."""

    @classmethod
    def read(cls, section: Mapping[str, Any]) -> Self:
        """Check it.

        Raises:
            UsageError: naming the field, its value and the remedy.
        """
        return _checked(cls, section)


Section = TypeVar("Section", bound=Written)


def _checked(kind: type[Section], section: Mapping[str, Any]) -> Section:
    try:
        settings, unknown = read_settings(kind, section)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join((SECTION, *map(str, first["loc"])))
        value = first["input"] if isinstance(first["input"], str | int | float | bool) else "(shown in the file)"
        remedy = first["msg"].removeprefix("Value error, ")
        raise UsageError(field, value, "cannot be used", remedy=remedy) from error
    for setting in unknown:
        log.warning("setting passed over, which a newer version knows", setting=f"{SECTION}.{setting}")
    return settings
