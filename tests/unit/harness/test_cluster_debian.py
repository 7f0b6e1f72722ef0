"""Roots of Debian: what of this machine's apt goes into them, and what their names depend on."""

from __future__ import annotations

import pytest

from tests.cluster import debian

DUMP = """\
Acquire::Languages "";
Acquire::Languages:: "none";
Acquire::GzipIndexes "true";
Acquire::http "";
Acquire::http::Proxy "http://proxy.example:3128/";
Acquire::https::CAInfo "/etc/ssl/company.crt";
Acquire::https::Verify-Peer "true";
Acquire::Check-Valid-Until "false";
Acquire::Check-Date "false";
Acquire::Retries "";
APT::Update::Post-Invoke:: "rm -f /var/cache/apt/*.bin || true";
Dir::Cache "var/cache/apt";
"""


def test_only_how_files_are_fetched_is_taken_over() -> None:
    assert debian.transport_settings(DUMP) == {
        "Acquire::http::Proxy": "http://proxy.example:3128/",
        "Acquire::https::CAInfo": "/etc/ssl/company.crt",
        "Acquire::https::Verify-Peer": "true",
        "Acquire::Check-Valid-Until": "false",
        "Acquire::Check-Date": "false",
    }


def test_a_base_is_of_one_architecture_and_one_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    before = debian.base_digest("amd64")
    assert before == debian.base_digest("amd64")
    assert before != debian.base_digest("arm64")
    monkeypatch.setattr(debian, "RECIPE", debian.RECIPE + 1)
    assert before != debian.base_digest("amd64")
