"""Words of others that become parts of paths: the one place that says how such a word may look.

What stands in an object, an order or a manifest was written by somebody else. Before it names a file or a folder it is
matched here, by the store, the agent and its node's parts: it is one segment, leads nowhere, and is no hidden name.
"""

from __future__ import annotations

import re

from cedana_sched.model.errors import UsageError

LONGEST_SEGMENT = 240
"""Characters: a file's name has room for 255 bytes, and we put suffixes behind such a word."""
SEGMENT_PATTERN = r"[A-Za-z0-9_][A-Za-z0-9._:@+~=-]*"
RECORD_UID_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._:@+~=-]*"
"""Uids of records are made of uids of objects and of moments, by an adapter and the coordinator."""
POD_UID_PATTERN = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}"
"""The API server's are UUIDs; a kubelet's own, of static pods, are MD5 digests (`applyDefaults` in its pkg/kubelet/
config/common.go)."""

OBJECT_NAME_PATTERN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
"""Of pods and nodes (`IsDNS1123Subdomain` in apimachinery's util/validation)."""
LONGEST_OBJECT_NAME = 253

MANIFEST_DIGEST_PATTERN = r"[0-9a-f]{64}"
"""BLAKE3, 32 bytes in hexadecimal digits."""

_SEGMENT, _RECORD_UID, _POD_UID, _OBJECT_NAME, _MANIFEST_DIGEST = map(
    re.compile, (SEGMENT_PATTERN, RECORD_UID_PATTERN, POD_UID_PATTERN, OBJECT_NAME_PATTERN, MANIFEST_DIGEST_PATTERN)
)
_SHOWN = 60


def is_segment(word: str) -> bool:
    """Whether it can be a part of a path."""
    return len(word) <= LONGEST_SEGMENT and _SEGMENT.fullmatch(word) is not None


def is_record_uid(word: str) -> bool:
    """Whether a record can be called so."""
    return len(word) <= LONGEST_SEGMENT and _RECORD_UID.fullmatch(word) is not None


def is_pod_uid(word: str) -> bool:
    """Whether Kubernetes makes such uids of pods."""
    return _POD_UID.fullmatch(word) is not None


def is_object_name(word: str) -> bool:
    """Whether a pod can be called so."""
    return len(word) <= LONGEST_OBJECT_NAME and _OBJECT_NAME.fullmatch(word) is not None


def is_manifest_digest(word: str) -> bool:
    """Whether it can be the digest of a manifest."""
    return _MANIFEST_DIGEST.fullmatch(word) is not None


def segment(field: str, word: str) -> str:
    """Return `word` if it can be a part of a path.

    Raises:
        UsageError: naming `field` and what it begins with.
    """
    if not is_segment(word):
        remedy = f"use 1 to {LONGEST_SEGMENT} letters, digits and the characters '._:@+~=-'"
        raise UsageError(field, word[:_SHOWN], "cannot be a part of a path", remedy=remedy)
    return word
