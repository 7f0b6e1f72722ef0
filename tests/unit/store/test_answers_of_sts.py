"""Whatever is answered in the place of credentials is an error in words of the store, or credentials."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cedana_sched.model.errors import StoreError, StoreUnavailableError
from cedana_sched.store.credential_client import CredentialClient
from cedana_sched.store.credential_renewal import RenewedCredentials, SessionCredentials
from cedana_sched.store.storage_config import CredentialService, S3Location
from cedana_sched.store.sts import Sessions, SessionSource

LOCATION = S3Location(bucket="work", endpoint="https://store:8333")
GOOD = (
    b'<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleResult><Credentials>'
    b"<AccessKeyId>key</AccessKeyId><SecretAccessKey>secret</SecretAccessKey><SessionToken>token</SessionToken>"
    b"<Expiration>2030-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>"
)
ENCODINGS = ("utf-7", "big5", "none", "rot13", "idna", "utf-16", "hex", "ascii")
LAUGHTER = (
    b'<!DOCTYPE a [<!ENTITY a "' + b"x" * 1_000 + b'">'
    + b"".join(b'<!ENTITY %c "%s">' % (98 + n, b"&%c;" % (97 + n) * 50) for n in range(6))
    + b"]><Code>&g;</Code>"
)  # fmt: skip
ANSWERS = (
    st.binary(max_size=60)
    | st.builds(
        lambda at, by, length: (GOOD[:at] + by + GOOD[at + len(by) :])[:length],
        st.integers(0, len(GOOD)),
        st.binary(max_size=8),
        st.integers(0, 1_000),
    )
    | st.sampled_from([b'<?xml version="1.0" encoding="%s"?>' % one.encode() + GOOD for one in ENCODINGS])
    | st.sampled_from(
        ["", "x", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59-23:59", "2030-01-01", "9" * 5_000]
    ).map(lambda moment: GOOD.replace(b"2030-01-01T00:00:00Z", moment.encode()))
    | st.sampled_from([LAUGHTER, b"<a>" * 80_000, b"<Code>" + b"&#1;" * 9 + b"</Code>"])
)
STATUSES = st.sampled_from([200, 200, 301, 400, 403, 404, 500, 503])


class Answered(Sessions):
    """By whoever is there."""

    def __init__(self, status: int, answer: bytes) -> None:
        super().__init__(LOCATION, SessionSource(), now=lambda: 1_800_000_000.0)
        self._answered = status, answer

    def _post_signed(self, body: str) -> tuple[int, bytes]:
        return self._answered


@given(STATUSES, ANSWERS)
@example(200, b'<?xml version="1.0" encoding="none"?>' + GOOD)
@settings(deadline=None, max_examples=300)
def test_any_answer_of_an_sts(status: int, answer: bytes) -> None:
    try:
        given_now = Answered(status, answer).create_session("research.7c9e6679", "node-1")
    except StoreError as error:
        assert len(str(error)) < 1_000  # noqa: PT017  # the other outcome is as good
        return
    assert given_now.access_key
    assert given_now.seconds <= SessionSource().seconds
    try:
        RenewedCredentials(lambda: given_now).current()
    except StoreUnavailableError as error:
        assert "are valid for" in str(error)  # noqa: PT017  # the other outcome is as good


def test_the_good_answer_of_these_tests_is_read() -> None:
    assert Answered(200, GOOD).create_session("research.7c9e6679", "node-1") == SessionCredentials(
        "key", "secret", "token", 3600.0
    )


BODIES = (
    st.binary(max_size=60)
    | st.sampled_from([
        b"[" * 100_000, b'{"x":' + b"[" * 100_000, b'{"accessKey":"\xff"}', b'{"message":"\xff"}', b"null", b"{}",
        b'{"accessKey":"a","secretKey":"b","sessionToken":"c","seconds":1e400}',
        b'{"accessKey":"a","secretKey":"b","sessionToken":"c","seconds":-1e300}',
    ])
)  # fmt: skip


@given(st.sampled_from([200, 403, 500]), BODIES)
@settings(deadline=None, suppress_health_check=list(HealthCheck))
def test_any_answer_of_a_coordinator(status: int, body: bytes) -> None:
    service = CredentialService(url="https://coordinator/credentials", token_file=Path("/x"), authorities=Path("/y"))
    client = CredentialClient(service)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client, "_post_request", lambda *_: (status, body))
        try:
            RenewedCredentials(lambda: client.fetch("research")).current()
        except StoreUnavailableError as error:
            assert len(str(error)) < 1_000  # noqa: PT017  # the other outcome is as good
