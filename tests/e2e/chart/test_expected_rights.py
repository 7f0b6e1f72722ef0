"""The chart gives each component what `expected_rights/` says, whatever is on, and nobody else anything."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cluster.binaries.build import Binaries
from tests.e2e.chart.listed_rights import (
    COMPONENTS,
    EXPECTED,
    accounts_in,
    expected,
    given_by_chart,
    read,
    written,
)
from tests.e2e.product.rendering import of_kind, pods_of, render

pytestmark = pytest.mark.any_shape

STORE: dict[str, Any] = {"storage": {"posix": {"path": "/data/snapshots"}}}
OPTIONS: dict[str, dict[str, Any]] = {
    "armada": {"armada": {"enabled": True, "url": "armada.example:50051", "queues": ["bio"]}},
    "credentials": {
        "storage": {"s3": {"bucket": "snapshots", "existingSecret": "keys", "scopedCredentials": {"enabled": True}}}
    },
    "kueue": {"kueue": {"enabled": True}},
    "volcano": {"volcano": {"enabled": True, "extender": {"enabled": True}}},
}
"""Values of what gives rights where it is on, by the words of `expected_rights/`."""
PRINTED = """\
Resources                                 Non-Resource URLs   Resource Names   Verbs
selfsubjectreviews.authentication.k8s.io  []                  []               [create]
checkpoints.sched.cedana.ai/status        []                  [a b]            [get patch]
                                          [/healthz /livez]   []               [get]
"""
CHOICES = [(), *((name,) for name in OPTIONS), tuple(OPTIONS)]


def values(*chosen: str) -> dict[str, Any]:
    """Of a release with these options."""
    return {key: value for one in (STORE, *map(OPTIONS.__getitem__, chosen)) for key, value in one.items()}


@pytest.mark.parametrize("chosen", CHOICES, ids=lambda chosen: "+".join(chosen) or "none")
async def test_the_chart_gives_what_is_expected(helm: Binaries, chosen: tuple[str, ...]) -> None:
    objects = await render(helm, values(*chosen))
    for component in COMPONENTS:
        assert given_by_chart(objects, component).text() == expected(component, chosen).text(), component


async def test_no_other_account_has_rights(helm: Binaries) -> None:
    objects = await render(helm, values(*OPTIONS))
    ours = {component.account for component in COMPONENTS.values()}
    bindings = of_kind(objects, "ClusterRoleBinding", "RoleBinding")
    assert {account for binding in bindings for account in accounts_in(binding)} == ours
    assert {subject["kind"] for binding in bindings for subject in binding["subjects"]} == {"ServiceAccount"}
    for name, pod in pods_of(objects):
        assert pod.get("serviceAccountName") in ours or pod["automountServiceAccountToken"] is False, name


async def test_each_file_is_of_a_component_and_in_its_one_form() -> None:
    assert {path.stem for path in EXPECTED.iterdir()} == COMPONENTS.keys()
    for path in EXPECTED.iterdir():
        sections = read(path.read_text())
        assert path.read_text() == written(sections), path
        assert {option for _, option in sections} <= {"", *OPTIONS}, path


async def test_what_kubectl_prints_is_understood() -> None:
    (rights,) = read(PRINTED).values()
    assert rights == {
        ("selfsubjectreviews.authentication.k8s.io", "", "", "create"),
        *(("checkpoints.sched.cedana.ai/status", "", name, verb) for name in "ab" for verb in ("get", "patch")),
        *(("", path, "", "get") for path in ("/healthz", "/livez")),
    }
    with pytest.raises(ValueError, match="no line of a list"):
        read("pods   everything")
