"""Creates the Secret with the key that seals snapshots, if absent; losing that key loses every snapshot.

So the Secret is no part of the Helm release: each rendering would generate another key, and a rollback would restore an
older one. Only an admin changes or removes it once it exists.
"""

from __future__ import annotations

import base64
from functools import partial

import structlog

from cedana_sched.kube.builtin_kinds import PartialObject
from cedana_sched.kube.client import Api
from cedana_sched.kube.errors import AlreadyExistsError, ApiError
from cedana_sched.kube.resources import SECRETS
from cedana_sched.retrying import retry
from cedana_sched.store.sealing import key_file

log = structlog.get_logger(__name__)

KEYS = "keys"
"""Key of the Secret's `data`."""


async def ensure_sealing_secret(api: Api, namespace: str, name: str) -> None:
    """Return once the Secret exists, whichever replica created it. RBAC allows only its creation, not reading it."""
    await retry(f"creation of the Secret {name}", partial(_create, api, namespace, name), ApiError)


async def _create(api: Api, namespace: str, name: str) -> None:
    key_id, text = key_file.generate_key_text()
    # no release label: GitOps tools prune objects that have one and are in no manifest
    labels = {"app.kubernetes.io/part-of": "cedana-sched"}
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    data = {KEYS: base64.b64encode(text.encode()).decode()}
    try:
        await api.create(SECRETS, {"metadata": metadata, "type": "Opaque", "data": data}, into=PartialObject)
    except AlreadyExistsError:
        return
    log.info("key made that seals snapshots: keep a copy elsewhere", secret=name, key=key_id)
