"""Configuration of a store's place: a folder, or a prefix of a bucket with endpoint and keys."""

from __future__ import annotations

import ipaddress
import os
import re
from pathlib import Path
from typing import Annotated, Any, Self
from urllib.parse import SplitResult, unquote, urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator

from cedana_sched.model.errors import UsageError

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_REGION = re.compile(r"[!-~]{0,64}")
_HOST = re.compile(r"[a-z0-9]([a-z0-9._-]{0,251}[a-z0-9])?")
_FORMS = "write /folder, file:///folder or s3://bucket/prefix"


class CredentialService(BaseModel):
    """The service that issues credentials of one namespace at a time, by HTTPS; see `credential_client`."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    url: str
    token_file: Annotated[Path, Field(alias="tokenFile")]
    """File with the bearer token that authenticates this component; read again for each request."""
    authorities: Path
    """PEM file of the CA certificates for the service; read again for each request."""

    @field_validator("url")
    @classmethod
    def _check_url(cls, value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme != "https" or not parts.hostname:
            raise ValueError("url must look like https://host/path: a token and keys go over it")
        return value


def _is_host(parts: SplitResult) -> bool:
    """Return whether only a host, and perhaps a port, is between `//` and the path.

    Raises:
        ValueError: the port is invalid.
    """
    host, port = parts.hostname or "", parts.port
    if ":" in host:
        ipaddress.IPv6Address(host)
        host = f"[{host}]"
    elif not _HOST.fullmatch(host):
        return False
    return parts.netloc.lower() in {host, f"{host}:{port}"} and not (parts.query or parts.fragment) and port != 0


class S3Location(BaseModel):
    """A prefix of a bucket.

    Keys default to `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`, else to the machine's role. With `credentials` none
    of these is used.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    endpoint: str | None = None
    """`https://host[:port]`; None for AWS itself."""
    bucket: str
    prefix: str = ""
    region: str = "us-east-1"
    access_key: Annotated[str | None, Field(alias="accessKey")] = None
    secret_key: Annotated[SecretStr | None, Field(alias="secretKey")] = None
    allow_http: Annotated[bool, Field(alias="allowHttp")] = False
    """Permit an endpoint without TLS: requests are signed, but memory contents cross the network in the clear."""
    credentials: CredentialService | None = None
    """Service that issues credentials of one namespace at a time; None: we have the keys of the whole bucket."""

    @field_validator("bucket")
    @classmethod
    def _check_bucket(cls, value: str) -> str:
        if not _BUCKET.fullmatch(value):
            raise ValueError("a bucket's name is 3 to 63 lower-case letters, digits, '-' and '.'")
        return value

    @field_validator("prefix")
    @classmethod
    def _check_prefix(cls, value: str) -> str:
        parts = [part for part in value.split("/") if part]
        if any(part in {".", ".."} for part in parts):
            raise ValueError("a prefix must not contain '.' or '..'")
        if not value.isprintable():
            raise ValueError("a prefix must be printable")
        return "/".join(parts)

    @field_validator("region")
    @classmethod
    def _check_region(cls, value: str) -> str:
        if not _REGION.fullmatch(value):
            raise ValueError("a region is a word like us-east-1")
        return value

    @model_validator(mode="after")
    def _check_endpoint(self) -> Self:
        if self.credentials is not None and (self.access_key is not None or self.secret_key is not None):
            raise ValueError("credentials are given by a service: leave out access_key and secret_key")
        if self.endpoint is None:
            return self
        parts = urlsplit(self.endpoint)
        if parts.scheme not in {"http", "https"} or not _is_host(parts) or parts.path not in {"", "/"}:
            raise ValueError("endpoint must look like https://host or https://host:port")
        if parts.scheme == "http" and not self.allow_http:
            raise ValueError("endpoint has no TLS; set allow_http if that is meant")
        if (self.access_key is None) != (self.secret_key is None):
            raise ValueError("access_key and secret_key belong together")
        return self

    def bucket_keys(self) -> tuple[str, str] | None:
        """Access key and secret key of the whole bucket, if known to this process."""
        if self.credentials is not None:
            return None
        access = self.access_key or os.environ.get("AWS_ACCESS_KEY_ID")
        secret = self.secret_key.get_secret_value() if self.secret_key else os.environ.get("AWS_SECRET_ACCESS_KEY")
        return (access, secret) if access and secret else None


