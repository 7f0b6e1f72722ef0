"""Armada's error answers as exceptions of ours.

ArmadaError
├── ArmadaUnavailableError   unreachable, overloaded, not ready yet: a retry may succeed
│   └── ArmadaUntrustedError the server fails TLS verification: usually an admin must act
├── ArmadaDeniedError        unauthenticated, or not permitted: an admin must act
└── ArmadaRefusedError       the request is invalid, or its object does not exist: a user or admin must act
"""

from __future__ import annotations

import grpc

from cedana_sched.model.errors import CedanaSchedError, RetryableError

_DENIED = {grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED}
_REFUSED = {
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.OUT_OF_RANGE,
}
_DISTRUST = {
    "CERTIFICATE_VERIFY_FAILED": "name in armada.tls.ca who signed Armada's certificate",
    "Hostname Verification Check failed": "name in armada.tls.serverName for whom Armada's certificate was made",
    "WRONG_VERSION_NUMBER": "nothing is encrypted there: leave armada.tls out, or correct armada.url",
    "Failed to create security handshaker": "see whether the files of armada.tls hold certificates and a key, as PEM",
}
"""Remedies by gRPC's message about a failed connection."""
_HUNG_UP = ("Socket closed", "Connection reset by peer", "Broken pipe")
"""gRPC's messages when a server requires a client certificate and closes the connection, depending on timing."""
_UNKNOWN_QUEUE = "could not find queue"
"""Returned as PERMISSION_DENIED until the server's cache of queues contains a new queue."""


class ArmadaError(CedanaSchedError):
    """`undecided`: the call may have succeeded nevertheless."""

    def __init__(self, message: str, *, remedy: str = "", undecided: bool = False) -> None:
        super().__init__(message, remedy=remedy)
        self.undecided = undecided


class ArmadaUnavailableError(ArmadaError, RetryableError):
    """Unreachable or not ready: a retry may succeed."""


class ArmadaUntrustedError(ArmadaUnavailableError):
    """The server's TLS does not match the configuration; it may while certificates are replaced."""


class ArmadaDeniedError(ArmadaError):
    """Not permitted."""


class ArmadaRefusedError(ArmadaError):
    """Invalid, or not found."""


def convert_grpc_error(call: str, error: grpc.RpcError, *, needs: str = "") -> ArmadaError:
    """Convert a gRPC error.

    Args:
        call: description of the call, for users.
        error: of `grpc.aio`.
        needs: permissions that the call needs, for users.
    """
    code, details = error.code(), error.details() or ""
    message = f"{call}: {code.name} {details}".rstrip()
    if code in _DENIED and _UNKNOWN_QUEUE not in details:
        remedy = f"grant it to our user in Armada: {needs}" if needs else "see the message"
        if code is grpc.StatusCode.UNAUTHENTICATED:
            remedy = "see armada.auth in the coordinator's configuration"
        return ArmadaDeniedError(message, remedy=remedy)
    if code in _REFUSED:
        return ArmadaRefusedError(message, remedy="see the message")
    for sign, remedy in _DISTRUST.items():
        if sign in details:
            return ArmadaUntrustedError(message, remedy=remedy)
    remedy = "it is tried again"
    if any(sign in details for sign in _HUNG_UP):
        remedy += "; if it persists, check whether Armada requires TLS there, or a client's certificate: armada.tls"
    return ArmadaUnavailableError(message, remedy=remedy, undecided=code not in _DENIED)
