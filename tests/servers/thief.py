"""What a thief tries with credentials of one namespace on a key that is not of it, by S3's own requests."""

from __future__ import annotations

import functools
from collections.abc import Callable
from io import BytesIO
from typing import Any

import minio
import minio.commonconfig
import minio.error

from cedana_sched.store.credential_renewal import SessionCredentials

Attack = Callable[[minio.Minio, str, str, str], Any]
"""Told the bucket, the key, and the key of an object of the thief's own; raises, or returns what it got."""
ATTACKS: dict[str, Attack] = {
    "get": lambda thief, bucket, key, _: thief.get_object(bucket, key).read(),
    "get a part": lambda thief, bucket, key, _: thief.get_object(bucket, key, offset=1, length=2).read(),
    "look": lambda thief, bucket, key, _: thief.stat_object(bucket, key),
    "put": lambda thief, bucket, key, _: thief.put_object(bucket, key, BytesIO(b"forged"), 6),
    "put anew": lambda thief, bucket, key, _: thief.put_object(bucket, f"{key}-new", BytesIO(b"forged"), 6),
    "put in parts": lambda thief, bucket, key, _: thief._create_multipart_upload(bucket, key, {}),
    "delete": lambda thief, bucket, key, _: thief.remove_object(bucket, key),
    "copy out": lambda thief, bucket, key, own: thief.copy_object(
        bucket, f"{own}-stolen", minio.commonconfig.CopySource(bucket, key)
    ),
    "copy in": lambda thief, bucket, key, own: thief.copy_object(
        bucket, key, minio.commonconfig.CopySource(bucket, own)
    ),
    "list its folder": lambda thief, bucket, key, _: list(
        thief.list_objects(bucket, prefix=key.rpartition("/")[0] + "/", recursive=True)
    ),
    "read its tags": lambda thief, bucket, key, _: thief.get_object_tags(bucket, key),
}


def client_with(given: SessionCredentials, endpoint: str) -> minio.Minio:
    """A client of `http://host:port` with these credentials; without a token, those of a user."""
    return minio.Minio(
        endpoint.removeprefix("http://"),
        access_key=given.access_key,
        secret_key=given.secret_key,
        session_token=given.session_token or None,
        secure=False,
        region="us-east-1",
    )


def is_refused(attack: Callable[[], Any]) -> bool:
    """Whether the store denies access; another error is no refusal."""
    try:
        attack()
    except minio.error.S3Error as error:
        return error.code == "AccessDenied"
    return False


def not_refused(thief: minio.Minio, bucket: str, key: str, own: str) -> set[str]:
    """The attacks on a key that the store does not deny."""
    calls = {name: functools.partial(attack, thief, bucket, key, own) for name, attack in ATTACKS.items()}
    return {name for name, call in calls.items() if not is_refused(call)}
