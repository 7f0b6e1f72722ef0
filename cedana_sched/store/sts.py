"""Expiring credentials with fewer permissions than ours, from a store's Security Token Service.

One request, signed with our own keys: `AssumeRole`, with a session policy. Source: AWS Security Token Service API
Reference, "AssumeRole", "Common Error Types". minio's own provider of such credentials accepts no session token, and
requires at least an hour.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Final
from urllib.parse import urlencode, urlsplit, urlunsplit
from xml.etree import ElementTree as ET

import urllib3
from minio.credentials.credentials import Credentials
from minio.signer import sign_v4_sts
from pydantic import BaseModel, ConfigDict, Field
from urllib3.exceptions import HTTPError

from cedana_sched.model.errors import StoreDeniedError, StoreError, StoreUnavailableError
from cedana_sched.store.credential_renewal import SessionCredentials
from cedana_sched.store.session_policy import garbage_collection_policy, session_policy
from cedana_sched.store.storage_config import S3Location

SHORTEST_SECONDS: Final = 900
LONGEST_SECONDS: Final = 43_200
"""Bounds of `DurationSeconds` in AssumeRole; roles of AWS allow an hour by default."""
_TIMEOUT: Final = urllib3.Timeout(connect=5, read=20)
_LONGEST_ANSWER: Final = 256 << 10
_SHOWN: Final = 300
_SESSION_NAME: Final = re.compile(r"[^A-Za-z0-9_=,.@-]")
_LONGEST_SESSION_NAME: Final = 64
_NO_SUCH_SERVICE: Final = frozenset({404, 405, 501})
_NO_SUCH_ACTION: Final = frozenset({"InvalidAction", "NotImplemented", "MethodNotAllowed", "STSNotReady"})
_BUSY: Final = frozenset({"Throttling", "ThrottlingException", "RequestExpired", "ServiceUnavailable"})


class NoSessionsError(StoreDeniedError):
    """The store issues no session credentials: it has no STS at the endpoint."""


class SessionSource(BaseModel):
    """How sessions of a bucket are created, in addition to the bucket's own location."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    endpoint: Annotated[str | None, Field(alias="stsEndpoint")] = None
    """None: the store's own, as in MinIO, Ceph and SeaweedFS; AWS' own if the store is AWS."""
    role_arn: Annotated[str | None, Field(alias="roleArn")] = None
    """AWS and Ceph require one; others use the caller's own permissions without it."""
    seconds: Annotated[int, Field(alias="durationSeconds", ge=SHORTEST_SECONDS, le=LONGEST_SECONDS)] = 3600


