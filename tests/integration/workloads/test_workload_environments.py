"""A virtual environment that could not be filled is never used."""

from pathlib import Path

import pytest

from workloads.packages import PackageError, Packages


def test_an_environment_that_failed_is_not_taken_for_a_good_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("pip==0.0.0.invalid\n")
    packages = Packages(requirements=requirements)
    with pytest.raises(PackageError) as caught:
        packages.install()
    assert caught.value.package == "pip"
    assert caught.value.evidence
    assert packages.missing() == ("pip",)
