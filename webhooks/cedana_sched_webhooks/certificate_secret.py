"""The Secret in which replicas share the certificates of their own authority."""

from __future__ import annotations

import base64
import binascii
from typing import Final

from cedana_sched.kube.builtin_kinds import Secret
from cedana_sched.kube.client import Object
from cedana_sched_webhooks.certificates import IssuedCertificates, UnreadableCertificatesError

_KEYS: Final = {"authorities": "ca.crt", "authority_key": "ca.key", "certificate": "tls.crt", "key": "tls.key"}


def decode_secret(secret: Secret) -> IssuedCertificates | None:
    """Decode the certificates of the Secret; None if a value is empty.

    Raises:
        UnreadableCertificatesError: a value is not base64.
    """
    if not all(secret.data.get(key) for key in _KEYS.values()):
        return None
    try:
        return IssuedCertificates(
            **{field: base64.b64decode(secret.data[key], validate=True) for field, key in _KEYS.items()}
        )
    except binascii.Error as error:
        remedy = f"delete the Secret {secret.metadata.name}: it is made anew"
        raise UnreadableCertificatesError(f"the Secret cannot be read: {error}", remedy=remedy) from error


def encode_secret_data(issued: IssuedCertificates) -> Object:
    """Encode the certificates for a Secret's `data`."""
    return {key: base64.b64encode(getattr(issued, field)).decode() for field, key in _KEYS.items()}
