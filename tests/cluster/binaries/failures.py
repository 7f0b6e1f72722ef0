"""What went wrong in a Go build, from what `go` printed: one sentence and a remedy for what a person meets."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

_MODULE = r"(?P<module>[\w.~/-]+@v[\w.+~-]+)"


@dataclass(frozen=True)
class Failure:
    """One of the ways in which builds fail.

    Attributes:
        reason: completes "building kubelet failed: …".
        remedy: what to do, one sentence.
    """

    reason: str
    remedy: str


_Say = Callable[[re.Match[str]], Failure]

_KNOWN: tuple[tuple[re.Pattern[str], _Say], ...] = (
    (
        re.compile(r"no space left on device|disk quota exceeded", re.IGNORECASE),
        lambda _: Failure("the disk is full", "free some GiB, for example with `go clean -cache`, and start again"),
    ),
    (
        re.compile(r"signal: killed|cannot allocate memory|out of memory"),
        lambda _: Failure(
            "the compiler was killed or found no memory",
            "leave about 4 GiB of memory free, or build one tool at a time: python -m tests.cluster.binaries NAME",
        ),
    ),
    (
        re.compile(rf"{_MODULE}[^\n]*: checksum mismatch"),
        lambda found: Failure(
            f"module {found['module']} is not what go.sum or the checksum database says",
            "see whether the proxy that GOPROXY names serves it unchanged; `go clean -modcache` drops a damaged copy",
        ),
    ),
    (
        re.compile(r"missing go\.sum entry|updates to go\.mod needed|no required module provides package ([^\s;]+)"),
        lambda _: Failure("go.mod and go.sum do not cover what is built", "run `go mod tidy` in the tool's folder"),
    ),
    (
        re.compile(rf"{_MODULE}: [^\n]*(?:: 404 |: 410 |unknown revision|reading file:[^\n]*no such file)"),
        lambda found: Failure(
            f"module {found['module']} is not served",
            "GOPROXY decides where modules come from (`go env GOPROXY`): name a proxy that has it",
        ),
    ),
    (
        re.compile(r"module lookup disabled by GOPROXY=off"),
        lambda _: Failure(
            "a module is not in the module cache, and GOPROXY=off forbids to fetch it",
            "set GOPROXY to a module proxy",
        ),
    ),
    (
        re.compile(
            r"dial tcp|i/o timeout|connection (?:refused|reset)|no such host|TLS handshake|x509: "
            r"|unexpected EOF|50[0-4] [A-Z]|Client\.Timeout"
        ),
        lambda _: Failure(
            "the module proxy cannot be reached",
            "see whether GOPROXY (`go env GOPROXY`) and the proxy variables of this shell fit the network",
        ),
    ),
    (
        re.compile(r"requires go >= (?P<wanted>[\d.]+)"),
        lambda found: Failure(
            f"it needs Go {found['wanted']} or later", "install that Go, or remove an older one from PATH: `make go`"
        ),
    ),
)


def explain(output: str, status: int) -> Failure:
    """Return what the output of a failed `go` means.

    Args:
        output: everything that it printed.
        status: its exit status; negative when a signal ended it.
    """
    if status == -9:
        output += "\nsignal: killed"
    for pattern, say in _KNOWN:
        if found := pattern.search(output):
            return say(found)
    lines = [line for line in output.splitlines() if line.strip() and not line.startswith(("go: downloading", "#"))]
    return Failure(lines[0].strip() if lines else f"go ended with status {status}", "read the log")
