"""Makes a release: `make release VERSION=1.2.3`.

The release commit and its files are made in a worktree of their own, because images name the commit that they are made
of. Only when all is made, the branch moves to that commit, which is tagged: if a step fails, nothing has changed.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BRANCH = "main"
CHANGELOG = "CHANGELOG.md"
CHART = "manifests/chart"
PACKAGE = "cedana_sched/__init__.py"
SUMS = "SHA256SUMS"

_NUMBER = r"(?:0|[1-9]\d*)"
_VERSION = re.compile(rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}")
_UNRELEASED = re.compile(r"^## \[Unreleased\]\n(?P<changes>.*?)(?=^## \[|\Z)", re.MULTILINE | re.DOTALL)
_OF_PACKAGE = re.compile(r'^(__version__ = ")([^"]*)(")$', re.MULTILINE)
_OF_CHART = re.compile(r"^((?:version|appVersion): )(\S+)()$", re.MULTILINE)

Build = Callable[[Path, Path], None]
"""Makes files of the tree (first) in a folder (second)."""


class ReleaseError(Exception):
    """A release that cannot be made, with the reason."""


def check_version(version: str, current: str) -> None:
    """Refuse what is no version, or lower than the current one, which may itself be released.

    Raises:
        ReleaseError: naming the remedy.
    """
    if not _VERSION.fullmatch(version):
        raise ReleaseError(f"{version!r} is no version: name three numbers, as in VERSION=1.2.3")
    if _numbers(version) < _numbers(current):
        raise ReleaseError(f"{version} is lower than the current version, {current}")


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def dated(changelog: str, version: str, day: date) -> str:
    """Return the changelog with the unreleased changes under the version, and an empty *Unreleased* above.

    Raises:
        ReleaseError: there are none, or the version has changes already.
    """
    found = _UNRELEASED.search(changelog)
    if found is None or not found["changes"].strip():
        raise ReleaseError(f"{CHANGELOG} has no changes under Unreleased")
    if f"## [{version}]" in changelog:
        raise ReleaseError(f"{CHANGELOG} has changes of {version} already")
    heading = f"## [Unreleased]\n\n## [{version}] - {day.isoformat()}\n"
    return changelog[: found.start()] + heading + found["changes"] + changelog[found.end() :]


def current_version(root: Path) -> str:
    """Return the version of the package.

    Raises:
        ReleaseError: the chart has another one.
    """
    package = _OF_PACKAGE.findall((root / PACKAGE).read_text())[0][1]
    if (chart := {found[1] for found in _OF_CHART.findall((root / CHART / "Chart.yaml").read_text())}) != {package}:
        raise ReleaseError(f"{CHART}/Chart.yaml has version and appVersion {sorted(chart)}, {PACKAGE} has {package}")
    return str(package)


def set_version(root: Path, version: str, day: date) -> None:
    """Write the version into package, chart and changelog.

    Raises:
        ReleaseError: see `dated`.
    """
    for name, pattern in ((PACKAGE, _OF_PACKAGE), (f"{CHART}/Chart.yaml", _OF_CHART)):
        text = (root / name).read_text()
        (root / name).write_text(pattern.sub(rf"\g<1>{version}\g<3>", text))
    (root / CHANGELOG).write_text(dated((root / CHANGELOG).read_text(), version, day))


def write_sums(folder: Path) -> None:
    """Write the digests of all files of a folder, as `sha256sum --check` reads them."""
    lines = []
    for path in sorted(folder.iterdir()):
        with path.open("rb") as file:
            lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.name}\n")
    (folder / SUMS).write_text("".join(lines))


def build_wheel(tree: Path, folder: Path) -> None:
    """Build the wheel, and try it, as `make wheel` does."""
    run(tree, str(tree / "tools" / "check_wheel.sh"), sys.prefix, str(folder))


def build_chart(tree: Path, folder: Path) -> None:
    """Pack the chart's committed files. The archive depends on nothing else: the same commit makes the same bytes."""
    version, names = current_version(tree), output(tree, "git", "ls-files", CHART).splitlines()
    packed = io.BytesIO()
    with (
        gzip.GzipFile(filename="", mode="wb", fileobj=packed, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name in sorted(names):
            content = (tree / name).read_bytes()
            entry = tarfile.TarInfo(f"cedana-sched/{Path(name).relative_to(CHART).as_posix()}")
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    (folder / f"cedana-sched-{version}.tgz").write_bytes(packed.getvalue())


def build_images(tree: Path, folder: Path) -> None:
    """Build the images with their SBOMs and provenance, as `make images` does."""
    run(tree, sys.executable, "-m", "tests.cluster.images.release", str(folder))


def lint(tree: Path) -> None:
    """Run `make lint`."""
    run(tree, "make", "--no-print-directory", "lint")


def check(root: Path, version: str) -> None:
    """Refuse a repository that cannot be released.

    Raises:
        ReleaseError: naming what is in the way.
    """
    check_version(version, current_version(root))
    if output(root, "git", "status", "--porcelain"):
        raise ReleaseError("the working tree has changes: commit them, or put them away")
    if (branch := output(root, "git", "rev-parse", "--abbrev-ref", "HEAD")) != BRANCH:
        raise ReleaseError(f"releases are made on {BRANCH}, and this is {branch}")
    if output(root, "git", "tag", "--list", f"v{version}"):
        raise ReleaseError(f"the tag v{version} exists already")


def release(root: Path, version: str, day: date, builds: Sequence[Build], checks: Callable[[Path], None]) -> Path:
    """Make a release; return the folder with its files.

    Raises:
        ReleaseError: a step failed, and nothing has changed.
    """
    check(root, version)
    base = output(root, "git", "rev-parse", "HEAD")
    dated((root / CHANGELOG).read_text(), version, day)
    checks(root)
    (root / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root / "build", prefix="release-") as scratch:
        tree, files = Path(scratch, "tree"), Path(scratch, "files")
        files.mkdir()
        try:
            output(root, "git", "worktree", "add", "--quiet", "--detach", str(tree), base)
            set_version(tree, version, day)
            # without hooks: they need the tools of the root, and the same checks have passed
            output(tree, "git", "commit", "--quiet", "--no-verify", "--all", f"--message=release: publish {version}")
            for build in builds:
                build(tree, files)
            write_sums(files)
            commit = output(tree, "git", "rev-parse", "HEAD")
        finally:
            shutil.rmtree(tree, ignore_errors=True)
            output(root, "git", "worktree", "prune")
        publish(root, version, commit)
        target = root / "build" / "release"
        shutil.rmtree(target, ignore_errors=True)
        return files.rename(target)


def publish(root: Path, version: str, commit: str) -> None:
    """Tag the commit, and move the branch to it; neither if one of them fails.

    Raises:
        ReleaseError: the branch has moved meanwhile, or the working tree has changes.
    """
    output(root, "git", "tag", "--annotate", f"--message=cedana-sched {version}", f"v{version}", commit)
    try:
        output(root, "git", "merge", "--quiet", "--ff-only", commit)
    except BaseException:
        output(root, "git", "tag", "--delete", f"v{version}")
        raise


def run(folder: Path, *command: str) -> None:
    """Run a command, and show its output.

    Raises:
        ReleaseError: it failed.
    """
    if subprocess.run(command, cwd=folder, check=False).returncode:
        raise ReleaseError(f"`{' '.join(command)}` has failed")


def output(folder: Path, *command: str) -> str:
    """Return what a command prints.

    Raises:
        ReleaseError: it failed; with what it says.
    """
    done = subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)
    if done.returncode:
        raise ReleaseError(f"`{' '.join(command)}` has failed: {done.stderr.strip()}")
    return done.stdout.strip()


def main(arguments: Sequence[str]) -> int:
    """Release the version that the command line names."""
    version = next(iter(arguments), "")
    try:
        made = release(ROOT, version, datetime.now(UTC).date(), (build_wheel, build_chart, build_images), lint)
    except ReleaseError as error:
        print(f"release: {error}; nothing has changed", file=sys.stderr)
        return 1
    print(f"release: v{version} is tagged on {BRANCH}, and its files are in {made.relative_to(ROOT)}; push both")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
