"""What is missing is named, and a failed installation names its package."""

from pathlib import Path

import pytest

from workloads.packages import PackageError, Packages, cache_directory


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "cedana-sched"


def requirements(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "requirements.txt"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_the_cache_obeys_the_environment(cache: Path) -> None:
    assert cache_directory() == cache


def test_missing_debian_and_pypi_packages_are_named_once(tmp_path: Path) -> None:
    path = requirements(tmp_path, "alpha==1 ; python_version < '3.12' \\", "alpha==2 \\", "beta==3 \\")
    packages = Packages(debian=("dpkg", "cedana-sched-no-such-package"), requirements=path)
    assert packages.missing() == ("cedana-sched-no-such-package", "alpha", "beta")


def test_no_packages_are_never_missing() -> None:
    assert Packages().missing() == ()


def test_without_apt_the_debian_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PackageError, match="no apt-get") as caught:
        Packages(debian=("gromacs",)).install()
    assert caught.value.package == "gromacs"
