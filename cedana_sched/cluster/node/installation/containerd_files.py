"""Computes changes to containerd's configuration that register our runtime handler. Writes nothing.

A main file may import others. containerd 1.7 takes a plugin's table whole from the last file that has it, 2.1 and later
merge tables. So there are two ways:

* The main file imports `*.toml` of a folder: we add a file there that repeats the current CRI plugin's table and adds
  our handler. That is right for both.
* Otherwise a marked block at the end of the last file that has the CRI plugin's table; all else stays byte for byte.

Our handler inherits everything from the node's default handler except the program, which our handler calls itself.
Sources: containerd's docs/man/containerd-config.toml.5.md, docs/cri/config.md, cmd/containerd/server/config/config.go.
"""

from __future__ import annotations

import copy
import glob
import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from cedana_sched.cluster.node.installation.host import HostError

HANDLER_NAME = "cedana"
DROP_IN = "zz-cedana-sched.toml"
"""Sorts last in its folder."""
_SHIM = "io.containerd.runc.v2"
_NONE = "version = 2\n"
"""Content of a missing main file; containerd of every version reads it."""
_CRI = {2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime", 4: "io.containerd.cri.v1.runtime"}
_BEGIN = "# BEGIN cedana-sched: the runtime handler for workloads that continue from snapshots"
_END = "# END cedana-sched"
_BLOCK = re.compile(rf"\n?{re.escape(_BEGIN)}\n.*?{re.escape(_END)}\n", re.DOTALL)

Here = Callable[[Path], Path]
"""Translates a host path to the agent's."""


@dataclass(frozen=True)
class Change:
    """New content of one file; None: the file is removed."""

    path: Path
    """As the host sees it."""
    content: str | None


@dataclass(frozen=True)
class _File:
    path: Path
    content: str
    """Without our block."""
    table: dict[str, Any]

    @property
    def version(self) -> int:
        return int(self.table.get("version", 1))

    @property
    def cri(self) -> dict[str, Any] | None:
        found = self.table.get("plugins", {}).get(_CRI.get(self.version, ""))
        return found if isinstance(found, dict) else None


class ContainerdFiles:
    """The current configuration of a host.

    Raises:
        HostError: the configuration is of a kind that cannot be changed here; names the remedy.
    """

    def __init__(self, main: Path, here: Here) -> None:
        self._here = here
        self._files = list(_read_all(main, here))
        if self._files[0].version not in _CRI:
            raise HostError(
                f"{main} is of version {self._files[0].version}, which has no known place for runtime handlers",
                remedy="`containerd config migrate` writes it anew in a version from 2 to 4",
            )

    @property
    def runc(self) -> str:
        """The program behind the default handler; a name is resolved on containerd's PATH."""
        return str(self._default_handler().get("options", {}).get("BinaryName") or "runc")

    @property
    def folders(self) -> set[Path]:
        """Folders of present and possible files, as the host sees them."""
        folder = self._drop_in_folder()
        return {file.path.parent for file in self._files} | ({folder} if folder else set())

    def registration_changes(self, program: Path) -> list[Change]:
        """Return the changes that register our handler; empty if it is registered."""
        handler = copy.deepcopy(self._default_handler())
        if (shim := handler.setdefault("runtime_type", _SHIM)) != _SHIM:
            raise HostError(
                f"the default runtime handler is {shim}, which does not run runc",
                remedy=f"make a handler of type {_SHIM} the default one, or leave this node out",
            )
        handler["options"] = handler.get("options", {}) | {"BinaryName": str(program)}
        if folder := self._drop_in_folder():
            return self._changes({folder / DROP_IN: self._drop_in_content(handler)})
        provider = self._cri_configuration_file
        block = tomli_w.dumps(_handler_table(provider.version, handler))
        content = f"{provider.content}\n{_BEGIN}\n{block}{_END}\n"
        try:
            tomllib.loads(content)
        except tomllib.TOMLDecodeError as error:
            raise HostError(
                f"a runtime handler cannot be added to {provider.path}: {error}",
                remedy="write the CRI plugin's tables under headers of their own, or import a folder: imports = [...]",
            ) from error
        return self._changes({provider.path: content})

    def removal_changes(self) -> list[Change]:
        """Return the changes that remove our handler."""
        return self._changes({})

    def _changes(self, wanted: dict[Path, str]) -> list[Change]:
        """Diff the files on disk against the wanted ones; all other files revert to their content without our block."""
        contents: dict[Path, str | None] = {file.path: file.content for file in self._files}
        if folder := self._drop_in_folder():
            contents[folder / DROP_IN] = None
        contents |= wanted
        present = {path: _text(self._here(path)) for path in contents}
        return [
            Change(path, content)
            for path, content in contents.items()
            if present[path] != content and not (present[path] is None and content == _NONE)
        ]

    @property
    def _cri_configuration_file(self) -> _File:
        """The file from which containerd takes the CRI plugin's table."""
        return next((file for file in reversed(self._files) if file.cri is not None), self._files[0])

    def _default_handler(self) -> dict[str, Any]:
        containerd = (self._cri_configuration_file.cri or {}).get("containerd", {})
        name = containerd.get("default_runtime_name", "runc")
        found = containerd.get("runtimes", {}).get(name, {})
        return found if isinstance(found, dict) else {}

    def _drop_in_content(self, handler: dict[str, Any]) -> str:
        provider = self._cri_configuration_file
        cri = copy.deepcopy(provider.cri or {})
        cri.setdefault("containerd", {}).setdefault("runtimes", {})[HANDLER_NAME] = handler
        table = {"version": provider.version, "plugins": {_CRI[provider.version]: cri}}
        return f"{_BEGIN}\n# The CRI plugin's table as {provider.path} has it, and our handler.\n{tomli_w.dumps(table)}"

    def _drop_in_folder(self) -> Path | None:
        main = self._files[0]
        for pattern in main.table.get("imports", ()):
            folder, name = Path(main.path.parent, pattern).parent, Path(pattern).name
            if name == "*.toml" and "*" not in str(folder):
                return folder
        return None


def _read_all(main: Path, here: Here) -> Iterator[_File]:
    """Yield the files in the order in which containerd reads them, without our own."""
    pending, seen = [main], set()
    while pending:
        path = pending.pop(0)
        text = _text(here(path))
        if path in seen or path.name == DROP_IN or (text is None and path != main):
            continue
        seen.add(path)
        content = _BLOCK.sub("", text) if text is not None else _NONE
        try:
            table = tomllib.loads(content)
        except tomllib.TOMLDecodeError as error:
            raise HostError(f"{path} is no TOML: {error}", remedy="put containerd's configuration in order") from error
        yield _File(path, content, table)
        for pattern in table.get("imports", ()):
            pending += _expand_import_pattern(Path(path.parent, pattern), here)


def _expand_import_pattern(pattern: Path, here: Here) -> list[Path]:
    if "*" not in str(pattern):
        return [pattern]
    root = str(here(Path("/")))
    found = sorted(glob.glob(str(here(pattern))))  # noqa: PTH207 - an absolute pattern
    return [Path("/", path.removeprefix(root)) for path in found]


def _handler_table(version: int, handler: dict[str, Any]) -> dict[str, Any]:
    return {"plugins": {_CRI[version]: {"containerd": {"runtimes": {HANDLER_NAME: handler}}}}}


def _text(path: Path) -> str | None:
    try:
        return path.read_text()
    except FileNotFoundError:
        return None
