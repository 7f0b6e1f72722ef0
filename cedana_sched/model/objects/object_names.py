"""Object names: a readable part, and a digest of the record's uid for uniqueness."""

from __future__ import annotations

import hashlib
import re

LONGEST = 63
"""Limit of a label value, so that a name is valid as one."""
UID_DIGITS = 8


def checkpoint_name(identity_id: str, index: int, uid: str) -> str:
    """Return the name of the Checkpoint with this uid and identity."""
    return _name_with_digest(f"{identity_id}-{index}", uid)


def restore_name(pod: str, uid: str) -> str:
    """Return the name of the Restore with this uid, for this pod."""
    return _name_with_digest(pod, uid)


def hold_name(uid: str) -> str:
    """Return the name of the PreemptionHold of this signal."""
    return _name_with_digest("hold", uid)


def derived_id(owner: str, owner_uid: str, *, room: int = 0) -> str:
    """Derive the id of pods without one from their controller; a recreated controller of that name has another id.

    Args:
        owner: the controller's name.
        owner_uid: the controller's uid.
        room: characters reserved for a suffix.
    """
    digits = owner_uid[:UID_DIGITS]
    length = max(LONGEST - room - len(digits) - 1, 1)
    return f"{owner[:length].rstrip('-.')}-{digits}"


def _name_with_digest(word: str, uid: str) -> str:
    digest = hashlib.sha256(uid.encode()).hexdigest()[:12]
    plain = re.sub(r"[^a-z0-9]+", "-", word.lower()).strip("-")[: LONGEST - len(digest) - 1].rstrip("-")
    return f"{plain}-{digest}" if plain else digest