class Sessions:
    """Creates sessions of one namespace at a time; calls block and are thread-safe.

    Args:
        location: the bucket; its keys sign the requests.
        source: see `SessionSource`.
        now: the time of day.
    """

    def __init__(self, location: S3Location, source: SessionSource, now: Callable[[], float] = time.time) -> None:
        self._location = location
        self._source = source
        self._now = now
        own = location.endpoint or _aws_endpoint(location.region)
        self.endpoint = (source.endpoint or own).rstrip("/")

    def create_session(self, namespace: str, who: str, *, collecting: bool = False) -> SessionCredentials:
        """Create a session that can access this namespace only.

        Args:
            namespace: the name in the store.
            who: the session's name, shown in the store's own log.
            collecting: for garbage collection only, with the shortest validity.

        Raises:
            UsageError: no policy can express it.
            NoSessionsError: the store has no STS.
            StoreDeniedError: an admin must act.
            StoreUnavailableError: a retry may succeed.
        """
        role = self._source.role_arn
        partition = role.split(":")[1] if role is not None and role.startswith("arn:") else "aws"
        policy = garbage_collection_policy if collecting else session_policy
        fields = {
            "Action": "AssumeRole",
            "Version": "2011-06-15",
            "DurationSeconds": str(SHORTEST_SECONDS if collecting else self._source.seconds),
            "RoleSessionName": _SESSION_NAME.sub("-", f"cedana-{who}")[:_LONGEST_SESSION_NAME],
            "Policy": policy(self._location.bucket, self._location.prefix, namespace, partition=partition),
        }
        if role is not None:
            fields["RoleArn"] = role
        status, answer = self._post_signed(urlencode(fields))
        if status != 200:
            raise self._explain_refusal(status, answer)
        return self._parse_credentials(answer, int(fields["DurationSeconds"]))

    def _post_signed(self, body: str) -> tuple[int, bytes]:
        url, now = urlsplit(self.endpoint), datetime.fromtimestamp(self._now(), tz=UTC)
        headers: dict[str, str | list[str] | tuple[str]] = {
            "Content-Type": "application/x-www-form-urlencoded",
            "Host": url.netloc,
            "X-Amz-Date": now.strftime("%Y%m%dT%H%M%SZ"),
        }
        keys = self._signing_keys()
        if keys.session_token is not None:
            headers["X-Amz-Security-Token"] = keys.session_token
        signed = sign_v4_sts(
            method="POST",
            url=urlsplit(f"{self.endpoint}/"),
            region=self._location.region,
            headers=headers,
            credentials=keys,
            content_sha256=hashlib.sha256(body.encode()).hexdigest(),
            date=now,
        )
        try:
            with urllib3.PoolManager(timeout=_TIMEOUT, retries=urllib3.Retry(1, redirect=False)) as client:
                plain = {name: str(value) for name, value in signed.items()}
                answer = client.request("POST", f"{self.endpoint}/", body=body, headers=plain, preload_content=False)
                try:
                    return answer.status, answer.read(_LONGEST_ANSWER)
                finally:
                    answer.release_conn()
        except (HTTPError, OSError) as error:
            remedy = "check storage.s3.scopedCredentials.stsEndpoint, and that the store is running"
            raise StoreUnavailableError(
                f"{self._failure_prefix}: no good answer came: {error}", remedy=remedy
            ) from error

    def _signing_keys(self) -> Credentials:
        keys = self._location.bucket_keys()
        if keys is None:
            sentence = f"{self._failure_prefix}: no keys are known here that such a request could be signed with"
            raise StoreDeniedError(sentence, remedy="give them by storage.s3.existingSecret")
        return Credentials(*keys, session_token=os.environ.get("AWS_SESSION_TOKEN") or None)

    def _explain_refusal(self, status: int, answer: bytes) -> StoreError:
        root = _parse_xml(answer)
        code, message = _element_text(root, "Code"), _element_text(root, "Message")
        shown = (f"{status} {code} {message}".strip() if code else f"{status} {answer.decode(errors='replace')}")[
            :_SHOWN
        ]
        sentence = f"{self._failure_prefix}: {shown}"
        if code in _NO_SUCH_ACTION or (status in _NO_SUCH_SERVICE and code != "NoSuchEntity"):
            remedy = "use a store that has AssumeRole, or leave storage.s3.scopedCredentials.enabled off"
            return NoSessionsError(sentence, remedy=remedy)
        if status in {400, 401, 403} and code not in _BUSY:
            remedy = "check the keys, the role (roleArn) and whom it trusts, and durationSeconds"
            return StoreDeniedError(sentence, remedy=remedy)
        return StoreUnavailableError(sentence, remedy="check that the store is running")

    def _parse_credentials(self, answer: bytes, requested_seconds: float) -> SessionCredentials:
        root = _parse_xml(answer)
        access, secret, token = (
            _element_text(root, name) for name in ("AccessKeyId", "SecretAccessKey", "SessionToken")
        )
        if not (access and secret and token):
            remedy = "check storage.s3.scopedCredentials.stsEndpoint: no STS answers so"
            raise StoreUnavailableError(f"{self._failure_prefix}: the answer names no credentials", remedy=remedy)
        return SessionCredentials(
            access, secret, token, self._validity_seconds(_element_text(root, "Expiration"), requested_seconds)
        )

    def _validity_seconds(self, expiration: str, requested_seconds: float) -> float:
        """Return the validity: the requested one, unless the response has a shorter one."""
        try:
            until = datetime.fromisoformat(expiration)
        except ValueError:
            return requested_seconds
        at = until if until.tzinfo is not None else until.replace(tzinfo=UTC)
        return min(requested_seconds, at.timestamp() - self._now())

    @property
    def _failure_prefix(self) -> str:
        return f"cannot get credentials of a session from {self.endpoint}"


def _aws_endpoint(region: str) -> str:
    """Return AWS' own endpoint of a region (docs.aws.amazon.com, "AWS STS endpoints"); China has another domain."""
    domain = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    return urlunsplit(("https", f"sts.{region}.{domain}", "", "", ""))


def _parse_xml(answer: bytes) -> ET.Element | None:
    try:
        return ET.fromstring(answer)  # noqa: S314  # bounded, and of the store that we trust with everything
    except (ET.ParseError, LookupError, ValueError):  # the last two: of the declared encoding
        return None


def _element_text(root: ET.Element | None, name: str) -> str:
    """Return the text of the first element of this name, in any XML namespace."""
    if root is None:
        return ""
    found = next((one for one in root.iter() if one.tag.rpartition("}")[2] == name), None)
    return (found.text or "").strip() if found is not None else ""
