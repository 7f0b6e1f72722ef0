"""An OpenID provider: it signs tokens, and gives them to one client that names itself and its secret."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from aiohttp import web
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

_KEY_ID: Final = "1"
_SECONDS: Final = 3600


class OpenIdProvider:
    """Listens on one address of this host.

    Args:
        host: address.
        port: of it.
        client: the only one.
        secret: of the client.
        claims: what its tokens say beside what all tokens say.
    """

    def __init__(self, host: str, port: int, client: str, secret: str, claims: Mapping[str, Any]) -> None:
        self.issuer = f"http://{host}:{port}"
        self._host = host
        self._port = port
        self._client = f"Basic {base64.b64encode(f'{client}:{secret}'.encode()).decode()}"
        self._claims = claims
        self._key = rsa.generate_private_key(public_exponent=65537, key_size=2048)

    def token(self, *, seconds: float = _SECONDS) -> str:
        """One that is valid from now on for so long."""
        now = int(time.time())
        claims = {"iss": self.issuer, "iat": now, "exp": int(now + seconds), **self._claims}
        signed = ".".join(_encoded(json.dumps(part).encode()) for part in ({"alg": "RS256", "kid": _KEY_ID}, claims))
        signature = self._key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{signed}.{_encoded(signature)}"

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Answer inside the block."""
        app = web.Application()
        app.add_routes([
            web.get("/.well-known/openid-configuration", self._about),
            web.get("/keys", self._keys),
            web.post("/token", self._give),
        ])  # fmt: skip
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            await web.TCPSite(runner, self._host, self._port).start()
            yield
        finally:
            await runner.cleanup()

    async def _about(self, request: web.Request) -> web.Response:
        here = f"http://{request.host}"  # which may lead here from elsewhere
        return web.json_response({
            "issuer": self.issuer,
            "authorization_endpoint": f"{here}/authorize",
            "token_endpoint": f"{here}/token",
            "jwks_uri": f"{here}/keys",
            "id_token_signing_alg_values_supported": ["RS256"],
        })  # fmt: skip

    async def _keys(self, request: web.Request) -> web.Response:
        del request
        public = self._key.public_key().public_numbers()
        values = {name: _encoded(_bytes(value)) for name, value in (("n", public.n), ("e", public.e))}
        return web.json_response({"keys": [{"kty": "RSA", "alg": "RS256", "use": "sig", "kid": _KEY_ID, **values}]})

    async def _give(self, request: web.Request) -> web.Response:
        form = await request.post()
        if form.get("grant_type") != "client_credentials":
            return web.json_response({"error": "unsupported_grant_type"}, status=400)
        if request.headers.get("Authorization") != self._client:
            return web.json_response({"error": "invalid_client"}, status=401)
        return web.json_response({"access_token": self.token(), "token_type": "Bearer", "expires_in": _SECONDS})


def _bytes(number: int) -> bytes:
    return number.to_bytes((number.bit_length() + 7) // 8, "big")


def _encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
