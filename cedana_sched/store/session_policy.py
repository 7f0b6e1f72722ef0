"""What credentials of one namespace may do, as a session policy of AWS' STS. Pure.

A session policy only takes away: what the role itself may not, the session may not either. So it allows what the store
needs below the namespace's own folder, and names nothing else. Nothing of a bucket lies outside such folders that
credentials of a namespace need: what is tried, and by which the store's clock is read, is tried below the folder.

Listing unfinished uploads is left out: no condition narrows `s3:ListBucketMultipartUploads` to a prefix.
Source: Service Authorization Reference, "Actions, resources, and condition keys for Amazon S3".
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final

from cedana_sched.model.errors import UsageError
from cedana_sched.model.identity import validate_namespace
from cedana_sched.store import layout
from cedana_sched.store.backend import TRIALS

LONGEST_POLICY: Final = 2048
"""Characters that STS takes of `Policy` (AssumeRole)."""
_PATTERNS: Final = frozenset("*?$")
"""Characters that a policy reads as patterns or variables."""


def session_policy(bucket: str, prefix: str, namespace: str, *, partition: str = "aws") -> str:
    """What an agent needs that saves, continues and removes snapshots of the namespace, in JSON.

    Args:
        bucket: its name.
        prefix: what stands before all keys in it, without `/` at its ends; may be empty.
        namespace: as the store calls it; see `layout`.
        partition: of the ARNs, such as `aws-cn`.

    Raises:
        UsageError: the namespace is no name of one, or the prefix would be read as a pattern.
    """
    actions = ("GetObject", "PutObject", "DeleteObject", "AbortMultipartUpload")
    return _policy(bucket, prefix, namespace, partition, [(actions, ("*",))])


def collecting_policy(bucket: str, prefix: str, namespace: str, *, partition: str = "aws") -> str:
    """What a node needs that only collects the namespace's garbage; arguments and errors as of `session_policy`.

    It reads no memory and writes no snapshot: packs and page fingerprints it lists and removes, manifests it reads, so
    as to spare what they name. Data keys it cannot remove. Of the patterns, `c*` stands for `collector` and
    `condemned/*`, and `pa*` for `packs/*` and `pages/*`: each written out would be too long for STS.
    """
    objects = [
        (("GetObject", "PutObject", "DeleteObject"), ("c*", "references", f"{TRIALS}/*")),
        (("GetObject", "DeleteObject"), ("snapshots/*", "intents/*")),
        (("DeleteObject",), ("pa*",)),
        (("GetObject",), ("keys/*",)),
    ]
    return _policy(bucket, prefix, namespace, partition, objects)


def _policy(
    bucket: str, prefix: str, namespace: str, partition: str, objects: Iterable[tuple[tuple[str, ...], tuple[str, ...]]]
) -> str:
    """It allows to list the namespace's folder, and these actions on these patterns of keys below it."""
    validate_namespace(namespace)
    if _PATTERNS.intersection(prefix):
        raise UsageError("prefix", prefix, "would be read as a pattern", remedy="use no '*', '?' and '$' in it")
    folder = "/".join(part for part in (prefix, layout.namespace_folder(namespace)) if part)
    arn = f"arn:{partition}:s3:::{bucket}"
    policy = {
        "Version": "2012-10-17",
        "Statement": [
            *(
                {
                    "Effect": "Allow",
                    "Action": [f"s3:{action}" for action in actions],
                    "Resource": [f"{arn}/{folder}/{pattern}" for pattern in patterns],
                }
                for actions, patterns in objects
            ),
            {
                "Effect": "Allow",
                "Action": ["s3:ListBucket"],
                "Resource": [arn],
                "Condition": {"StringLike": {"s3:prefix": [f"{folder}/*"]}},
            },
            # where a role trusts whoever asks, a session could else begin another one, without this policy
            {"Effect": "Deny", "Action": ["sts:*"], "Resource": ["*"]},
        ],
    }
    text = json.dumps(policy, separators=(",", ":"))
    if len(text) > LONGEST_POLICY:
        raise UsageError("prefix", prefix, "is too long for a session policy", remedy="use a shorter one")
    return text
