"""What each ServiceAccount of ours may do: as the chart gives it, as an API server lists it, as we expect it.

All three become one text, in the words of `kubectl auth can-i --list`, so that what differs is read line by line. What
is expected lies in `expected_rights/`, a file for each component.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias

from tests.cluster.api.client import Object
from tests.cluster.cluster import Cluster
from tests.cluster.commands import run
from tests.cluster.together import together
from tests.e2e.product.rendering import NAMESPACE, RELEASE, named, of_kind

EXPECTED = Path(__file__).with_name("expected_rights")

_ANOTHER_NAMESPACE = "default"
_HOOK = "helm.sh/hook"
_HEADING = re.compile(r"^(everywhere|in its own namespace)(?:, with (\w+))?:$")
_ROW = re.compile(r"^(\S*) +\[(.*)\] +\[(.*)\] +\[(.*)\]$")
_COLUMNS = ("Resources", "Non-Resource URLs", "Resource Names", "Verbs")


class Right(NamedTuple):
    """One verb on one thing, which is a resource, written `plural.group/subresource`, or a path of the API server."""

    resource: str
    path: str
    name: str
    """Of the only object that it counts for; empty: for all."""
    verb: str


Rights: TypeAlias = frozenset[Right]


@dataclass(frozen=True)
class Component:
    """Whoever works with a ServiceAccount; a hook of Helm's has rights that only count while it runs."""

    account: str
    is_hook: bool = False


COMPONENTS: Mapping[str, Component] = {
    "agent": Component(f"{RELEASE}-agent"),
    "coordinator": Component(f"{RELEASE}-coordinator"),
    "uninstallation": Component(f"{RELEASE}-coordinator", is_hook=True),
    "volcano-extender": Component(f"{RELEASE}-volcano-extender"),
    "webhooks": Component(f"{RELEASE}-webhooks"),
}
"""By the names of their files. What the uninstallation may do beside the coordinator is in its own."""


@dataclass(frozen=True)
class Reach:
    """All that an account may do: anywhere, and in the namespace of the release beside."""

    everywhere: Rights
    own: Rights

    @classmethod
    def of(cls, everywhere: Iterable[Right], own: Iterable[Right]) -> Reach:
        """Leave out of the namespace what counts anywhere."""
        anywhere = frozenset(everywhere)
        return cls(anywhere, frozenset(own) - anywhere)

    def beside(self, everybodys: Reach, wanted: Reach) -> Reach:
        """Leave out what every account of the namespace may do, but for what is wanted."""
        return Reach.of(
            self.everywhere - (everybodys.everywhere - wanted.everywhere), self.own - (everybodys.own - wanted.own)
        )

    def text(self) -> str:
        """Both as one text, for a comparison."""
        return written({("everywhere", ""): self.everywhere, ("in its own namespace", ""): self.own})


def expected(component: str, options: Collection[str]) -> Reach:
    """What a component is to have where these adapters, or other options, are on."""
    sections = read((EXPECTED / f"{component}.txt").read_text())
    places: dict[str, set[Right]] = {"everywhere": set(), "in its own namespace": set()}
    for (place, option), rights in sections.items():
        if not option or option in options:
            places[place] |= rights
    return Reach.of(*places.values())


def given_by_chart(objects: list[Object], component: str) -> Reach:
    """What a component gets by the bindings among these objects."""
    who = COMPONENTS[component]
    places: dict[str, set[Right]] = {"": set(), NAMESPACE: set()}
    for binding in of_kind(objects, "ClusterRoleBinding", "RoleBinding"):
        is_hook = _HOOK in binding["metadata"].get("annotations", {})
        if is_hook == who.is_hook and who.account in accounts_in(binding):
            role = named(objects, binding["roleRef"]["kind"], binding["roleRef"]["name"])
            places[binding["metadata"].get("namespace", "")].update(_of_rules(role["rules"]))
    return Reach.of(places[""], places[NAMESPACE])


async def listed(cluster: Cluster, account: str) -> Reach:
    """What an API server lets an account of the release's namespace do, whether there is such an account or not.

    Raises:
        ClusterError: kubectl failed.
    """
    asked = (
        run(
            cluster.binaries.program("kubectl"), f"--kubeconfig={cluster.kubeconfig}", "auth", "can-i", "--list",
            f"--as=system:serviceaccount:{NAMESPACE}:{account}", f"--namespace={namespace}",
            what=f"listing the rights of {account} failed", remedy="see the API server's log",
        )
        for namespace in (_ANOTHER_NAMESPACE, NAMESPACE)
    )  # fmt: skip
    everywhere, own = [read(text).get(("", ""), frozenset()) for text in await together(*asked)]
    return Reach.of(everywhere, own)


def accounts_in(binding: Object) -> set[str]:
    """The ServiceAccounts that a binding gives rights to."""
    return {subject["name"] for subject in binding["subjects"] if subject["kind"] == "ServiceAccount"}


def _of_rules(rules: Iterable[Object]) -> Iterator[Right]:
    for rule in rules:
        names, verbs = rule.get("resourceNames", [""]), rule["verbs"]
        for path, verb in itertools.product(rule.get("nonResourceURLs", ()), verbs):
            yield Right("", path, "", verb)
        rights = itertools.product(rule.get("apiGroups", ()), rule.get("resources", ()), names, verbs)
        yield from (Right(_as_kubectl_names(group, resource), "", name, verb) for group, resource, name, verb in rights)


def _as_kubectl_names(group: str, resource: str) -> str:
    plural, slash, subresource = resource.partition("/")
    return f"{plural}.{group}{slash}{subresource}" if group else resource


def read(text: str) -> dict[tuple[str, str], Rights]:
    """Return the rights under each heading, by place and adapter; those before any heading by two empty words.

    Raises:
        ValueError: a line is none that `written` or kubectl writes.
    """
    key, found = ("", ""), dict[tuple[str, str], set[Right]]()
    for line in filter(None, map(str.rstrip, text.splitlines())):
        if heading := _HEADING.match(line):
            key = (heading[1], heading[2] or "")
            found[key] = set()
        elif row := _ROW.match(line):
            paths, names, verbs = (cell.split() for cell in row.groups()[1:])
            of_row = itertools.product([row[1]], paths or [""], names or [""], verbs)
            found.setdefault(key, set()).update(itertools.starmap(Right, of_row))
        elif not line.startswith(_COLUMNS[0]):
            raise ValueError(f"{line!r} is no line of a list of rights")
    return {key: frozenset(rights) for key, rights in found.items()}


def written(sections: Mapping[tuple[str, str], Rights]) -> str:
    """Return the canonical text: sorted, a row for each thing and name, with all its verbs."""
    tables = []
    for (place, adapter), rights in sections.items():
        heading = f"{place}, with {adapter}:" if adapter else f"{place}:"
        tables.append("\n".join((heading, *_table(rights))) + "\n")
    return "\n".join(tables)


def _table(rights: Rights) -> Iterator[str]:
    verbs: dict[tuple[str, str, str], list[str]] = {}
    for resource, path, name, verb in sorted(rights):
        verbs.setdefault((resource, path, name), []).append(verb)
    rows = [
        _COLUMNS,
        *((what, f"[{path}]", f"[{name}]", f"[{' '.join(of)}]") for (what, path, name), of in verbs.items()),
    ]
    widths = [max(map(len, column)) + 3 for column in zip(*rows, strict=True)]
    for row in rows:
        yield "".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
