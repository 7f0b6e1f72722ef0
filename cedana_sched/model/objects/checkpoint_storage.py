"""`CheckpointStorage`: the location of snapshots, and whether it is usable."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from cedana_sched.model.objects.base import Condition, MicroTime, ReportedStatus, UserWritten


class SecretReference(UserWritten):
    """A Secret in the namespace of our components, with the keys `accessKey` and `secretKey`."""

    name: str


class S3Storage(UserWritten):
    """A prefix in a bucket of an S3-compatible store."""

    endpoint: str | None = None
    """`https://host[:port]`; AWS if absent."""
    bucket: str
    prefix: str = ""
    region: str = "us-east-1"
    allow_http: bool = False
    """Allow an endpoint without TLS: memory contents then cross the network unencrypted."""
    secret: SecretReference | None = None
    """Access keys; absent, the node's IAM role applies."""


class PosixStorage(UserWritten):
    """A folder mounted at the same path on all nodes: NFS, Lustre, CephFS."""

    path: Annotated[str, Field(pattern="^/")]


class CheckpointStorageSpec(UserWritten):
    """Exactly one of `s3` and `posix`."""

    s3: S3Storage | None = None
    posix: PosixStorage | None = None


class CheckpointStorageStatus(ReportedStatus):
    """Whether the storage is usable, and when it was last probed."""

    last_probe_time: MicroTime | None = None
    conditions: tuple[Condition, ...] = ()
