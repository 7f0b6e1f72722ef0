"""Checks of the stores: the coordinator's conditions, and public access to the bucket.

The doctor has no credentials of the store, so it tests public access by an anonymous list request.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, urlunsplit

import aiohttp
from pydantic import ValidationError

from cedana_sched.cli.cluster_reader import MOST_NAMES, ClusterReader
from cedana_sched.cli.doctor.check_runner import Finding, Level
from cedana_sched.kube.errors import AbsentError
from cedana_sched.kube.own_kinds.cached_storage import CachedStorage
from cedana_sched.kube.resources import CHECKPOINT_STORAGES
from cedana_sched.model.objects.base import parse_stored_object
from cedana_sched.model.objects.checkpoint_storage import CheckpointStorageSpec, S3Storage

CHECK: Final = "storage"
_PATIENCE: Final = aiohttp.ClientTimeout(total=5)
_LARGEST_ANSWER: Final = 64 << 10
_LISTING: Final = b"<ListBucketResult"
_LONGEST_REASON: Final = 200
"""Maximum characters of an error in a finding."""


async def examine(reads: ClusterReader) -> list[Finding]:
    """Check the conditions of each CheckpointStorage, and whether its bucket is public."""
    try:
        there = await reads.read_objects(CHECKPOINT_STORAGES, into=CachedStorage)
    except AbsentError:
        there = ()
    if not there:
        return [
            Finding(CHECK, Level.FAIL, "there is no CheckpointStorage", "install the chart, or upgrade the release")
        ]
    found: list[Finding] = []
    for one in there[:MOST_NAMES]:
        found.append(_check_ready_condition(one))
        if (s3 := _s3_of(one)) is not None:
            found += _check_scoped_condition(one)
            found += await _check_bucket(one.metadata.name, s3)
    if len(there) > MOST_NAMES:
        message = f"{len(there) - MOST_NAMES} more CheckpointStorages were not looked at"
        found.append(Finding(CHECK, Level.WARN, message, "kubectl get cstore"))
    return found


def _s3_of(one: CachedStorage) -> S3Storage | None:
    """Return its bucket; None if it has none, or its spec is not valid, which the coordinator's condition reports."""
    try:
        return parse_stored_object(CheckpointStorageSpec, one.spec).s3
    except ValidationError:
        return None


def _check_ready_condition(one: CachedStorage) -> Finding:
    """Return the storage's Ready condition; the coordinator probes buckets, while only nodes can access a folder."""
    name = one.metadata.name
    ready = next((each for each in one.status.conditions if each.type == "Ready"), None)
    if ready is None:
        message = f"{name}: no coordinator has tried it yet"
        return Finding(CHECK, Level.WARN, message, "see whether one leads: kubectl get leases")
    if ready.status == "False":
        return Finding(CHECK, Level.FAIL, f"{name} cannot be used: {ready.message}", f"kubectl describe cstore {name}")
    return Finding(CHECK, Level.OK, f"{name}: {ready.message}")


def _check_scoped_condition(one: CachedStorage) -> list[Finding]:
    """Return the storage's Scoped condition: whether each node can access all snapshots; empty if not set yet."""
    name = one.metadata.name
    scoped = next((each for each in one.status.conditions if each.type == "Scoped"), None)
    if scoped is None:
        return []
    if scoped.status == "True":
        return [Finding(CHECK, Level.OK, f"{name}: {scoped.message}")]
    level = Level.WARN if scoped.reason == "NodesHaveBucketKeys" else Level.FAIL
    return [Finding(CHECK, level, f"{name}: {scoped.message}", "docs/security.md#keys-of-one-namespace")]


async def _check_bucket(name: str, s3: S3Storage) -> list[Finding]:
    found: list[Finding] = []
    if s3.allow_http and (s3.endpoint or "").startswith("http:"):
        message = f"{name}: {s3.endpoint} has no TLS, and memory crosses the network as the store gets it"
        found.append(Finding(CHECK, Level.WARN, message, "give it a certificate, and unset storage.s3.allowHttp"))
    try:
        is_public = await _is_publicly_listable(s3)
    except (aiohttp.ClientError, OSError, ValueError) as error:  # a timeout is an OSError
        reason = str(error)[:_LONGEST_REASON] or type(error).__name__
        message = f"{name}: whether bucket {s3.bucket} is public is not known here: {reason}"
        found.append(Finding(CHECK, Level.WARN, message, "run it where the bucket's endpoint can be reached"))
        return found
    if is_public:
        message = f"{name}: bucket {s3.bucket} can be listed without a key, and its objects may be readable"
        found.append(Finding(CHECK, Level.FAIL, message, "forbid public access to the bucket"))
    else:
        found.append(Finding(CHECK, Level.OK, f"{name}: bucket {s3.bucket} cannot be listed without a key"))
    return found


async def _is_publicly_listable(s3: S3Storage) -> bool:
    """Whether an anonymous request can list the bucket's prefix.

    Raises:
        aiohttp.ClientError, OSError: the endpoint is not reachable.
        ValueError: the response is not an S3 server's, or there is no such endpoint.
    """
    query = {"list-type": "2", "max-keys": "1", "prefix": s3.prefix}
    url = f"{(s3.endpoint or _aws_endpoint(s3.region)).rstrip('/')}/{quote(s3.bucket, safe='')}"
    async with (
        aiohttp.ClientSession(timeout=_PATIENCE) as session,
        session.get(url, params=query, allow_redirects=False) as answer,
    ):
        if answer.status in {401, 403}:
            return False
        body = bytearray()
        async for chunk in answer.content.iter_any():
            body += chunk
            if answer.status == 200 and _LISTING in body:
                return True
            if len(body) > _LARGEST_ANSWER:
                break
        raise ValueError(f"{url} answers {answer.status}, and no list")


def _aws_endpoint(region: str) -> str:
    """Return AWS's endpoint of a region (docs.aws.amazon.com, "Amazon S3 endpoints"); China has its own domain."""
    domain = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    return urlunsplit(("https", f"s3.{region}.{domain}", "", "", ""))
