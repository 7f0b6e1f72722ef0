"""What an S3 server refuses is told by what a person can do about it."""

from __future__ import annotations

import pytest
from obstore.exceptions import GenericError, PermissionDeniedError

from cedana_sched.model.errors import StoreDeniedError, StoreError, StoreUnavailableError
from cedana_sched.store.s3 import translate_error


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (GenericError("Client error with status 507 Insufficient Storage"), StoreUnavailableError, "it is full"),
        (PermissionDeniedError("403 Forbidden: <Code>QuotaExceeded</Code>"), StoreUnavailableError, "it is full"),
        (PermissionDeniedError("403 Forbidden: <Code>AccessDenied</Code>"), StoreDeniedError, "refuses these keys"),
        (GenericError("404 Not Found: <Code>NoSuchBucket</Code>"), StoreDeniedError, "no such bucket"),
        (GenericError("error sending request after 1.507 s"), StoreUnavailableError, "no good answer"),
    ],
    ids=["full", "quota", "keys", "bucket", "away"],
)
def test_refusals_are_told_apart(error: Exception, kind: type[StoreError], said: str) -> None:
    explained = translate_error(error, "write", "the bucket lab")
    assert type(explained) is kind
    assert said in explained.message
