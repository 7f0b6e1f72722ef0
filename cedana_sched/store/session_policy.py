"""Session policies of AWS STS for credentials of one namespace. Pure.

A session policy only restricts: the session cannot do what the role may not. So it allows what the store needs below
the namespace's own folder, and names nothing else. The store needs nothing outside that folder: trials, and reads of
the store's clock, happen below it.

Listing unfinished uploads is not included: no condition narrows `s3:ListBucketMultipartUploads` to a prefix. Source:
Service Authorization Reference, "Actions, resources, and condition keys for Amazon S3".
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
"""Characters that STS accepts in `Policy` (AssumeRole)."""
_PATTERNS: Final = frozenset("*?$")
"""Characters that a policy interprets as patterns or variables."""


def session_policy(bucket: str, prefix: str, namespace: str, *, partition: str = "aws") -> str:
    """Return the policy, in JSON, of an agent that saves, restores and removes snapshots of the namespace.

    Args:
        bucket: its name.
        prefix: of all keys in it, without `/` at its ends; may be empty.
        namespace: the name in the store; see `layout`.
        partition: of the ARNs, such as `aws-cn`.

    Raises:
        UsageError: the namespace's name is invalid, or the prefix has characters of patterns.
    """
    actions = ("GetObject", "PutObject", "DeleteObject", "AbortMultipartUpload")
    return _namespace_policy(bucket, prefix, namespace, partition, [(actions, ("*",))])


def garbage_collection_policy(bucket: str, prefix: str, namespace: str, *, partition: str = "aws") -> str:
    """Return the policy of a node that only collects the namespace's garbage; see `session_policy`.

    The node reads no memory and writes no snapshot: it lists and deletes packs and page fingerprints, and reads
    manifests, to spare what they name. The node cannot delete data keys. Of the patterns, `c*` stands for `collector`
    and `condemned/*`, and `pa*` for `packs/*` and `pages/*`: written out, the policy would be too long for STS.
    """
    objects = [
        (("GetObject", "PutObject", "DeleteObject"), ("c*", "references", f"{TRIALS}/*")),
        (("GetObject", "DeleteObject"), ("snapshots/*", "intents/*")),
        (("DeleteObject",), ("pa*",)),
        (("GetObject",), ("keys/*",)),
    ]
    return _namespace_policy(bucket, prefix, namespace, partition, objects)


def _namespace_policy(
    bucket: str, prefix: str, namespace: str, partition: str, objects: Iterable[tuple[tuple[str, ...], tuple[str, ...]]]
) -> str:
    """Return a policy that allows listing the namespace's folder, and these actions on these key patterns below it."""
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
            # if the role trusts any principal, a session could otherwise start another one without this policy
            {"Effect": "Deny", "Action": ["sts:*"], "Resource": ["*"]},
        ],
    }
    text = json.dumps(policy, separators=(",", ":"))
    if len(text) > LONGEST_POLICY:
        raise UsageError("prefix", prefix, "is too long for a session policy", remedy="use a shorter one")
    return text
