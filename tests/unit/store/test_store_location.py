"""Where a store is: what people write is read, and nonsense is answered with field, value and remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cedana_sched.model.errors import UsageError
from cedana_sched.store.location import StorageConfig

S3 = {"endpoint": "https://s3.example", "bucket": "snapshots", "access_key": "key", "secret_key": "hidden-secret"}


@pytest.mark.parametrize("uri", ["/srv/snapshots", "file:///srv/snapshots", "file://localhost/srv/snapshots"])
def test_folders(uri: str) -> None:
    assert StorageConfig.parse(uri).path == Path("/srv/snapshots")
    assert str(StorageConfig.parse(uri)) == "/srv/snapshots"


def test_a_bucket_with_a_prefix() -> None:
    config = StorageConfig.parse(
        "s3://snapshots/team//a/", endpoint="http://127.0.0.1:7070", allow_http=True, region=None
    )

    assert config.s3 is not None
    assert (config.s3.bucket, config.s3.prefix, config.s3.region) == ("snapshots", "team/a", "us-east-1")
    assert str(config) == "s3://snapshots/team/a"


@pytest.mark.parametrize(
    ("uri", "options", "words"),
    [
        ("relative/folder", {}, "store: 'relative/folder' cannot be read as a place"),
        ("", {}, "write /folder"),
        ("http://bucket", {}, "write /folder, file:///folder or s3://bucket/prefix"),
        ("file://elsewhere/x", {}, "cannot be read as a place"),
        ("s3://", {}, "s3.bucket: '' is not a valid setting"),
        ("s3://UPPER/x", {}, "lower-case"),
        ("s3://key:secret@bucket", {}, "more than a bucket and a prefix"),
        ("s3://bucket/../x", {}, "must not contain"),
        ("s3://bucket?x=1", {}, "more than a bucket and a prefix"),
        ("s3://bucket", {"endpoint": "127.0.0.1:80"}, "https://host"),
        ("s3://bucket", {"endpoint": "http://127.0.0.1:80"}, "allow_http"),
        ("s3://bucket", {"endpoint": "https://x", "access_key": "a"}, "belong together"),
        ("s3://bucket", {"colour": "red"}, "s3.colour: 'red'"),
        ("/folder", {"endpoint": "https://x"}, "endpoint: 'https://x' means nothing for a folder"),
    ],
)
def test_nonsense_is_answered_with_field_value_and_remedy(uri: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        StorageConfig.parse(uri, **options)
    assert words in str(caught.value)
    assert caught.value.remedy


@pytest.mark.parametrize("values", [{}, {"path": "/x", "s3": S3}, {"path": "relative"}, {"path": "/x", "size": 1}])
def test_exactly_one_absolute_place(values: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        StorageConfig.load(values)


def test_secrets_are_hidden_but_for_the_one_who_asks() -> None:
    config = StorageConfig.load({"s3": S3})

    assert "hidden-secret" not in f"{config!r} {config} {config.model_dump_json()}"
    assert StorageConfig.load(config.reveal()) == config
    with pytest.raises(UsageError) as caught:
        StorageConfig.load({"s3": {**S3, "secret_key": ["hidden-secret"]}})
    assert "hidden-secret" not in str(caught.value)


def test_keys_come_from_the_environment_where_none_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY", raising=False)
    config = StorageConfig.parse("s3://snapshots").s3
    assert config is not None
    assert config.keys() is None
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    assert config.keys() == ("a", "b")
