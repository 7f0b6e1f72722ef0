"""A release's texts: its version, its place in the changelog, the version of package and chart."""

from __future__ import annotations

import hashlib
from datetime import date
from pathlib import Path

import pytest

import cedana_sched
from tools.release import ReleaseError, check_version, current_version, dated, set_version, write_sums

ROOT = Path(__file__).resolve().parents[3]
DAY = date(2031, 2, 3)
CHANGELOG = """# Changelog

## [Unreleased]

### Added

- A change.

## [0.1.0] - 2030-01-01

- The first.
"""


@pytest.mark.parametrize("version", ["0.1.0", "0.1.1", "0.10.0", "1.0.0"])
def test_a_version_is_the_current_one_or_higher(version: str) -> None:
    check_version(version, "0.1.0")


@pytest.mark.parametrize("version", ["", "1.2", "v1.2.3", "1.2.3-rc1", "01.2.3", "1.2.3\n", "0.9.9", "0.10.0"])
def test_other_versions_are_refused(version: str) -> None:
    with pytest.raises(ReleaseError):
        check_version(version, "0.10.1")


def test_unreleased_changes_are_dated_below_an_empty_heading() -> None:
    released = dated(CHANGELOG, "0.2.0", DAY)
    assert released == CHANGELOG.replace("## [Unreleased]\n", "## [Unreleased]\n\n## [0.2.0] - 2031-02-03\n")
    with pytest.raises(ReleaseError, match="no changes"):
        dated(released, "0.3.0", DAY)


def test_a_changelog_without_other_versions_is_dated() -> None:
    first = CHANGELOG[: CHANGELOG.index("## [0.1.0]")]
    assert dated(first, "0.1.0", DAY).endswith("## [0.1.0] - 2031-02-03\n\n### Added\n\n- A change.\n\n")


def test_a_version_that_has_changes_is_refused() -> None:
    with pytest.raises(ReleaseError, match=r"0\.1\.0 already"):
        dated(CHANGELOG, "0.1.0", DAY)


def test_package_and_chart_of_this_repository_have_one_version() -> None:
    assert current_version(ROOT) == cedana_sched.__version__


def test_the_version_is_set_everywhere(tmp_path: Path) -> None:
    for name in ("CHANGELOG.md", "cedana_sched/__init__.py", "manifests/chart/Chart.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text())
    before = (tmp_path / "manifests/chart/Chart.yaml").read_text()
    set_version(tmp_path, "98.7.6", DAY)
    assert current_version(tmp_path) == "98.7.6"
    after = (tmp_path / "manifests/chart/Chart.yaml").read_text()
    changed = [line for line, was in zip(after.splitlines(), before.splitlines(), strict=True) if line != was]
    assert changed == ["version: 98.7.6", "appVersion: 98.7.6"]
    assert "## [98.7.6] - 2031-02-03" in (tmp_path / "CHANGELOG.md").read_text()


def test_a_chart_of_another_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cedana_sched").mkdir()
    (tmp_path / "cedana_sched/__init__.py").write_text('__version__ = "1.0.0"\n')
    (tmp_path / "manifests/chart").mkdir(parents=True)
    (tmp_path / "manifests/chart/Chart.yaml").write_text("version: 1.0.0\nappVersion: 0.9.0\n")
    with pytest.raises(ReleaseError, match=r"0\.9\.0"):
        current_version(tmp_path)


def test_sums_name_each_file(tmp_path: Path) -> None:
    (tmp_path / "b.tgz").write_bytes(b"b")
    (tmp_path / "a.whl").write_bytes(b"a")
    write_sums(tmp_path)
    lines = (tmp_path / "SHA256SUMS").read_text().splitlines()
    assert lines == [f"{hashlib.sha256(name[:1].encode()).hexdigest()}  {name}" for name in ("a.whl", "b.tgz")]
