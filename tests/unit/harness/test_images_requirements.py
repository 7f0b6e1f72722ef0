"""Requirements of an image are those of its own Python, not of the Python that downloads them."""

from __future__ import annotations

import pytest

from tests.cluster.images.requirements import for_python

TEXT = """\
--require-hashes
numpy==2.4.6 \\
    --hash=sha256:aa \\
    --hash=sha256:bb
    # via xgboost
scipy==1.17.1 ; python_full_version < '3.12' \\
    --hash=sha256:cc
    # via ; xgboost
scipy==1.18.1 ; python_full_version >= '3.12' \\
    --hash=sha256:dd
plain ; python_version > '3.11'
plain==1
"""


@pytest.mark.parametrize(("version", "expected"), [("3.13", ["1.18.1", "dd"]), ("3.11", ["1.17.1", "cc"])])
def test_one_of_two_versions_is_kept(version: str, expected: list[str]) -> None:
    number, digest = expected
    lines = for_python(TEXT, version).splitlines()
    assert [line for line in lines if "scipy" in line] == [f"scipy=={number} \\"]
    assert [line.strip() for line in lines if "dd" in line or "cc" in line] == [f"--hash=sha256:{digest}"]
    assert ("plain" in lines) == (version == "3.13")


def test_what_has_no_marker_is_left_as_it_is() -> None:
    numpy = "numpy==2.4.6 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n"
    assert numpy in for_python(TEXT, "3.13")
