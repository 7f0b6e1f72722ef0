"""Who we are to Armada: every way to say it, over a channel of each kind."""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import ipaddress
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from cedana_sched.model.errors import UsageError
from cedana_sched_armada.armada_client import ArmadaClient
from cedana_sched_armada.credentials import ClientCredentials
from cedana_sched_armada.errors import ArmadaDeniedError, ArmadaUnavailableError, ArmadaUntrustedError
from cedana_sched_armada.settings import ArmadaSettings, OidcSettings
from tests.unit.adapters.armada.armada_builders import World


async def _ask(world: World, auth: dict[str, Any] | None = None, tls: dict[str, Any] | None = None) -> str:
    """Ask Armada something; what it was told about who asks."""
    settings = ArmadaSettings.read({"url": world.address, "auth": auth or {}, "tls": tls})
    async with ArmadaClient.open(settings) as server:
        await server.job_details(["01job"])
    return world.armada.authorizations[-1]


async def test_nobody(world: World) -> None:
    assert await _ask(world) == ""


async def test_name_and_password(world: World, tmp_path: Path) -> None:
    password = tmp_path / "password"
    password.write_text("open sesame\n")
    said = await _ask(world, {"basic": {"username": "cedana", "passwordFile": str(password)}})
    assert said == f"basic {base64.b64encode(b'cedana:open sesame').decode()}"


async def test_a_token_is_read_anew_for_each_call(world: World, tmp_path: Path) -> None:
    token = tmp_path / "token"
    settings = ArmadaSettings.read({"url": world.address, "auth": {"token": {"file": str(token)}}})
    async with ArmadaClient.open(settings) as server:
        for value in ("first", "second"):
            token.write_text(value)
            await server.job_details(["01job"])
        token.unlink()
        with pytest.raises(UsageError, match=r"armada\.auth\.token\.file: .*cannot be read"):
            await server.job_details(["01job"])
    assert world.armada.authorizations == ["Bearer first", "Bearer second"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"\n", "is empty"), (b"\xff\xfe", "is no text"), (b"two\nlines", "holds no token"), ("ü".encode(), "holds no")],
)
async def test_a_file_that_holds_no_token_is_named(world: World, tmp_path: Path, content: bytes, problem: str) -> None:
    token = tmp_path / "token"
    token.write_bytes(content)
    with pytest.raises(UsageError, match=rf"armada\.auth\.token\.file: .*{problem}"):
        await _ask(world, {"token": {"file": str(token)}})


