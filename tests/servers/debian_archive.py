"""A Debian mirror, and the archive of all that Debian ever published, on loopback.

The mirror has only what its pool has now. The archive answers as snapshot.debian.org does: what was there at an instant
lies below `/archive/debian/<instant>/`, and a request that names another instant is sent to the last one before it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote, unquote

_MIRROR = "/debian/"
_ARCHIVE = "/archive/debian/"


class DebianServers:
    """What both have; a test changes it as it likes."""

    def __init__(self, port: int) -> None:
        self._at = f"http://127.0.0.1:{port}"
        self.mirror = f"{self._at}{_MIRROR}"
        self.pool: dict[str, bytes] = {}
        """Path → content, on the mirror."""
        self.published: dict[str, dict[str, bytes]] = {}
        """Instant → the archive's pool at that instant."""
        self.breaks_off: set[str] = set()
        """Paths of files of which only the first half is sent."""
        self.requests: list[str] = []
        """Paths, in their order."""

    def archive(self, instant: str) -> str:
        """The base address of all that was published at an instant."""
        return f"{self._at}{_ARCHIVE}{instant}"

    def find(self, path: str) -> bytes | str | None:
        """The content of a file, or the path that a request is sent to instead, or None where there is nothing."""
        if path.startswith(_MIRROR):
            return self.pool.get(path.removeprefix(_MIRROR))
        instant, _, name = path.removeprefix(_ARCHIVE).partition("/")
        if instant in self.published:
            return self.published[instant].get(name)
        earlier = [known for known in self.published if known < instant]
        return f"{_ARCHIVE}{max(earlier)}/{name}" if earlier else None


@contextmanager
def debian_servers() -> Iterator[DebianServers]:
    """Both, for as long as the block lasts."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = unquote(self.path)  # apt writes a + as %2b
            servers.requests.append(path)
            found = servers.find(path)
            self.send_response(404 if found is None else 302 if isinstance(found, str) else 200)
            if isinstance(found, str):
                self.send_header("Location", quote(found))
            content = found if isinstance(found, bytes) else b""
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            is_cut = any(path.endswith(name) for name in servers.breaks_off)
            self.wfile.write(content[: len(content) // 2] if is_cut else content)
            self.close_connection = is_cut

        def log_request(self, *_: object) -> None:
            """Write nothing: requests are kept."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        servers = DebianServers(server.server_port)
        thread = threading.Thread(target=server.serve_forever, name="Debian's servers")
        thread.start()
        try:
            yield servers
        finally:
            server.shutdown()
            thread.join()
