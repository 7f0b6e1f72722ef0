"""What a person is told to do about what gRPC says."""

from __future__ import annotations

import grpc
import pytest
from grpc.aio import AioRpcError, Metadata

from cedana_sched_armada.errors import ArmadaError, ArmadaUnavailableError, ArmadaUntrustedError, convert_grpc_error


def said(details: str) -> ArmadaError:
    return convert_grpc_error(
        "details", AioRpcError(grpc.StatusCode.UNAVAILABLE, Metadata(), Metadata(), details=details)
    )


@pytest.mark.parametrize("details", ["Socket closed", "recvmsg:Connection reset by peer", "sendmsg: Broken pipe (32)"])
def test_who_hangs_up_may_want_a_certificate(details: str) -> None:
    error = said(details)
    assert isinstance(error, ArmadaUnavailableError)
    assert "a client's certificate: armada.tls" in error.remedy


def test_who_is_away_wants_nothing() -> None:
    assert said("failed to connect to all addresses; connection refused").remedy == "it is tried again"


def test_whom_we_do_not_know_a_person_must_name() -> None:
    error = said("Ssl handshake failed: CERTIFICATE_VERIFY_FAILED")
    assert isinstance(error, ArmadaUntrustedError)
    assert "armada.tls.ca" in error.remedy
