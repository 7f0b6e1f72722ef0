"""HTTPS client of the credential service, which has the bucket's keys and issues credentials of one namespace.

POST <url>                             Authorization: Bearer <token of our own pod>
{"namespace": "research.7c9e6679-…"}   with "collecting": true for credentials that only collect garbage, in a turn
200 {"accessKey": …, "secretKey": …, "sessionToken": …, "seconds": 3600}
401, 403, 4xx, 5xx {"message": "…"}    403: this node is not entitled to that namespace
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
import urllib3
from urllib3.exceptions import HTTPError

from cedana_sched.model.errors import StoreUnavailableError
from cedana_sched.store.credential_renewal import CredentialsRefusedError, SessionCredentials
from cedana_sched.store.storage_config import CredentialService

_TIMEOUT: Final = urllib3.Timeout(connect=5, read=30)
_LONGEST_ANSWER: Final = 64 << 10
_SHOWN: Final = 300


class CredentialRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Request body. `namespace` is the name in the store; see `layout`."""

    namespace: str
    collecting: bool = False
    """Request credentials for garbage collection only; it must be the client's turn."""


class CredentialRefusal(msgspec.Struct, frozen=True):
    """Response body of a refusal."""

    message: str = ""


class CredentialClient:
    """A thread-safe client. Neither the token nor the CA certificates are cached: others rotate them.

    Args:
        service: the credential service.
        collecting: request credentials that only collect garbage.
    """

    def __init__(self, service: CredentialService, *, collecting: bool = False) -> None:
        self._service = service
        self._collecting = collecting

    def fetch(self, namespace: str) -> SessionCredentials:
        """Fetch credentials of this namespace.

        Raises:
            CredentialsRefusedError: this node is not entitled to it now.
            StoreUnavailableError: no response, or an invalid one.
        """
        what = f"cannot get credentials of namespace {namespace} from {self._service.url}"
        status, body = self._post_request(what, msgspec.json.encode(CredentialRequest(namespace, self._collecting)))
        if status == 200:
            try:
                return msgspec.json.decode(body, type=SessionCredentials)
            except (ValueError, RecursionError) as error:
                raise StoreUnavailableError(f"{what}: the answer cannot be read: {error}", remedy=_VERSIONS) from error
        sentence = f"{what}: {status}: {_refusal_message(body)}"
        if status == 403:
            raise CredentialsRefusedError(sentence, remedy="it is tried again, and given with a pod or an order")
        raise StoreUnavailableError(sentence, remedy="see the log of the coordinator")

    def _post_request(self, what: str, body: bytes) -> tuple[int, bytes]:
        service = self._service
        token = _read_text_file(what, service.token_file).strip()
        authorities = _read_text_file(what, service.authorities)  # urllib3's own error would not name the file
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        try:
            with urllib3.PoolManager(cert_reqs="CERT_REQUIRED", ca_cert_data=authorities) as client:
                answer = client.request(
                    "POST",
                    service.url,
                    body=body,
                    headers=headers,
                    timeout=_TIMEOUT,
                    retries=False,
                    redirect=False,
                    preload_content=False,
                )
                try:
                    return answer.status, answer.read(_LONGEST_ANSWER)
                finally:
                    answer.release_conn()
        except (HTTPError, OSError) as error:
            remedy = "see whether the coordinator runs, and whether a NetworkPolicy keeps this node from it"
            raise StoreUnavailableError(f"{what}: {error}", remedy=remedy) from error


_VERSIONS: Final = "run the coordinator and the agents in one version"


def _read_text_file(what: str, path: Path) -> str:
    try:
        text = path.read_text()
    except (OSError, ValueError) as error:
        remedy = "wait until the kubelet has mounted it, or see the volumes of the agent's pod"
        raise StoreUnavailableError(f"{what}: {path} cannot be read: {error}", remedy=remedy) from error
    if not text.strip():
        raise StoreUnavailableError(f"{what}: {path} is empty", remedy="see the log of the coordinator")
    return text


def _refusal_message(body: bytes) -> str:
    try:
        return msgspec.json.decode(body, type=CredentialRefusal).message[:_SHOWN]
    except (ValueError, RecursionError):
        return body[:_SHOWN].decode(errors="replace")
