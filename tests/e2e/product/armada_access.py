"""An Armada that is encrypted and wants to know who asks, and what proves it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.api.client import Object
from tests.cluster.armada.armada import Armada
from tests.cluster.armada.components import PERMISSIONS
from tests.cluster.armada.secured import PORT, secured_server
from tests.cluster.control_plane.certificates import Authority
from tests.e2e.product.rendering import NAMESPACE
from tests.servers.openid import OpenIdProvider

USER, GUEST = "cedana-sched", "guest"
SERVER_NAME = "armada.test"
_GROUP = "savers"
_PROVIDER_PORT = 9095
_TLS, _PROOF = "armada-tls", "armada-proof"
_KEY = "proof"


@dataclass(frozen=True)
class Access:
    """Where it is, and the certificates, passwords and tokens of a folder, right ones and wrong ones."""

    armada: Armada
    folder: Path
    provider: OpenIdProvider

    @classmethod
    @asynccontextmanager
    async def to(cls, armada: Armada, folder: Path) -> AsyncIterator[Access]:
        """Inside the block Armada has such a server as well."""
        authority = Authority(folder, "authority")
        Authority(folder, "another")
        authority.issue("client", user=USER)
        pair = authority.issue("armada", user="armada", names=[SERVER_NAME])
        place = armada.cluster.place
        here = str(place.link[1])
        claims = {"sub": USER, "groups": [_GROUP]}
        provider = OpenIdProvider(here, _PROVIDER_PORT, USER, "client-secret", claims)
        stranger = OpenIdProvider(here, _PROVIDER_PORT, USER, "", claims)
        proofs = {
            "password": "open sesame",
            "guest-password": "hello",
            "client-secret": "client-secret",
            "token": provider.token(),
            "expired": provider.token(seconds=-60),
            "forged": stranger.token(),
            "wrong": "wrong",
        }
        for name, proof in proofs.items():
            (folder / name).write_text(proof)
        auth = {
            "basicAuth": {
                "users": {
                    USER: {"password": proofs["password"], "groups": [_GROUP]},
                    GUEST: {"password": proofs["guest-password"], "groups": []},
                }
            },
            "openIdAuth": {"providerUrl": provider.issuer, "skipClientIDCheck": True, "groupsClaim": "groups"},
            "permissionGroupMapping": {permission: [_GROUP] for permission in PERMISSIONS},
        }
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(provider.serving())
            await stack.enter_async_context(secured_server(armada, pair, auth))
            yield cls(armada, folder, provider)

    @property
    def address(self) -> str:
        """Of the server, for clients on this host."""
        return f"{self.armada.cluster.place.address_from_host}:{PORT}"

    @property
    def tls(self) -> dict[str, Any]:
        """How the adapter trusts it."""
        return {"ca": str(self.folder / "authority.crt"), "serverName": SERVER_NAME}

    def auth(self, method: str, proof: str) -> dict[str, Any]:
        """How the adapter proves who it is; `proof` is a file of the folder."""
        file = str(self.folder / proof)
        said: dict[str, dict[str, Any]] = {
            "none": {},
            "basic": {"basic": {"username": USER, "passwordFile": file}},
            "guest": {"basic": {"username": GUEST, "passwordFile": file}},
            "token": {"token": {"file": file}},
            "oidc": {
                "oidc": {"providerUrl": self.provider.issuer, "clientId": USER, "clientSecretFile": file},
            },
        }
        return said[method]

    def secrets(self, proof: str) -> list[Object]:
        """What `values` names; `proof` is a file of the folder."""
        texts = {
            _TLS: {"ca.crt": (self.folder / "authority.crt").read_text()},
            f"{_PROOF}-{proof}": {_KEY: (self.folder / proof).read_text()},
        }
        return [
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": name, "namespace": NAMESPACE},
                "stringData": text,
            }
            for name, text in texts.items()
        ]

    def values(self, method: str, proof: str) -> Mapping[str, Any]:
        """What the product is told of it."""
        place = self.armada.cluster.place
        provider = {"providerUrl": f"http://{place.address}:{_PROVIDER_PORT}", "clientId": USER}
        who: dict[str, dict[str, Any]] = {
            "basic": {"basic": {"username": USER}},
            "token": {},
            "oidc": {"oidc": provider},
        }
        return {
            "url": f"{place.address}:{PORT}",
            "tls": {"enabled": True, "existingSecret": _TLS, "serverName": SERVER_NAME},
            "auth": {
                "method": method,
                "existingSecret": f"{_PROOF}-{proof}",
                "secretKey": _KEY,
                **who[method],
            },
        }

    @asynccontextmanager
    async def provider_for_pods(self) -> AsyncIterator[None]:
        """Inside the block pods find the OpenID provider where `values` says."""
        place = self.armada.cluster.place
        listen = f"TCP-LISTEN:{_PROVIDER_PORT},bind={place.address},fork,reuseaddr"
        target = f"TCP:{place.link[1]}:{_PROVIDER_PORT}"
        async with asyncio.TaskGroup() as group:
            forwarding = group.create_task(self.armada.machine.run("socat", listen, target))
            try:
                yield
            finally:
                forwarding.cancel()
