"""Where a store is: what people write is read, and nonsense is answered with field, value and remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cedana_sched.model.errors import UsageError
from cedana_sched.store.snapshot_store import SnapshotStore
from cedana_sched.store.storage_config import StorageConfig

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
    assert StorageConfig.load(config.dump_with_secrets()) == config
    with pytest.raises(UsageError) as caught:
        StorageConfig.load({"s3": {**S3, "secret_key": ["hidden-secret"]}})
    assert "hidden-secret" not in str(caught.value)


def test_keys_come_from_the_environment_where_none_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY", raising=False)
    config = StorageConfig.parse("s3://snapshots").s3
    assert config is not None
    assert config.bucket_keys() is None
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    assert config.bucket_keys() == ("a", "b")


WORDS = st.text(max_size=6) | st.sampled_from(
    ["x", "https://[", "https://h:99999", "https://h:0", "https://h:abc", "https://h:", "https://\0", "https://é",
     "https://%zz", "https://u:p@h", "https://h?x", "https://h#x", "https://h:٣", "https://[::1]:7070", "https://[::zz]",
     "https://a b",
     "https://" + "a" * 300, "\n", "../x", "a" * 300, "lab/x", "us-east-1", "a\x7f"]
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(["endpoint", "bucket", "prefix", "region"]), WORDS))
@example({"endpoint": "https://h:99999"})
@example({"endpoint": "https://%zz"})
@example({"region": "\n"})
@example({"prefix": "\n"})
@settings(deadline=None, max_examples=300)
def test_any_words_are_refused_in_words_or_lead_somewhere(words: dict[str, str]) -> None:
    """What is taken is a URL to whoever asks: an endpoint that is none ended the process."""
    try:
        config = StorageConfig.load({"s3": S3 | words})
    except UsageError:
        return
    assert config.s3 is not None
    SnapshotStore.open(config)
    parts = urlsplit(config.s3.endpoint or "")
    assert parts.netloc.isascii()
    assert parts.port is None or 0 < parts.port < 1 << 16
    assert parts.username is None
    assert config.s3.region.isprintable()
    assert config.s3.prefix.isprintable()


@pytest.mark.parametrize("host", ["s3", "s3.example/", "S3:7070", "minio_1:9000", "[2001:db8::1]", "[2001:DB8::1]:7070",
                                  "127.0.0.1:443/"])  # fmt: skip
def test_hosts_with_and_without_a_port_are_endpoints(host: str) -> None:
    config = StorageConfig.load({"s3": S3 | {"endpoint": f"https://{host}"}})
    assert config.s3 is not None
    SnapshotStore.open(config)


@pytest.mark.parametrize("field", ["endpoint", "region", "prefix"])
def test_what_no_request_could_hold_is_named(field: str) -> None:
    word = {"endpoint": "https://h:99999", "region": "a\nb", "prefix": "a\nb"}[field]
    with pytest.raises(UsageError, match=field if field != "endpoint" else "s3"):
        StorageConfig.load({"s3": S3 | {field: word}})