@asynccontextmanager
async def _provider(answers: list[web.Response]) -> AsyncIterator[tuple[str, list[str]]]:
    """An OpenID provider that gives these answers; its URL, and who has asked."""
    asked: list[str] = []

    async def about(request: web.Request) -> web.Response:
        return web.json_response({"token_endpoint": f"http://{request.host}/token"})

    async def token(request: web.Request) -> web.Response:
        form = await request.post()
        asked.append(" ".join((request.headers["Authorization"], str(form["grant_type"]), str(form["scope"]))))
        return answers.pop(0)

    app = web.Application()
    app.add_routes([web.get("/realm/.well-known/openid-configuration", about), web.post("/token", token)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "localhost", 0)
    await site.start()
    try:
        yield f"http://localhost:{runner.addresses[0][1]}/realm", asked
    finally:
        await runner.cleanup()


async def test_client_credentials_are_kept_until_they_expire_or_are_rejected(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s3cret")
    answers = [web.json_response({"access_token": name, "expires_in": 300}) for name in ("one", "two", "three")]
    now = 0.0
    async with _provider(answers) as (url, asked):
        settings = OidcSettings(provider_url=url, client_id="cedana", client_secret_file=secret, scopes=("a", "b"))
        credentials = ClientCredentials(settings, clock=lambda: now)
        said = [(await credentials.metadata())[0][1] for _ in range(2)]
        now = 271.0
        said.append((await credentials.metadata())[0][1])
        credentials.on_rejected()
        said.append((await credentials.metadata())[0][1])
    assert said == ["Bearer one", "Bearer one", "Bearer two", "Bearer three"]
    basic = base64.b64encode(b"cedana:s3cret").decode()
    assert asked == [f"Basic {basic} client_credentials a b"] * 3


async def test_many_who_need_a_token_at_once_ask_for_one(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s3cret")
    async with _provider([web.json_response({"access_token": "one", "expires_in": 300})]) as (url, asked):
        settings = OidcSettings(provider_url=url, client_id="cedana", client_secret_file=secret)
        credentials = ClientCredentials(settings)
        said = await asyncio.gather(*(credentials.metadata() for _ in range(20)))
    assert said == [(("authorization", "Bearer one"),)] * 20
    assert len(asked) == 1


@pytest.mark.parametrize(("status", "error"), [(401, ArmadaDeniedError), (503, ArmadaUnavailableError)])
async def test_a_provider_that_says_no(tmp_path: Path, status: int, error: type[Exception]) -> None:
    secret = tmp_path / "secret"
    secret.write_text("wrong")
    async with _provider([web.Response(status=status, text="no")]) as (url, _):
        settings = OidcSettings(provider_url=url, client_id="cedana", client_secret_file=secret)
        with pytest.raises(error):
            await ClientCredentials(settings).metadata()


def _signed(folder: Path, name: str, authority: tuple[Any, Any] | None) -> tuple[Any, Any]:
    """A key and its certificate as PEM files, signed by `authority` or by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(tz=dt.UTC)
    names = [x509.DNSName(name), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(authority[1].subject if authority else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=authority is None, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(authority[0] if authority else key, hashes.SHA256())
    )
    private = serialization.PrivateFormat.PKCS8
    plain = serialization.NoEncryption()
    (folder / f"{name}.key").write_bytes(key.private_bytes(serialization.Encoding.PEM, private, plain))
    (folder / f"{name}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return key, certificate


async def test_tls_with_certificates_on_both_sides(world: World, tmp_path: Path) -> None:
    authority = _signed(tmp_path, "authority", None)
    for name in ("armada.lab", "cedana"):
        _signed(tmp_path, name, authority)
    ca = (tmp_path / "authority.crt").read_bytes()
    own = [((tmp_path / "armada.lab.key").read_bytes(), (tmp_path / "armada.lab.crt").read_bytes())]
    credentials = grpc.ssl_server_credentials(own, root_certificates=ca, require_client_auth=True)
    ours = {"ca": str(tmp_path / "authority.crt"), "serverName": "armada.lab"}
    certificate = {"certificate": str(tmp_path / "cedana.crt"), "key": str(tmp_path / "cedana.key")}
    token = tmp_path / "token"
    token.write_text("word")
    async with world.armada.serving(credentials) as world.address:
        assert await _ask(world, {"token": {"file": str(token)}}, {**ours, **certificate}) == "Bearer word"
        with pytest.raises(ArmadaUnavailableError):
            await _ask(world, tls=ours)
        with pytest.raises(ArmadaUnavailableError):
            await _ask(world, tls={**certificate, "serverName": "armada.lab"})


_DISTRUST = {
    "signed by another": ({"ca": "other.crt"}, "armada.tls.ca"),
    "signed by nobody known": ({"ca": None}, "armada.tls.ca"),
    "made for another": ({"serverName": "elsewhere"}, "armada.tls.serverName"),
    "no certificate": ({"ca": "armada.lab.key"}, "armada.tls hold certificates"),
}


@pytest.mark.parametrize(("changes", "remedy"), _DISTRUST.values(), ids=_DISTRUST)
async def test_why_armada_is_not_trusted_is_said(
    world: World, tmp_path: Path, changes: dict[str, Any], remedy: str
) -> None:
    authority = _signed(tmp_path, "authority", None)
    _signed(tmp_path, "other", None)
    _signed(tmp_path, "armada.lab", authority)
    own = [((tmp_path / "armada.lab.key").read_bytes(), (tmp_path / "armada.lab.crt").read_bytes())]
    told = {"ca": "authority.crt", "serverName": "armada.lab", **changes}
    ours = {**told, "ca": str(tmp_path / told["ca"]) if told["ca"] else None}
    async with world.armada.serving(grpc.ssl_server_credentials(own)) as world.address:
        with pytest.raises(ArmadaUntrustedError) as caught:
            await _ask(world, tls=ours)
    assert remedy in str(caught.value)
    assert not caught.value.undecided


async def test_an_armada_that_is_encrypted_where_it_should_not_be_and_the_other_way_round(
    world: World, tmp_path: Path
) -> None:
    _signed(tmp_path, "localhost", None)
    own = [((tmp_path / "localhost.key").read_bytes(), (tmp_path / "localhost.crt").read_bytes())]
    with pytest.raises(ArmadaUntrustedError, match=r"leave armada\.tls out"):
        await _ask(world, tls={"ca": str(tmp_path / "localhost.crt")})
    async with world.armada.serving(grpc.ssl_server_credentials(own)) as world.address:
        with pytest.raises(ArmadaUnavailableError, match="whether Armada requires TLS there"):
            await _ask(world)


async def test_a_certificate_that_is_not_there_is_named(world: World, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"armada\.tls\.ca: .*cannot be read"):
        await _ask(world, tls={"ca": str(tmp_path / "missing.crt")})