class StorageConfig(BaseModel):
    """Exactly one of `path` and `s3`; and how snapshots are sealed."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    path: Path | None = None
    s3: S3Location | None = None
    key_file: Annotated[Path | None, Field(alias="keyFile")] = None
    """File of wrapping keys; None: nothing is sealed."""
    accept_unsealed: Annotated[bool, Field(alias="acceptUnsealed")] = False
    """With `key_file`: read snapshots from before the store was sealed, which any client may have forged."""
    write_unsealed: Annotated[bool, Field(alias="writeUnsealed")] = False
    """With `key_file`: write unsealed for now, because other readers may have no keys; read both kinds."""

    @model_validator(mode="after")
    def _check_fields(self) -> Self:
        if (self.path is None) == (self.s3 is None):
            raise ValueError("give either path or s3")
        if self.path is not None and not self.path.is_absolute():
            raise ValueError("path must be absolute: begin it with '/'")
        if self.key_file is not None and not self.key_file.is_absolute():
            raise ValueError("keyFile must be absolute: begin it with '/'")
        if self.accept_unsealed and self.key_file is None:
            raise ValueError("acceptUnsealed says nothing without keyFile: give keyFile, or leave it out")
        if self.write_unsealed and self.key_file is None:
            raise ValueError("writeUnsealed says nothing without keyFile: give keyFile, or leave it out")
        return self

    @classmethod
    def load(cls, values: dict[str, Any]) -> StorageConfig:
        """Load plain values, as from a file or from `dump_with_secrets`.

        Raises:
            UsageError: naming the field, the value and the remedy.
        """
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise _usage_error(error) from None

    @classmethod
    def parse(cls, uri: str, **options: Any) -> StorageConfig:
        """Parse `/folder`, `file:///folder` or `s3://bucket/prefix`; `options` are the other fields of `S3Location`.

        Raises:
            UsageError: naming the field, the value and the remedy.
        """
        parts = urlsplit(uri)
        if parts.scheme == "s3":
            if parts.query or parts.fragment or "@" in parts.netloc:
                raise UsageError("store", uri, "has more than a bucket and a prefix", remedy=_FORMS)
            given = {name: value for name, value in options.items() if value is not None}
            return cls.load({"s3": {"bucket": parts.netloc, "prefix": parts.path, **given}})
        if useless := sorted(name for name, value in options.items() if value is not None):
            remedy = "leave it out, or write s3://bucket/prefix"
            raise UsageError(useless[0], options[useless[0]], "means nothing for a folder", remedy=remedy)
        if parts.scheme == "file" and parts.netloc in {"", "localhost"}:
            return cls.load({"path": unquote(parts.path)})
        if not parts.scheme and uri.startswith("/"):
            return cls.load({"path": uri})
        raise UsageError("store", uri, "cannot be read as a place", remedy=_FORMS)

    def sealed_with(self, key_file: Path | None, *, accept_unsealed: bool = False) -> StorageConfig:
        """Return the same place, sealed.

        Raises:
            UsageError: naming the field, the value and the remedy.
        """
        sealing = {"key_file": str(key_file) if key_file else None, "accept_unsealed": accept_unsealed}
        return self.load(self.dump_with_secrets() | sealing)

    def dump_with_secrets(self) -> dict[str, Any]:
        """Return JSON values for `load`, including secrets: only for a pipe to a process of our own."""
        values = self.model_dump(mode="json", exclude_none=True)
        if self.s3 is not None and self.s3.secret_key is not None:
            values["s3"]["secret_key"] = self.s3.secret_key.get_secret_value()
        return values

    def __str__(self) -> str:
        if self.s3 is None:
            return str(self.path)
        return "/".join(part for part in (f"s3://{self.s3.bucket}", self.s3.prefix) if part)


def _usage_error(error: ValidationError) -> UsageError:
    first = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in first["loc"]) or "store"
    problem = first["msg"].removeprefix("Value error, ")
    value = "(hidden)" if "secret" in field or isinstance(first["input"], dict | BaseModel) else first["input"]
    return UsageError(field, value, "is not a valid setting", remedy=problem)
