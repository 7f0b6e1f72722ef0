"""Debian as a folder: the root of every node, and the root that images are built from.

`debootstrap` makes the base, as small as `debian:trixie-slim`; a copy of it with the packages of a node becomes the
nodes' lower layer, and so for other machines. Both are kept, and nobody writes to them.

The mirror, proxies and certificates are those of this machine's apt. `AptSettings` makes them a few files that can be
laid over any Debian root.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cedana_sched.snapshot.debian import DebianPackagesError, DebianSuite, archive_keyring
from tests.cluster.cache import cache_dir, digest, fresh_log, made_once
from tests.cluster.commands import run
from tests.cluster.errors import ClusterError
from tests.cluster.steps import Steps

SUITE = "trixie"
RECIPE = 2
"""Raised when what this module does with the packages changes."""

NODE_PACKAGES = (
    "containerd", "runc", "containernetworking-plugins",
    "iproute2", "iptables", "nftables", "conntrack", "ethtool", "socat",  # kubelet, kube-proxy and the CNI plugins
    "kmod", "mount", "util-linux", "e2fsprogs", "procps",
    "runit", "tini",
    "python3", "ca-certificates",
)  # fmt: skip

PIP_SETTINGS = "etc/xdg/pip"
"""A folder in which pip looks for `pip.conf`; empty, for whoever builds an image to lay his own over it."""

_MARKER = "usr/share/cedana-sched-root"
_SPACE_BYTES = 2 << 30
_NETWORK = "check the network and the Debian entries in /etc/apt, then try again"
_MACHINE_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")

NOTHING_LEFT_BEHIND = (
    "setpriv", "--pdeathsig", "KILL",
    "unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc",
)  # fmt: skip
"""Runs a program so that its processes and mounts end with it, however it or this process ends."""

_DPKG = """\
# as in Debian's own slim images
path-exclude /usr/share/doc/*
path-include /usr/share/doc/*/copyright
path-exclude /usr/share/info/*
path-exclude /usr/share/locale/*
path-exclude /usr/share/man/*
# whoever makes a root or an image throws it away when that fails
force-unsafe-io
"""
_APT = """\
Acquire::Languages "none";
APT::Install-Recommends "false";
APT::Keep-Downloaded-Packages "false";
Dir::Cache::pkgcache "";
Dir::Cache::srcpkgcache "";
"""
_NO_SERVICES = "#!/bin/sh\n# no service is started when its package is installed\nexit 101\n"

_INSTALL = """\
set -e
mount -t proc proc "$1/proc"
cat /etc/resolv.conf >"$1/etc/resolv.conf"
mkdir -p "$1/usr/share/man/man1" # Java's alternatives link pages in it, whether they are there or not
root=$1; shift
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin
chroot "$root" apt-get update
exec chroot "$root" apt-get install --yes "$@"
"""


@dataclass(frozen=True)
class AptSettings:
    """Where this machine's apt gets its packages from, as a folder to be laid over a root's `/etc/apt`.

    Args:
        folder: holds `FOLDERS`; each replaces or joins the folder of that name.
        mirror: the base address of the archive that serves the suite.
        proxies: environment variables for programs that do not read apt's settings.
    """

    folder: Path
    mirror: str
    proxies: dict[str, str]

    FOLDERS = ("sources.list.d", "apt.conf.d", "keyrings")


async def apt_settings(folder: Path) -> AptSettings:
    """Write the settings of this machine's apt into a folder that does not exist yet.

    Raises:
        ClusterError: this machine's apt has no mirror that serves the suite.
    """
    for name in AptSettings.FOLDERS:
        (folder / name).mkdir(parents=True)
    mirror = await asyncio.to_thread(_mirror)
    dump = await run("apt-config", "dump", what="reading apt's settings failed", remedy="read apt's message")
    settings = transport_settings(dump)
    authority = Path(settings.get("Acquire::https::CAInfo", _MACHINE_CERTIFICATES))
    if authority.exists():
        shutil.copy(authority, folder / "keyrings" / "machine.crt")
        settings["Acquire::https::CAInfo"] = "/etc/apt/keyrings/machine.crt"
    (folder / "apt.conf.d" / "90machine").write_text(
        _APT + "".join(f'{key} "{value}";\n' for key, value in settings.items())
    )
    (folder / "sources.list.d" / "machine.sources").write_text(
        f"Types: deb\nURIs: {mirror}\nSuites: {SUITE}\nComponents: main\n"
        "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
    )
    proxies = {
        f"{kind}_proxy": settings[f"Acquire::{kind}::Proxy"]
        for kind in ("http", "https")
        if settings.get(f"Acquire::{kind}::Proxy", "DIRECT") != "DIRECT"
    }
    return AptSettings(folder, mirror, proxies)


async def base_root(steps: Steps) -> Path:
    """Return a root like that of `debian:trixie-slim`: read-only for its users, without any package source.

    Raises:
        ClusterError: debootstrap is missing or failed, no mirror serves the suite, or there is no space.
    """
    architecture = await _architecture()

    async def make(partial: Path) -> None:
        with steps.step(f"root of Debian {SUITE}"):
            await _make_base(partial, architecture)

    target = cache_dir() / f"base-root-{base_digest(architecture)}"
    return await made_once(target, make, is_whole=_is_whole)


async def node_root(steps: Steps) -> Path:
    """Return the root of a node: the base and `NODE_PACKAGES`; the lower layer of every node's overlay.

    Raises:
        ClusterError: see `base_root`; or a package could not be installed.
    """
    return await root_with("node", NODE_PACKAGES, steps)


async def root_with(name: str, packages: Sequence[str], steps: Steps) -> Path:
    """Return the base with packages of Debian's, for machines of one kind; `name` is what they are called.

    Raises:
        ClusterError: see `base_root`; or a package could not be installed.
    """
    base = await base_root(steps)

    async def make(partial: Path) -> None:
        with steps.step(f"root of {name}"):
            await _make_with(partial, base, name, packages)

    target = cache_dir() / f"{name}-root-{digest(RECIPE, base.name, packages)}"
    return await made_once(target, make, is_whole=_is_whole)


def base_digest(architecture: str) -> str:
    """Return what the base is made of, as a name."""
    return digest(RECIPE, SUITE, architecture, _DPKG, _NO_SERVICES)


async def _make_base(root: Path, architecture: str) -> None:
    _require_space(root.parent)
    if shutil.which("debootstrap") is None:
        raise ClusterError("debootstrap is not installed", remedy="apt-get install debootstrap")
    log = fresh_log("base-root.log")
    with tempfile.TemporaryDirectory() as folder:
        apt = await apt_settings(Path(folder, "apt"))
    try:
        await run(
            *NOTHING_LEFT_BEHIND, "debootstrap", "--variant=minbase", f"--arch={architecture}",
            f"--keyring={archive_keyring()}", SUITE, root, apt.mirror,
            what=f"making a root of Debian {SUITE} failed", remedy=_NETWORK, env=apt.proxies, log=log,
        )  # fmt: skip
    except ClusterError:
        if (root / "debootstrap" / "debootstrap.log").exists():
            with log.open("ab") as file:
                file.write((root / "debootstrap" / "debootstrap.log").read_bytes())
        raise
    await asyncio.to_thread(_slim, root)
    (root / "etc/dpkg/dpkg.cfg.d/slim").write_text(_DPKG)
    (root / "usr/sbin/policy-rc.d").write_text(_NO_SERVICES)
    (root / "usr/sbin/policy-rc.d").chmod(0o755)
    (root / "etc/apt/sources.list").unlink()
    await _finish(root)


async def _make_with(root: Path, base: Path, name: str, packages: Sequence[str]) -> None:
    _require_space(root.parent)
    log = fresh_log(f"{name}-root.log")
    await run("cp", "--archive", "--reflink=auto", base, root, what="copying the root failed", remedy="see df")
    (root / _MARKER).unlink()
    with tempfile.TemporaryDirectory() as folder:
        apt = await apt_settings(Path(folder, "apt"))
        shutil.copytree(apt.folder, root / "etc/apt", dirs_exist_ok=True)
    await run(
        *NOTHING_LEFT_BEHIND, "sh", "-c", _INSTALL, "install", root, *packages,
        what=f"installing the packages of {name} failed", remedy=_NETWORK, log=log,
    )  # fmt: skip
    await _finish(root)


async def _finish(root: Path) -> None:
    """Take out what belongs to this machine or is only of use to apt, and write the marker last."""
    for name in ("var/lib/apt/lists", "var/cache/apt", "var/log/apt"):
        for path in (root / name).rglob("*"):
            if path.is_file():
                path.unlink()
    for name in ("etc/hostname", "etc/resolv.conf", "var/log/bootstrap.log", "var/log/dpkg.log"):
        (root / name).unlink(missing_ok=True)
    for name in ("etc/hostname", "etc/hosts", "etc/resolv.conf"):
        (root / name).touch()  # something for a bind mount to lie on
    (root / PIP_SETTINGS).mkdir(parents=True, exist_ok=True)
    (root / "etc/machine-id").write_text("")
    packages = await run(
        "dpkg-query", f"--admindir={root}/var/lib/dpkg", "--show", what="listing the packages failed", remedy="see df"
    )
    (root / _MARKER).write_text(packages)


def _slim(root: Path) -> None:
    """Delete what `_DPKG` excludes and debootstrap, which does not know it, has unpacked."""
    for name in ("info", "locale", "man"):
        for path in (root / "usr/share" / name).iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in (root / "usr/share/doc").rglob("*"):
        if path.name != "copyright" and not path.is_dir():
            path.unlink()


def _is_whole(root: Path) -> bool:
    return (root / _MARKER).is_file()


def _mirror() -> str:
    try:
        with tempfile.TemporaryDirectory() as folder:
            return DebianSuite(SUITE, Path(folder, "apt")).mirror
    except DebianPackagesError as error:
        evidence = f": {error.evidence[-1]}" if error.evidence else ""
        raise ClusterError(f"{error.message}{evidence}", remedy=_NETWORK) from error


def transport_settings(dump: str) -> dict[str, str]:
    """Return of `apt-config dump` what says how files are fetched, not what of them is kept."""
    kept = r'^(Acquire::(?:(?:http|https)::[\w:-]+|Retries|Check-Valid-Until|Check-Date|ForceIPv[46])) "(.+)";$'
    return dict(re.findall(kept, dump, re.MULTILINE))


async def _architecture() -> str:
    printed = await run(
        "dpkg", "--print-architecture", what="asking for the architecture failed", remedy="run this on Debian"
    )
    return printed.strip()


def _require_space(folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if free < _SPACE_BYTES:
        raise ClusterError(
            f"{folder} has {free >> 20} MiB left, a root needs {_SPACE_BYTES >> 20} MiB while it is made",
            remedy="free some space, or set XDG_CACHE_HOME to a folder with more",
        )
