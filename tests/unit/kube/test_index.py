"""An index follows what changes, under the key that an object has now."""

from __future__ import annotations

from typing import Any, cast

from cedana_sched.kube.builtin_kinds import Metadata, Pod
from cedana_sched.kube.index import Index
from cedana_sched.kube.watching import Informer
from cedana_sched.model.objects import names


def pod(name: str, node: str | None, uid: str = "1") -> Pod:
    labels = {} if node is None else {names.NODE: node}
    return Pod(Metadata(name=name, namespace="bio", uid=uid, resource_version=f"{node}-{uid}", labels=labels))


def followed(*pods: Pod) -> tuple[Informer[Pod], Index[str, Pod]]:
    informer: Informer[Pod] = Informer(cast("Any", None))
    informer._replace(pods)
    return informer, Index(lambda one: one.metadata.labels.get(names.NODE), informer)


def names_under(index: Index[str, Pod], key: str) -> list[str]:
    return [one.metadata.name for one in index.objects_of(key)]


def test_what_was_there_before_and_what_comes_is_found_by_its_key() -> None:
    informer, index = followed(pod("a", "n1"))
    informer._put(pod("b", "n1"))
    informer._put(pod("c", None))
    assert names_under(index, "n1") == ["a", "b"]
    assert index.unique_object_of("n1") == pod("a", "n1")
    assert index.objects_of("n2") == ()
    assert index.unique_object_of("n2") is None


def test_an_object_is_under_the_key_that_it_has_now() -> None:
    informer, index = followed(pod("a", "n1"), pod("b", "n1"))
    informer._put(pod("a", "n2"))
    assert (names_under(index, "n1"), names_under(index, "n2")) == (["b"], ["a"])
    informer._put(pod("a", None))
    assert index.objects_of("n2") == ()
    informer._put(pod("a", "n1"))
    assert names_under(index, "n1") == ["b", "a"], "what has changed last comes last"


def test_what_is_gone_is_not_found_and_leaves_nothing_behind() -> None:
    informer, index = followed(pod("a", "n1"))
    informer._put(pod("a", "n1", uid="2"))
    assert index.unique_object_of("n1") == pod("a", "n1", uid="2"), "made anew, unseen"
    informer._drop(pod("a", "n1", uid="2"))
    assert index.objects_of("n1") == ()
    assert not index._found
