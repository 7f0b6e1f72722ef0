"""The simplest place for a dump's images: every image a file of a folder."""

from __future__ import annotations

from pathlib import Path


class FolderWriter:
    """One image."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")

    def write(self, data: memoryview) -> None:
        self._file.write(data)

    def close(self) -> None:
        self._file.close()


class FolderSink:
    """All images of one dump."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)

    def open_stream(self, name: str) -> FolderWriter:
        return FolderWriter(self.folder / name)
