"""Settings of the adapter: Armada's address, credentials, queues, and limits of resubmission.

They are the section `armada` of the coordinator's file. Names are camelCase, as in Kubernetes. Secrets are in separate
files. Passwords and tokens are read at each use, so that they can be rotated; the files of `tls` are read once, at the
start.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, field_validator, model_validator

from cedana_sched.adapter.settings import read_section
from cedana_sched.model.errors import UsageError
from cedana_sched.model.objects.base import UserWritten

SECTION = "armada"
PENDING_CHECK_SECONDS = 300.0
"""Armada's executor returns a pod that stays unbound this long, and the preemptor's pod waits for the victim's."""


class TlsSettings(UserWritten):
    """Verification of Armada's certificate, and our client certificate, if required. All are PEM files."""

    ca: Path | None = None
    """CA of Armada's certificate; None: the system's CAs."""
    certificate: Path | None = None
    key: Path | None = None
    server_name: str | None = None
    """Name in Armada's certificate, if it differs from the URL's."""

    @model_validator(mode="after")
    def _check_certificate_and_key(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key go together: name both, or neither")
        return self


class BasicSettings(UserWritten):
    """A user of Armada's `basicAuth`."""

    username: Annotated[str, Field(min_length=1)]
    password_file: Path


class TokenSettings(UserWritten):
    """A bearer token, such as a ServiceAccount's projected one."""

    file: Path


class OidcSettings(UserWritten):
    """Client credentials of an OpenID provider."""

    provider_url: Annotated[str, Field(pattern=r"^https?://.+")]
    client_id: Annotated[str, Field(min_length=1)]
    client_secret_file: Path
    scopes: tuple[str, ...] = ()


class AuthSettings(UserWritten):
    """Credentials for Armada: one of these, or none."""

    basic: BasicSettings | None = None
    token: TokenSettings | None = None
    oidc: OidcSettings | None = None

    @model_validator(mode="after")
    def _check_single_method(self) -> Self:
        named = [name for name in ("basic", "token", "oidc") if getattr(self, name) is not None]
        if len(named) > 1:
            raise ValueError(f"{' and '.join(named)} exclude each other: name one")
        return self


class LimitSettings(UserWritten):
    """Limits for jobs that are preempted repeatedly: backoff, then no further resubmission."""

    resubmissions: Annotated[int, Field(ge=0, le=10_000)] = 20
    """Maximum consecutive resubmissions; a run of `freshAfterSeconds` resets the count."""
    first_pause_seconds: Annotated[float, Field(ge=0, le=86_400)] = 10.0
    """Between a preemption and the second consecutive resubmission; doubles from there. The first is not delayed."""
    longest_pause_seconds: Annotated[float, Field(ge=0, le=86_400)] = 600.0
    fresh_after_seconds: Annotated[float, Field(gt=0)] = 3_600.0
    give_up_seconds: Annotated[float, Field(gt=0)] = 86_400.0
    """Minimum time from a preemption until its job is given up if Armada refuses every resubmission."""

    def resubmission_pause_seconds(self, number: int) -> float:
        """Return the seconds from the preemption to consecutive resubmission `number`, which counts from 1."""
        if number <= 1:
            return 0.0
        return min(self.first_pause_seconds * 2.0 ** min(number - 2, 30), self.longest_pause_seconds)


class ArmadaSettings(UserWritten):
    """The whole section."""

    url: Annotated[str, Field(min_length=1)]
    """`host:port` of Armada's server (gRPC)."""
    tls: TlsSettings | None = None
    """None: unencrypted."""
    auth: AuthSettings = AuthSettings()
    only_queues: tuple[str, ...] | None = None
    """Jobs of other queues are ignored, even protected ones. None: no queue is ignored."""
    queues: frozenset[str] = frozenset()
    """See `ProtectedQueues`."""
    hold_seconds: Annotated[float, Field(gt=0, lt=PENDING_CHECK_SECONDS)] = 240.0
    """Maximum time from a preemption until its victims are released."""
    settle_seconds: Annotated[float, Field(ge=0, le=600)] = 10.0
    """Maximum delay until Armada shows a job in its event stream; we wait that long before a submission with unknown
    outcome is repeated."""
    limits: LimitSettings = LimitSettings()

    @field_validator("url")
    @classmethod
    def _host_and_port(cls, url: str) -> str:
        if "://" in url:
            raise ValueError("write host:port without a scheme; `tls` says whether it is encrypted")
        host, _, port = url.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:  # gRPC would default to 443
            raise ValueError("write host:port; Armada's server mostly listens on 50051")
        return url

    @classmethod
    def read(cls, section: Mapping[str, Any] | None) -> Self:
        """Validate the section of the coordinator's file.

        Raises:
            UsageError: it is missing, or a field is invalid: names the field, its value and the remedy.
        """
        if section is None:
            raise UsageError(SECTION, None, "is missing", remedy="say at least where Armada is: armada.url")
        return read_section(SECTION, cls, section)

    def opts_in(self, queue: str) -> bool:
        """Whether the adapter saves protected jobs of this queue."""
        return self.only_queues is None or queue in self.only_queues


class ProtectedQueues(UserWritten):
    """The section of that name in the webhooks' file."""

    queues: frozenset[str] = frozenset()
    """Queues whose jobs are all protected, even without an id. In other queues, only jobs with an id are."""

    @classmethod
    def read(cls, section: Mapping[str, Any]) -> Self:
        """Validate the section.

        Raises:
            UsageError: names the field, its value and the remedy.
        """
        return read_section(SECTION, cls, section)
