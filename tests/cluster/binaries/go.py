"""The Go that builds: found, and run."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.commands import run
from tests.cluster.errors import ClusterError

_OLDEST = (1, 26)
_INSTALLED_HERE = Path(__file__).parents[3] / ".cache" / "go" / "go" / "bin" / "go"

_ENVIRONMENT = {
    "CGO_ENABLED": "0",  # static: the programs run in any root, whatever its C library
    "GOWORK": "off",  # a workspace of somebody above this clone is not ours
    "GOTOOLCHAIN": "local",  # nothing downloads another Go in the middle of a build
}
FLAGS = ("-trimpath", "-buildvcs=false", "-mod=readonly")


@dataclass(frozen=True)
class Go:
    """A Go that is new enough.

    Attributes:
        program: its path.
        family: the release without its patch level, such as "go1.26"; programs are built again for another one.
    """

    program: Path
    family: str

    async def build(
        self, module: Path, packages: tuple[str, ...], linker: str, output: Path, log: Path, *, scratch: Path
    ) -> int:
        """Build the packages of a module into a folder; returns the exit status, what `go` said is in the log.

        Args:
            module: the folder with go.mod.
            packages: main packages.
            linker: flags for the linker.
            output: an existing folder.
            log: begun anew.
            scratch: an existing folder for what the build writes in between: /tmp may be small, or memory.
        """
        command: list[str | Path] = [self.program, "build", *FLAGS, "-ldflags", linker, "-o", f"{output}/", *packages]
        environment = {**os.environ, **_ENVIRONMENT, "GOTMPDIR": str(scratch)}
        return await _logged(command, module, environment, log)

    async def module_folder(self, module: Path, path: str) -> Path:
        """Return where the module cache holds the sources of a module that `module`'s go.mod requires."""
        listed = await run(
            self.program, "list", "-mod=readonly", "-m", "-f", "{{.Dir}}", path,
            what=f"looking for the sources of {path} failed", remedy=f"see `go mod download` in {module}",
            cwd=module, env=_ENVIRONMENT,
        )  # fmt: skip
        return Path(listed.strip())


async def find_go() -> Go:
    """Return the Go of this clone (`make go`) or else the machine's.

    Raises:
        ClusterError: there is none, or it is too old.
    """
    seen = []
    for candidate in filter(None, (shutil.which(_INSTALLED_HERE), shutil.which("go"))):
        said = await run(
            candidate,
            "version",
            what=f"{candidate} does not run",
            remedy="install Go anew: `make go`",
            env=_ENVIRONMENT,
        )
        found = re.search(r"\bgo(\d+)\.(\d+)", said)
        if found and (int(found[1]), int(found[2])) >= _OLDEST:
            return Go(Path(candidate), found[0])
        seen.append(f"{candidate} is {found[0] if found else said.strip()}")
    wanted = ".".join(map(str, _OLDEST))
    raise ClusterError(
        f"no Go of at least {wanted} is here" + (f": {', '.join(seen)}" if seen else ""),
        remedy="`make go` puts one into this clone",
    )


async def _logged(command: list[str | Path], folder: Path, environment: Mapping[str, str], log: Path) -> int:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *("setpriv", "--pdeathsig", "KILL"),  # nobody waits for what it builds when we are gone
            *map(str, command),
            cwd=folder,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        return await process.wait()
    except asyncio.CancelledError:
        with contextlib.suppress(ProcessLookupError):  # it ended in this moment
            os.killpg(process.pid, signal.SIGKILL)  # compilers as well, they write into what is removed next
        await process.wait()
        raise
