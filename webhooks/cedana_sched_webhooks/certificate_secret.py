"""The Secret in which replicas share the certificates of their own authority."""

from __future__ import annotations

import base64
import binascii
from typing import Final

from cedana_sched.kube.client import Object
from cedana_sched.kube.objects import Secret
from cedana_sched_webhooks.certificates import Issued, UnreadableCertificatesError

_KEYS: Final = {"authorities": "ca.crt", "authority_key": "ca.key", "certificate": "tls.crt", "key": "tls.key"}


def issued_in(secret: Secret) -> Issued | None:
    """Decode the certificates of the Secret; None if a value is empty.

    Raises:
        UnreadableCertificatesError: a value is not base64.
    """
    if not all(secret.data.get(key) for key in _KEYS.values()):
        return None
    try:
        return Issued(**{field: base64.b64decode(secret.data[key], validate=True) for field, key in _KEYS.items()})
    except binascii.Error as error:
        remedy = f"delete the Secret {secret.metadata.name}: it is made anew"
        raise UnreadableCertificatesError(f"the Secret cannot be read: {error}", remedy=remedy) from error


def data_of(issued: Issued) -> Object:
    """Encode the certificates for a Secret's `data`."""
    return {key: base64.b64encode(getattr(issued, field)).decode() for field, key in _KEYS.items()}
