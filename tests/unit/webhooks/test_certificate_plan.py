"""When an authority or a certificate is made anew, over years, and that nobody ever meets one he does not trust."""

from __future__ import annotations

import datetime as dt

import msgspec
import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature

from cedana_sched_webhooks.certificates import (
    AUTHORITY_LIFE,
    CERTIFICATE_LIFE,
    IssuedCertificates,
    UnreadableCertificatesError,
    expiry_of_certificate,
    plan_next_step,
)

BEGIN = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
NAMES = ("webhooks.cedana-system.svc", "webhooks.cedana-system.svc.cluster.local")


def first(now: dt.datetime = BEGIN) -> IssuedCertificates:
    issued = plan_next_step(None, NAMES, trusted=False, now=now).issued
    assert issued is not None
    return issued


def authorities(issued: IssuedCertificates) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(issued.authorities)


def is_trusted(certificate: bytes, bundle: bytes, now: dt.datetime) -> bool:
    """As an API server with that `caBundle` sees it."""
    leaf = x509.load_pem_x509_certificate(certificate)
    for authority in x509.load_pem_x509_certificates(bundle):
        try:
            leaf.verify_directly_issued_by(authority)
        except (ValueError, InvalidSignature):
            continue
        return all(one.not_valid_before_utc <= now < one.not_valid_after_utc for one in (leaf, authority))
    return False


def test_the_first_are_for_our_names_and_trusted_at_once() -> None:
    made = plan_next_step(None, NAMES, trusted=False, now=BEGIN)
    assert made.issued is not None
    assert is_trusted(made.issued.certificate, made.issued.authorities, BEGIN)
    assert expiry_of_certificate(made.issued.certificate) == BEGIN + CERTIFICATE_LIFE
    leaf = x509.load_pem_x509_certificate(made.issued.certificate)
    alternatives = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert tuple(alternatives.get_values_for_type(x509.DNSName)) == NAMES
    assert BEGIN + CERTIFICATE_LIFE / 2 < made.due < BEGIN + CERTIFICATE_LIFE


def test_nothing_is_made_before_it_is_due() -> None:
    issued = first()
    due = plan_next_step(issued, NAMES, trusted=True, now=BEGIN).due
    assert plan_next_step(issued, NAMES, trusted=True, now=due - dt.timedelta(seconds=1)).issued is None
    assert plan_next_step(issued, NAMES, trusted=True, now=due).issued is not None


def test_a_certificate_is_renewed_by_the_same_authority() -> None:
    issued = first()
    now = plan_next_step(issued, NAMES, trusted=True, now=BEGIN).due
    renewed = plan_next_step(issued, NAMES, trusted=True, now=now).issued
    assert renewed is not None
    assert renewed.authorities == issued.authorities
    assert renewed.certificate != issued.certificate
    assert expiry_of_certificate(renewed.certificate) == now + CERTIFICATE_LIFE


def test_another_name_of_the_service_makes_another_certificate() -> None:
    renewed = plan_next_step(first(), ("other.cedana-system.svc",), trusted=True, now=BEGIN).issued
    assert renewed is not None
    assert is_trusted(renewed.certificate, renewed.authorities, BEGIN)


def test_nothing_is_issued_by_an_authority_that_is_not_trusted_everywhere() -> None:
    issued = first()
    now = plan_next_step(issued, NAMES, trusted=True, now=BEGIN).due
    assert plan_next_step(issued, NAMES, trusted=False, now=now).issued is None
    assert plan_next_step(issued, NAMES, trusted=False, now=BEGIN + CERTIFICATE_LIFE).issued is not None, (
        "nothing is left to lose"
    )


def test_a_new_authority_is_trusted_beside_the_old_one_before_it_issues() -> None:
    issued = first()
    now = BEGIN + AUTHORITY_LIFE * 0.7
    beside = plan_next_step(issued, NAMES, trusted=True, now=now)
    assert beside.issued is not None
    assert beside.issued.certificate == issued.certificate
    assert authorities(beside.issued)[1:] == authorities(issued)
    at_once = plan_next_step(beside.issued, NAMES, trusted=True, now=now)
    assert at_once.issued is None
    assert at_once.due > now
    later = plan_next_step(beside.issued, NAMES, trusted=True, now=at_once.due)
    assert later.issued is not None
    assert is_trusted(later.issued.certificate, later.issued.authorities, at_once.due)
    assert not is_trusted(later.issued.certificate, issued.authorities, at_once.due)


def test_over_five_years_every_certificate_is_trusted_by_those_who_have_not_heard_of_it_yet() -> None:
    issued, spread, now = first(), first().authorities, BEGIN
    spread, made = issued.authorities, 0
    while now < BEGIN + dt.timedelta(days=5 * 365):
        step = plan_next_step(issued, NAMES, trusted=spread == issued.authorities, now=now)
        if step.issued is None:
            spread = issued.authorities  # the configurations follow
            now = max(step.due, now + dt.timedelta(hours=1))
        else:
            issued, made = step.issued, made + 1
        assert is_trusted(issued.certificate, spread, now)
        assert len(authorities(issued)) <= 2
    assert 25 < made < 60


@pytest.mark.parametrize("field", ["authorities", "authority_key", "certificate"])
def test_what_is_damaged_is_said(field: str) -> None:
    damaged = msgspec.structs.replace(first(), **{field: b"nothing"})
    with pytest.raises(UnreadableCertificatesError, match="delete the Secret"):
        plan_next_step(damaged, NAMES, trusted=True, now=BEGIN)


def test_a_key_of_another_authority_is_said() -> None:
    mixed = msgspec.structs.replace(first(), authority_key=first().authority_key)
    with pytest.raises(UnreadableCertificatesError, match="another authority"):
        plan_next_step(mixed, NAMES, trusted=True, now=BEGIN)
