"""Makes the Secret with the key that seals snapshots, where there is none; whoever loses that key loses every snapshot.

So it is no part of the release: a rendering would make another key each time, and a rollback would put an older one in
its place. Nobody but an admin changes it, or removes it, once it is there.
"""

from __future__ import annotations

import base64
from functools import partial

import structlog

from cedana_sched.kube.client import Api
from cedana_sched.kube.errors import AlreadyExistsError
from cedana_sched.kube.objects import PartialObject
from cedana_sched.kube.resources import SECRETS
from cedana_sched.kube.retrying import until_answered
from cedana_sched.store.sealing import key_file

log = structlog.get_logger(__name__)

KEYS = "keys"
"""Under which name they stand in the Secret."""


async def make_sealing_secret(api: Api, namespace: str, name: str) -> None:
    """Return once it is there, whoever has made it. It is not read: we may only create it."""
    await until_answered(f"creation of the Secret {name}", partial(_create, api, namespace, name))


async def _create(api: Api, namespace: str, name: str) -> None:
    key_id, text = key_file.new_text()
    # no label of the release: what shows one and is in no manifest, GitOps tools prune
    labels = {"app.kubernetes.io/part-of": "cedana-sched"}
    metadata = {"name": name, "namespace": namespace, "labels": labels}
    data = {KEYS: base64.b64encode(text.encode()).decode()}
    try:
        await api.create(SECRETS, {"metadata": metadata, "type": "Opaque", "data": data}, into=PartialObject)
    except AlreadyExistsError:
        return
    log.info("key made that seals snapshots: keep a copy elsewhere", secret=name, key=key_id)
