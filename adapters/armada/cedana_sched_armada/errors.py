"""What Armada answers when it says no, as errors of ours.

ArmadaError
├── ArmadaUnavailableError   not reachable, overloaded, not ready yet: the same call may work later
│   └── ArmadaUntrustedError who answers is not whom we were told of: mostly a person must act
├── ArmadaDeniedError        who we are is not known, or may not do that: a person must act
└── ArmadaRefusedError       what was asked is not valid, or does not exist: a person must act
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
"""What to do, by what gRPC says of a connection that was not made."""
_HUNG_UP = ("Socket closed", "Connection reset by peer", "Broken pipe")
"""Who wants a certificate hangs up, and it depends on the moment what gRPC says of that."""
_UNKNOWN_QUEUE = "could not find queue"
"""Said as PERMISSION_DENIED until the server's cache of queues knows a new one."""


class ArmadaError(CedanaSchedError):
    """`undecided`: it may have been done all the same."""

    def __init__(self, message: str, *, remedy: str = "", undecided: bool = False) -> None:
        super().__init__(message, remedy=remedy)
        self.undecided = undecided


class ArmadaUnavailableError(ArmadaError, RetryableError):
    """Not reachable or not ready: the same call may succeed later."""


class ArmadaUntrustedError(ArmadaUnavailableError):
    """It is not, or does not speak, as the configuration says; it may while certificates are replaced."""


class ArmadaDeniedError(ArmadaError):
    """Not allowed."""


class ArmadaRefusedError(ArmadaError):
    """Not valid, or not there."""


def error_of(call: str, error: grpc.RpcError, *, needs: str = "") -> ArmadaError:
    """The error that an answer stands for.

    Args:
        call: what was asked, for people.
        error: of `grpc.aio`.
        needs: the permissions that the call needs, for people.
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
        remedy += "; if it goes on, see whether Armada wants TLS there, or a client's certificate: armada.tls"
    return ArmadaUnavailableError(message, remedy=remedy, undecided=code not in _DENIED)
