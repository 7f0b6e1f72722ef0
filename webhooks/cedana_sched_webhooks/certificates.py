"""Our CA and serving certificate, and when each is renewed. Pure: no clock, no client, no file.

A CA is replaced in two steps, so that no client ever gets a certificate that it does not trust: first the new CA is
added beside the old one in every `caBundle`, later it issues a certificate.
"""

from __future__ import annotations

import datetime as dt
from typing import Final

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from cedana_sched.model.errors import CedanaSchedError

AUTHORITY_LIFE: Final = dt.timedelta(days=365)
CERTIFICATE_LIFE: Final = dt.timedelta(days=90)
RENEWED_AFTER: Final = 2 / 3
"""Fraction of a certificate's lifetime."""
BACKDATED: Final = dt.timedelta(minutes=5)
"""Tolerance for slow clocks."""
SPREAD: Final = dt.timedelta(minutes=5)
"""From the addition of a new CA to `caBundle` until it issues a certificate, so that every API server has read it."""

_AUTHORITY_NAME = "cedana-sched webhooks"


class UnreadableCertificatesError(CedanaSchedError):
    """Stored data is no certificate or key, or these do not belong together."""


class IssuedCertificates(msgspec.Struct, frozen=True):
    """All in PEM. `authorities` are the trusted CAs, newest first; `authority_key` belongs to the newest."""

    authorities: bytes
    authority_key: bytes
    certificate: bytes
    key: bytes


class Plan(msgspec.Struct, frozen=True):
    """`issued` is the new state, None if nothing changes; `due` is when to plan again."""

    issued: IssuedCertificates | None
    due: dt.datetime


def plan_next_step(
    current: IssuedCertificates | None, service_names: tuple[str, ...], *, trusted: bool, now: dt.datetime
) -> Plan:
    """Plan the next step.

    Args:
        current: the stored state, None if there is none yet.
        service_names: DNS names of the Service.
        trusted: whether every webhook configuration has all of `current.authorities` in its `caBundle`.
        now: with a time zone.

    Raises:
        UnreadableCertificatesError: `current` is damaged.
    """
    if current is None:
        authority, key = _new_authority(now)
        made = _with_new_certificate([authority], key, service_names, now)
        return Plan(made, _next_plan_time(_parse_issued(made), service_names))
    read = _parse_issued(current)
    if now >= _renewal_time(read.authorities[0]):
        made = _with_new_authority(read, current, now)
        return Plan(made, _next_plan_time(_parse_issued(made), service_names))
    if now >= _next_issue_time(read, service_names) and (trusted or now >= read.certificate.not_valid_after_utc):
        still_valid = [one for one in read.authorities if one.not_valid_after_utc > now]
        made = _with_new_certificate(still_valid, read.authority_key, service_names, now)
        return Plan(made, _next_plan_time(_parse_issued(made), service_names))
    return Plan(None, _next_plan_time(read, service_names))


def expiry_of_certificate(certificate: bytes) -> dt.datetime:
    """Return when the first certificate of a PEM file expires.

    Raises:
        UnreadableCertificatesError: it contains none.
    """
    return _load(certificate)[0].not_valid_after_utc


class _ParsedCertificates(msgspec.Struct, frozen=True):
    authorities: list[x509.Certificate]
    authority_key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate


def _parse_issued(issued: IssuedCertificates) -> _ParsedCertificates:
    try:
        key = serialization.load_pem_private_key(issued.authority_key, None)
    except (ValueError, TypeError) as error:
        raise _unreadable_error(f"the authority's key: {error}") from error
    authorities, certificate = _load(issued.authorities), _load(issued.certificate)[0]
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != authorities[0].public_key():
        raise _unreadable_error("the authority's key is of another authority")
    return _ParsedCertificates(authorities, key, certificate)


def _load(pem: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise _unreadable_error(f"a certificate: {error}") from error


def _unreadable_error(what: str) -> UnreadableCertificatesError:
    return UnreadableCertificatesError(f"cannot be read: {what}", remedy="delete the Secret: it is made anew")


# -- when


def _next_plan_time(read: _ParsedCertificates, service_names: tuple[str, ...]) -> dt.datetime:
    return min(_renewal_time(read.authorities[0]), _next_issue_time(read, service_names))


def _renewal_time(certificate: x509.Certificate) -> dt.datetime:
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    return begin + (end - begin) * RENEWED_AFTER


def _next_issue_time(read: _ParsedCertificates, service_names: tuple[str, ...]) -> dt.datetime:
    """Return when to issue the next certificate; a time in the past means at once."""
    newest = read.authorities[0]
    if not _is_issued_by(read.certificate, newest):
        return newest.not_valid_before_utc + BACKDATED + SPREAD
    if not _dns_names_of(read.certificate).issuperset(service_names):
        return read.certificate.not_valid_before_utc
    return _renewal_time(read.certificate)


def _is_issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, InvalidSignature):
        return False
    return True


def _dns_names_of(certificate: x509.Certificate) -> set[str]:
    extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    return set(extension.value.get_values_for_type(x509.DNSName))


# -- what


def _with_new_authority(read: _ParsedCertificates, current: IssuedCertificates, now: dt.datetime) -> IssuedCertificates:
    """Add a new CA beside those that are still valid; the certificate stays."""
    authority, key = _new_authority(now)
    still_valid = [one for one in read.authorities if one.not_valid_after_utc > now]
    return IssuedCertificates(_pem([authority, *still_valid]), _key_pem(key), current.certificate, current.key)


def _new_authority(now: dt.datetime) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _subject_name(_AUTHORITY_NAME)
    builder = _certificate_builder(name, name, key.public_key(), now, AUTHORITY_LIFE)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_key_usage(signs=True), critical=True)
    return builder.sign(key, hashes.SHA256()), key


def _with_new_certificate(
    authorities: list[x509.Certificate],
    authority_key: ec.EllipticCurvePrivateKey,
    service_names: tuple[str, ...],
    now: dt.datetime,
) -> IssuedCertificates:
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = authorities[0]
    alternatives = x509.SubjectAlternativeName([x509.DNSName(name) for name in service_names])
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    certificate = (
        _certificate_builder(_subject_name("webhooks"), issuer.subject, key.public_key(), now, CERTIFICATE_LIFE)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(alternatives, critical=False)
        .add_extension(identifier, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    return IssuedCertificates(_pem(authorities), _key_pem(authority_key), _pem([certificate]), _key_pem(key))


def _subject_name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _certificate_builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: dt.datetime, life: dt.timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + life)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _key_usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificates: list[x509.Certificate]) -> bytes:
    return b"".join(one.public_bytes(serialization.Encoding.PEM) for one in certificates)


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
