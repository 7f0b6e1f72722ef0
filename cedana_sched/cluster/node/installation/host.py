"""The host that an agent's pod runs on: its files below `/proc/1/root`, its programs in its own mount namespace."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from cedana_sched.model.errors import CedanaSchedError

_COMMAND_SECONDS = 120.0
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class HostError(CedanaSchedError):
    """The host is not in the required state; the evidence is a program's own output."""


class Host:
    """One host.

    Args:
        root: where the host's files are mounted; `/` for an agent that runs on the host without a container.
    """

    def __init__(self, root: Path = Path("/proc/1/root")) -> None:
        self._root = root

    def agent_path(self, path: Path) -> Path:
        """Return the agent's path of a file of the host."""
        return self._root / path.relative_to("/")

    async def run(self, *command: str | Path, environment: Mapping[str, str] | None = None) -> str:
        """Run a program of the host's, on the host; return its output.

        Raises:
            HostError: it cannot be started, failed, or did not end in time.
        """
        words = tuple(map(str, command))
        entered = () if self._root == Path("/") else ("nsenter", "--target=1", "--mount", "--")
        process = await asyncio.create_subprocess_exec(
            *entered, *words,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            env={"PATH": _PATH, "LC_ALL": "C.UTF-8"} | dict(environment or {}),
        )  # fmt: skip
        try:
            async with asyncio.timeout(_COMMAND_SECONDS):
                out, errors = await process.communicate()
        except TimeoutError:
            raise HostError(f"{words[0]} did not end within {_COMMAND_SECONDS:g} s on the host") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            output = (out + errors).decode(errors="replace").strip().splitlines()
            raise HostError(f"{' '.join(words[:3])} failed on the host", evidence=tuple(output))
        return out.decode(errors="replace")
