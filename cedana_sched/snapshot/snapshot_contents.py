"""Human-readable contents of a snapshot: processes, memory, open files, sockets, namespaces.

Only small images are read; the memory itself (`pages-*.img`) is not.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from cedana_sched.snapshot.criu_toolchain import Toolchain
from cedana_sched.snapshot.images import Entry, Images, ReadImage

_PAGE_BYTES = 4096  # unit of pagemap entries, on every supported architecture
_STACK, _HEAP, _SHARED_ANONYMOUS, _SYSTEM_V = 1 << 1, 1 << 5, 1 << 8, 1 << 10  # criu/include/image.h, VMA_AREA_*
_SOCKETS = {"INETSK": "isk", "UNIXSK": "usk", "PACKETSK": "psk", "NETLINKSK": "nlsk"}
_NAMESPACES = ("pid", "ipc", "mnt", "net", "uts", "user", "cgroup", "time")


class Mapping(msgspec.Struct, frozen=True):
    """Memory of one kind, or of one file, in the snapshot."""

    name: str
    bytes: int


class OpenFile(msgspec.Struct, frozen=True):
    """One descriptor of one process."""

    descriptor: int
    kind: str
    name: str


class Process(msgspec.Struct, frozen=True):
    """One process at the freeze."""

    pid: int
    """In its own PID namespace: 1 is the job's tini."""
    parent: int
    command: str
    threads: int
    memory: tuple[Mapping, ...]
    """The largest first."""
    files: tuple[OpenFile, ...]

    @property
    def memory_bytes(self) -> int:
        return sum(mapping.bytes for mapping in self.memory)


class Contents(msgspec.Struct, frozen=True):
    """Contents of a snapshot, parents before children."""

    processes: tuple[Process, ...]
    own_namespaces: tuple[str, ...]
    """The tree's own namespaces, which a restore recreates."""
    mounts: tuple[str, ...]
    """Mount points of its mount namespace."""

    @property
    def memory_bytes(self) -> int:
        return sum(process.memory_bytes for process in self.processes)


def inspect_snapshot(toolchain: Toolchain, read: ReadImage) -> Contents:
    """Describe the snapshot whose images `read` returns.

    Raises:
        SnapshotError: an image is damaged.
    """
    images = Images(toolchain, read)
    files = {entry["id"]: entry for entry in images.read_entries("files.img", readable=True)}
    tree = images.read_entries("pstree.img")
    ids = images.read_entries(f"ids-{tree[0]['pid']}.img") if tree else []
    own = _own_namespaces(images, ids[0] if ids else {})
    mounts = images.read_entries(f"mountpoints-{own['mnt']}.img") if "mnt" in own else []
    return Contents(
        processes=tuple(_read_process(images, item, files) for item in tree),
        own_namespaces=tuple(own),
        mounts=tuple(sorted(entry["mountpoint"] for entry in mounts)),
    )


def _own_namespaces(images: Images, ids: Entry) -> dict[str, int]:
    """Return the tree's own namespaces: those that differ from CRIU's own, which the inventory names."""
    inventory = images.read_entries("inventory.img")
    root = inventory[0].get("root_ids", {}) if inventory else {}
    keys = {name: f"{name}_ns_id" for name in _NAMESPACES}
    return {name: ids[key] for name, key in keys.items() if key in ids and ids[key] != root.get(key)}


def _read_process(images: Images, item: Entry, files: dict[int, Entry]) -> Process:
    pid = item["pid"]
    core = images.read_entries(f"core-{pid}.img")
    ids = images.read_entries(f"ids-{pid}.img")
    descriptors = images.read_entries(f"fdinfo-{ids[0]['files_id']}.img") if ids else []
    return Process(
        pid=pid,
        parent=item["ppid"],
        command=core[0].get("tc", {}).get("comm", "?") if core else "?",
        threads=len(item.get("threads", ())),
        memory=_memory_mappings_of(images, pid, files),
        files=tuple(OpenFile(fd["fd"], *_describe_file(files.get(fd["id"], {}))) for fd in descriptors),
    )


def _memory_mappings_of(images: Images, pid: int, files: dict[int, Entry]) -> tuple[Mapping, ...]:
    found = images.read_entries(f"mm-{pid}.img")
    areas = sorted(found[0].get("vmas", []), key=lambda area: area["start"]) if found else []
    sizes: Counter[str] = Counter()
    position = 0
    for run in images.read_entries(f"pagemap-{pid}.img")[1:]:  # the first entry only names the file of the pages
        while position < len(areas) - 1 and areas[position]["end"] <= run["vaddr"]:
            position += 1
        pages = run.get("nr_pages") or run.get("compat_nr_pages", 0)
        name = _area_name(areas[position], files) if areas else "anonymous memory"
        sizes[name] += pages * _PAGE_BYTES
    return tuple(Mapping(name, size) for name, size in sizes.most_common())


def _area_name(area: Entry, files: dict[int, Entry]) -> str:
    status = area["status"]
    if status & _STACK:
        return "stack"
    if status & _HEAP:
        return "heap"
    if status & _SYSTEM_V:
        return "System V shared memory"
    if status & _SHARED_ANONYMOUS:
        return "shared memory"
    file = files.get(area.get("shmid", 0), {})
    return str(file.get("reg", {}).get("name", "anonymous memory"))


def _describe_file(entry: Entry) -> tuple[str, str]:
    """Return the kind and the name of an open file, for humans."""
    kind = entry.get("type", "?")
    if kind == "REG":
        return "file", entry.get("reg", {}).get("name", "?")
    if kind == "INETSK":
        return "inet socket", _format_addresses(entry.get("isk", {}))
    if kind == "UNIXSK":
        return "unix socket", _socket_name(entry.get("usk", {}).get("name", ""))
    if kind in _SOCKETS:
        return "socket", kind.removesuffix("SK").lower()
    return kind.lower(), ""


def _format_addresses(socket: dict[str, Any]) -> str:
    source = f"{_first_address(socket.get('src_addr'))}:{socket.get('src_port', 0)}"
    if not socket.get("dst_port"):
        return source
    return f"{source} to {_first_address(socket.get('dst_addr'))}:{socket['dst_port']}"


def _first_address(addresses: Any) -> str:
    return str(addresses[0]) if addresses else "?"


def _socket_name(name: Any) -> str:
    text = name.decode(errors="replace") if isinstance(name, bytes) else str(name)
    return text.rstrip("\0")
