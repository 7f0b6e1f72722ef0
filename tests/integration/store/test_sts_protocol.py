"""AssumeRole as AWS documents it: what is asked, how it is signed, and what every answer means."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from cedana_sched.model.errors import StoreDeniedError, StoreUnavailableError, UsageError
from cedana_sched.store.session_policy import garbage_collection_policy, session_policy
from cedana_sched.store.storage_config import S3Location
from cedana_sched.store.sts import NoSessionsError, Sessions, SessionSource
from tests.servers.sts import ACCESS_KEY, SECRET_KEY, FakeSts, error, sts_server

MINE = "research.7c9e6679-7425-40de-944b-e07fc1f90ae7"
ROLE = "arn:aws:iam::123456789012:role/demo"


@pytest.fixture
def sts() -> Iterator[FakeSts]:
    with sts_server() as fake:
        yield fake


def sessions(sts: FakeSts, secret: str = SECRET_KEY, **source: object) -> Sessions:
    location = S3Location.model_validate(
        {
            "bucket": "bucket",
            "prefix": "some/prefix",
            "endpoint": sts.url,
            "allowHttp": True,
            "accessKey": ACCESS_KEY,
            "secretKey": secret,
        }
    )
    return Sessions(location, SessionSource.model_validate(source))


def test_a_session_is_asked_for_with_the_policy_of_its_namespace(sts: FakeSts) -> None:
    given = sessions(sts, roleArn=ROLE, durationSeconds=1800).create_session(MINE, "node-1.example")
    assert (given.access_key, given.secret_key, given.session_token) == ("ASIA1", "secret-1", "token-1")
    assert 1790 < given.seconds <= 1800
    asked = sts.requests[0]
    assert asked["Policy"] == session_policy("bucket", "some/prefix", MINE)
    assert asked["DurationSeconds"] == "1800"
    assert asked["RoleArn"] == ROLE
    assert asked["RoleSessionName"] == "cedana-node-1.example"


def test_a_session_that_only_collects_is_as_short_as_there_are(sts: FakeSts) -> None:
    given = sessions(sts, durationSeconds=43_200).create_session(MINE, "n", collecting=True)
    assert 890 < given.seconds <= 900
    assert sts.requests[0]["DurationSeconds"] == "900"
    assert sts.requests[0]["Policy"] == garbage_collection_policy("bucket", "some/prefix", MINE)


def test_a_store_that_needs_no_role_is_told_of_none(sts: FakeSts) -> None:
    sessions(sts).create_session(MINE, "n" * 253)
    assert "RoleArn" not in sts.requests[0]
    assert sts.requests[0]["RoleSessionName"] == ("cedana-" + "n" * 253)[:64]


def test_a_session_that_is_shorter_than_was_asked_for_is_known_to_be(sts: FakeSts) -> None:
    sts.life = dt.timedelta(minutes=15)
    assert 880 < sessions(sts).create_session(MINE, "n").seconds <= 900


def test_keys_that_expire_themselves_sign_with_their_token(sts: FakeSts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "mine")
    sessions(sts).create_session(MINE, "n")
    assert sts.headers[0]["x-amz-security-token"] == "mine"
    assert "x-amz-security-token" in sts.headers[0]["authorization"]


def test_the_partition_of_the_role_is_that_of_the_policy(sts: FakeSts) -> None:
    sessions(sts, roleArn=ROLE.replace("arn:aws:", "arn:aws-cn:")).create_session(MINE, "n")
    assert json.loads(sts.requests[0]["Policy"])["Statement"][1]["Resource"] == ["arn:aws-cn:s3:::bucket"]


def test_wrong_keys_are_refused_by_the_signature(sts: FakeSts) -> None:
    with pytest.raises(StoreDeniedError, match="SignatureDoesNotMatch"):
        sessions(sts, secret="another").create_session(MINE, "n")  # noqa: S106


@pytest.mark.parametrize(
    ("answer", "raised"),
    [
        (error(403, "AccessDenied", "is not authorized to perform: sts:AssumeRole"), StoreDeniedError),
        (
            error(403, "InvalidClientTokenId", "The security token is invalid."),
            StoreDeniedError,
        ),
        (error(400, "MalformedPolicyDocument", "This policy contains invalid Json"), StoreDeniedError),
        (error(400, "PackedPolicyTooLarge", "too large"), StoreDeniedError),
        (error(400, "ValidationError", "MaxSessionDuration"), StoreDeniedError),
        (error(403, "RegionDisabledException", "STS is not activated in this region"), StoreDeniedError),
        (error(400, "Throttling", "Rate exceeded"), StoreUnavailableError),
        (error(503, "ServiceUnavailable", "later"), StoreUnavailableError),
        (error(500, "InternalFailure", "unknown"), StoreUnavailableError),
        (error(400, "InvalidAction", "The action is invalid"), NoSessionsError),
        ((405, "<Error><Code>MethodNotAllowed</Code><Message>not allowed</Message></Error>"), NoSessionsError),
        ((501, ""), NoSessionsError),
        ((404, "404 page not found"), NoSessionsError),
        ((200, "<html>a proxy's page</html>"), StoreUnavailableError),
        ((200, "no XML"), StoreUnavailableError),
    ],
)
def test_what_every_answer_means(sts: FakeSts, answer: tuple[int, str], raised: type[Exception]) -> None:
    sts.answers.append(answer)
    with pytest.raises(raised) as told:
        sessions(sts).create_session(MINE, "n")
    assert type(told.value) is raised
    assert SECRET_KEY not in str(told.value)


def test_a_service_that_does_not_answer_is_unavailable() -> None:
    with sts_server() as gone:
        pass
    with pytest.raises(StoreUnavailableError, match="no good answer"):
        sessions(gone).create_session(MINE, "n")


def test_no_keys_at_all(sts: FakeSts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    location = S3Location(bucket="bucket", endpoint=sts.url, allow_http=True)
    with pytest.raises(StoreDeniedError, match="no keys are known"):
        Sessions(location, SessionSource()).create_session(MINE, "n")
    assert not sts.requests


def test_a_forged_namespace_reaches_nobody(sts: FakeSts) -> None:
    with pytest.raises(UsageError):
        sessions(sts).create_session(f"{MINE}/*", "n")
    assert not sts.requests


@pytest.mark.parametrize(
    ("region", "host"),
    [("eu-west-1", "sts.eu-west-1.amazonaws.com"), ("cn-north-1", "sts.cn-north-1.amazonaws.com.cn")],
)
def test_aws_own_service_is_that_of_the_region(region: str, host: str) -> None:
    parts = urlsplit(Sessions(S3Location(bucket="bucket", region=region), SessionSource()).endpoint)
    assert (parts.scheme, parts.netloc) == ("https", host)
