"""Validation of untrusted words before they become part of a path.

Objects, orders and manifests are written by other components. Store, agent and node components validate each word here
before it names a file or folder: one segment, no traversal, not hidden.
"""

from __future__ import annotations

import re

from cedana_sched.model.errors import UsageError

LONGEST_SEGMENT = 240
"""Characters: a file name has room for 255 bytes, minus our suffixes."""
SEGMENT_PATTERN = r"[A-Za-z0-9_][A-Za-z0-9._:@+~=-]*"
RECORD_UID_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._:@+~=-]*"
"""Record uids consist of object uids and timestamps, composed by an adapter and the coordinator."""
POD_UID_PATTERN = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}"
"""The API server's uids are UUIDs; a kubelet's, of static pods, are MD5 digests (`applyDefaults` in its pkg/kubelet/
config/common.go)."""

OBJECT_NAME_PATTERN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
"""Names of pods and nodes (`IsDNS1123Subdomain` in apimachinery's util/validation)."""
LONGEST_OBJECT_NAME = 253

MANIFEST_DIGEST_PATTERN = r"[0-9a-f]{64}"
"""BLAKE3, 32 bytes in hexadecimal digits."""

_SEGMENT, _RECORD_UID, _POD_UID, _OBJECT_NAME, _MANIFEST_DIGEST = map(
    re.compile, (SEGMENT_PATTERN, RECORD_UID_PATTERN, POD_UID_PATTERN, OBJECT_NAME_PATTERN, MANIFEST_DIGEST_PATTERN)
)
_SHOWN = 60


def is_segment(word: str) -> bool:
    """Return whether the word is valid as a path segment."""
    return len(word) <= LONGEST_SEGMENT and _SEGMENT.fullmatch(word) is not None


def is_record_uid(word: str) -> bool:
    """Return whether the word is valid as a record uid."""
    return len(word) <= LONGEST_SEGMENT and _RECORD_UID.fullmatch(word) is not None


def is_pod_uid(word: str) -> bool:
    """Return whether the word has the form of a Kubernetes pod uid."""
    return _POD_UID.fullmatch(word) is not None


def is_object_name(word: str) -> bool:
    """Return whether the word is valid as a pod or node name."""
    return len(word) <= LONGEST_OBJECT_NAME and _OBJECT_NAME.fullmatch(word) is not None


def is_manifest_digest(word: str) -> bool:
    """Return whether the word has the form of a manifest digest."""
    return _MANIFEST_DIGEST.fullmatch(word) is not None


def validate_segment(field: str, word: str) -> str:
    """Return `word` if valid as a path segment.

    Raises:
        UsageError: naming `field` and the beginning of the word.
    """
    if not is_segment(word):
        remedy = f"use 1 to {LONGEST_SEGMENT} letters, digits and the characters '._:@+~=-'"
        raise UsageError(field, word[:_SHOWN], "cannot be a part of a path", remedy=remedy)
    return word
