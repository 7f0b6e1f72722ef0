"""What is mounted inside a volume is not the volume's: it is neither archived nor written to nor removed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")

_MOUNT = """
set -e
mount -t tmpfs tmpfs "$1/other" && echo secret > "$1/other/file"
mount --bind "$1/../host" "$1/same"
mount --bind "$1/../host/file" "$1/single"
exec "$2" -c "$3" "$1"
"""
_ARCHIVE = """
import io, sys, tarfile
from pathlib import Path
from cedana_sched.snapshot.folder_archive import write_archive

class Kept(io.BytesIO):
    def close(self): pass

kept = Kept()
write_archive(Path(sys.argv[1]), kept)
kept.seek(0)
print(*sorted(member.name for member in tarfile.open(fileobj=kept)))
"""
_LAY = """
import sys, tarfile
from pathlib import Path
from cedana_sched.runtime_handler.layer import LayerError, unpack_layer

path = Path(sys.argv[1]).parent / "empty.tar"
tarfile.open(path, "w").close()
try:
    unpack_layer(str(path), sys.argv[1], instead=True)
except LayerError as error:
    print(error)
"""


@pytest.fixture
def volume(tmp_path: Path) -> Path:
    volume = tmp_path / "volume"
    for folder in ("other", "same", "own"):
        (volume / folder).mkdir(parents=True)
    (volume / "single").touch()
    (tmp_path / "host").mkdir()
    (tmp_path / "host/file").write_text("of the host")
    return volume


def in_mounts_of_its_own(volume: Path, program: str) -> str:
    words = ["unshare", "--mount", "sh", "-c", _MOUNT, "sh", str(volume), sys.executable, program]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


def test_mount_points_are_archived_as_folders_and_nothing_in_them(volume: Path) -> None:
    assert in_mounts_of_its_own(volume, _ARCHIVE) == ". ./other ./own ./same"


def test_what_is_mounted_inside_is_not_removed_with_the_rest(volume: Path) -> None:
    assert "cross-device" in in_mounts_of_its_own(volume, _LAY)
    assert (volume.parent / "host/file").read_text() == "of the host"
