"""`CheckpointStorage`: where snapshots go, and whether that place can be used."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from cedana_sched.model.objects.base import Condition, MicroTime, Reported, Written


class SecretReference(Written):
    """A Secret in the namespace of our own components, with the keys `accessKey` and `secretKey`."""

    name: str


class S3Storage(Written):
    """A prefix of a bucket of an S3-compatible store."""

    endpoint: str | None = None
    """`https://host[:port]`; AWS itself where it is absent."""
    bucket: str
    prefix: str = ""
    region: str = "us-east-1"
    allow_http: bool = False
    """Permit an endpoint without TLS: memory then crosses the network in the clear."""
    secret: SecretReference | None = None
    """Keys; the nodes' own role where it is absent."""


class PosixStorage(Written):
    """A folder that all nodes see under the same path: NFS, Lustre, CephFS."""

    path: Annotated[str, Field(pattern="^/")]


class CheckpointStorageSpec(Written):
    """Exactly one of the two."""

    s3: S3Storage | None = None
    posix: PosixStorage | None = None


class CheckpointStorageStatus(Reported):
    """Whether it can be used, and when that was last tried."""

    last_probe_time: MicroTime | None = None
    conditions: tuple[Condition, ...] = ()
