"""The cluster's certificates and kubeconfigs."""

from __future__ import annotations

import base64
import datetime as dt
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_VALID = dt.timedelta(days=30)


@dataclass(frozen=True)
class KeyPair:
    """A certificate and its key, in PEM, and where they lie."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority in a folder; made when it is opened first.

    Args:
        folder: takes `<name>.crt` and `<name>.key` of it and of all that it signs.
        name: of the authority.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self.pair = KeyPair(folder / f"{name}.crt", folder / f"{name}.key")
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not self.pair.certificate.exists():
            self._create(name)
        self._certificate = x509.load_pem_x509_certificate(self.pair.certificate.read_bytes())
        key = serialization.load_pem_private_key(self.pair.key.read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        self._key = key

    def _create(self, name: str) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = (
            _builder(subject, subject, key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_key_usage(signs=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        write_key(self.pair.key, key)
        self.pair.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(
        self,
        file: str,
        *,
        user: str,
        groups: Iterable[str] = (),
        addresses: Sequence[IPv4Address] = (),
        names: Sequence[str] = (),
    ) -> KeyPair:
        """A certificate for a client, and for a server when addresses or names are given; an old one is replaced."""
        pair = KeyPair(self._folder / f"{file}.crt", self._folder / f"{file}.key")
        key = ec.generate_private_key(ec.SECP256R1())
        attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        subject = x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, user)])
        alternatives = [*map(x509.IPAddress, addresses), *map(x509.DNSName, names)]
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if alternatives else [])]
        builder = (
            _builder(subject, self._certificate.subject, key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        )
        if alternatives:
            builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        write_key(pair.key, key)
        pair.certificate.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        return pair

    def kubeconfig(self, target: Path, pair: KeyPair, server: str) -> Path:
        """Write a kubeconfig that carries everything in itself."""

        def encoded(path: Path) -> str:
            return base64.b64encode(path.read_bytes()).decode()

        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "cluster",
                    "cluster": {
                        "server": server,
                        "certificate-authority-data": encoded(self.pair.certificate),
                    },
                }
            ],
            "users": [
                {
                    "name": "user",
                    "user": {
                        "client-certificate-data": encoded(pair.certificate),
                        "client-key-data": encoded(pair.key),
                    },
                }
            ],
            "contexts": [{"name": "context", "context": {"cluster": "cluster", "user": "user"}}],
            "current-context": "context",
        }
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch(mode=0o600)
        target.write_text(json.dumps(document, indent=1))
        return target


def service_account_keys(folder: Path) -> tuple[Path, Path]:
    """The pair that signs ServiceAccount tokens: public, private."""
    public, private = folder / "service-accounts.pub", folder / "service-accounts.key"
    if not public.exists():
        key = ec.generate_private_key(ec.SECP256R1())
        write_key(private, key)
        public.write_bytes(
            key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        )
    return public, private


def write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(minutes=5))
        .not_valid_after(now + _VALID)
    )


def _key_usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=not signs,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )
