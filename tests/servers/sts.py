"""A Security Token Service in as much as AssumeRole goes: it checks the signature, and answers as AWS documents it.

Source: AWS Security Token Service API Reference, "AssumeRole", "Common Error Types"; AWS General Reference, "Create a
signed AWS API request". It enforces no policy: what a session may do is tried on a real server.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
import hmac
from collections.abc import Iterator
from urllib.parse import parse_qs

from tests.servers.loopback import QuietHandler, serving

ACCESS_KEY, SECRET_KEY, REGION = "the-key", "the-secret", "us-east-1"
_DOCUMENT = "https://sts.amazonaws.com/doc/2011-06-15/"


class FakeSts:
    """`requests` are the fields of what was asked; `answers` are answered first, each a status and a body."""

    def __init__(self) -> None:
        self.requests: list[dict[str, str]] = []
        self.headers: list[dict[str, str]] = []
        self.answers: list[tuple[int, str]] = []
        self.life = dt.timedelta(hours=1)
        self.url = ""

    def answer(self, headers: dict[str, str], body: bytes) -> tuple[int, str]:
        fields = {name: values[0] for name, values in parse_qs(body.decode(), keep_blank_values=True).items()}
        self.requests.append(fields)
        self.headers.append(headers)
        if self.answers:
            return self.answers.pop(0)
        if headers.get("authorization") != signed(headers, body):
            return error(403, "SignatureDoesNotMatch", "The request signature we calculated does not match")
        if fields.get("Action") != "AssumeRole" or fields.get("Version") != "2011-06-15":
            return error(400, "InvalidAction", "The action or operation requested is invalid.")
        asked = dt.timedelta(seconds=int(fields["DurationSeconds"]))
        until = (dt.datetime.now(tz=dt.UTC) + min(asked, self.life)).strftime("%Y-%m-%dT%H:%M:%SZ")
        number = len(self.requests)
        return 200, (
            f'<AssumeRoleResponse xmlns="{_DOCUMENT}"><AssumeRoleResult>'
            f"<AssumedRoleUser><Arn>arn:aws:sts::123456789012:assumed-role/demo/x</Arn>"
            f"<AssumedRoleId>ARO123EXAMPLE123:x</AssumedRoleId></AssumedRoleUser>"
            f"<Credentials><AccessKeyId>ASIA{number}</AccessKeyId><SecretAccessKey>secret-{number}</SecretAccessKey>"
            f"<SessionToken>token-{number}</SessionToken><Expiration>{until}</Expiration></Credentials>"
            f"<PackedPolicySize>6</PackedPolicySize></AssumeRoleResult>"
            f"<ResponseMetadata><RequestId>c6104cbe-af31-11e0-8154-cbc7ccf896c7</RequestId></ResponseMetadata>"
            f"</AssumeRoleResponse>"
        )


def error(status: int, code: str, message: str) -> tuple[int, str]:
    """As STS answers it."""
    who = "Sender" if status < 500 else "Receiver"
    text = f"<Error><Type>{who}</Type><Code>{code}</Code><Message>{message}</Message></Error>"
    return status, f'<ErrorResponse xmlns="{_DOCUMENT}">{text}<RequestId>r</RequestId></ErrorResponse>'


def signed(headers: dict[str, str], body: bytes) -> str:
    """The header that whoever has our keys would have sent with these."""
    _, _, names = headers.get("authorization", "").partition("SignedHeaders=")
    names = names.partition(",")[0]
    date = headers.get("x-amz-date", "")
    canonical = "".join(f"{name}:{headers.get(name, '')}\n" for name in names.split(";"))
    request = "\n".join(("POST", "/", "", canonical, names, hashlib.sha256(body).hexdigest()))
    scope = f"{date[:8]}/{REGION}/sts/aws4_request"
    text = "\n".join(("AWS4-HMAC-SHA256", date, scope, hashlib.sha256(request.encode()).hexdigest()))
    key = f"AWS4{SECRET_KEY}".encode()
    for part in (date[:8], REGION, "sts", "aws4_request"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.new(key, text.encode(), "sha256").hexdigest()
    return f"AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/{scope}, SignedHeaders={names}, Signature={signature}"


@contextlib.contextmanager
def sts_server() -> Iterator[FakeSts]:
    """One on loopback, by plain HTTP."""
    fake = FakeSts()

    class Handler(QuietHandler):
        def do_POST(self) -> None:  # noqa: N802  # the library's name
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            status, text = fake.answer({name.lower(): value for name, value in self.headers.items()}, body)
            data = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/xml")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    with serving(Handler) as fake.url:
        yield fake
