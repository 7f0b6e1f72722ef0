"""Names of our objects: a word that people recognise, and a digest of the record's uid that makes it unique."""

from __future__ import annotations

import hashlib
import re

LONGEST = 63
"""So that a name can be a label's value as well."""
UID_DIGITS = 8


def checkpoint_name(identity_id: str, index: int, uid: str) -> str:
    """Of the Checkpoint with this uid, which saves this identity."""
    return _name(f"{identity_id}-{index}", uid)


def restore_name(pod: str, uid: str) -> str:
    """Of the Restore with this uid, which brings this pod back."""
    return _name(pod, uid)


def hold_name(uid: str) -> str:
    """Of the PreemptionHold of this signal."""
    return _name("hold", uid)


def derived_id(owner: str, owner_uid: str, *, room: int = 0) -> str:
    """The id of pods that name none, after who controls them: another one of its name never continues from theirs.

    Args:
        owner: its name.
        owner_uid: its uid.
        room: characters that will be put behind the id.
    """
    digits = owner_uid[:UID_DIGITS]
    length = max(LONGEST - room - len(digits) - 1, 1)
    return f"{owner[:length].rstrip('-.')}-{digits}"


def _name(word: str, uid: str) -> str:
    digest = hashlib.sha256(uid.encode()).hexdigest()[:12]
    plain = re.sub(r"[^a-z0-9]+", "-", word.lower()).strip("-")[: LONGEST - len(digest) - 1].rstrip("-")
    return f"{plain}-{digest}" if plain else digest
