"""Server-side TLS: one context whose certificate can change while in use."""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import Protocol

from prometheus_client import Gauge

from cedana_sched.model.errors import UsageError
from cedana_sched_webhooks.certificates import UnreadableCertificatesError, expiry_of_certificate


class CertificateMetrics(Protocol):
    """Metrics of a component that serves with a certificate."""

    certificate_expiry: Gauge
    """Seconds since the epoch."""


class ServingCertificate:
    """Certificate for new connections, from `load` on; open connections keep theirs.

    Args:
        client_authorities: PEM file of client CAs; only clients with a certificate of theirs are served.

    Raises:
        UsageError: that file cannot be read.
    """

    def __init__(self, metrics: CertificateMetrics, client_authorities: Path | None = None) -> None:
        self.context = _new_server_context()
        if client_authorities is not None:
            _require_client_certificates(self.context, client_authorities)
        self._metrics = metrics
        self._loaded: tuple[bytes, bytes] | None = None

    @property
    def is_loaded(self) -> bool:
        return self._loaded is not None

    def load(self, certificate: bytes, key: bytes) -> bool:
        """Serve new connections with this PEM pair; False if it is already in use.

        Raises:
            UnreadableCertificatesError: they are no pair; the previous pair stays in use.
        """
        if self._loaded == (certificate, key):
            return False
        until = expiry_of_certificate(certificate)
        _load(
            _new_server_context(), certificate, key
        )  # validated on a scratch context: a failure may leave half a pair
        _load(self.context, certificate, key)
        self._loaded = (certificate, key)
        self._metrics.certificate_expiry.set(until.timestamp())
        return True


def _new_server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


def _require_client_certificates(context: ssl.SSLContext, authorities: Path) -> None:
    try:
        context.load_verify_locations(cafile=authorities)
    except (ssl.SSLError, OSError) as error:
        remedy = f"give a file of certificates in PEM: {error}"
        raise UsageError("clientCertificates.authorities", str(authorities), "cannot be read", remedy=remedy) from error
    context.verify_mode = ssl.CERT_REQUIRED


def _load(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    """Load a pair through an in-memory file: OpenSSL reads only files, and no key may be on disk."""
    file = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        with open(file, "wb", closefd=False) as writer:  # the file has no path
            writer.write(key + b"\n" + certificate)
        context.load_cert_chain(f"/proc/self/fd/{file}")
    except (ssl.SSLError, OSError) as error:
        raise UnreadableCertificatesError(
            f"the certificate and the key cannot be served with: {error}",
            remedy="give a certificate and its own key, both in PEM",
        ) from error
    finally:
        os.close(file)
