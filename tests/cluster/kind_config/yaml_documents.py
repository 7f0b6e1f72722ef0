"""YAML as kind reads it: a key stands once, and in kind's own file a scalar is text until a field gives it a type."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import yaml

from tests.cluster.kind_config.refusal import RefusedFieldError

_KEPT = ("tag:yaml.org,2002:null", "tag:yaml.org,2002:merge")


class _KeysOnce(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag not in _KEPT:
                if key.value in seen:
                    problem = f"the key {key.value!r} stands twice"
                    raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


class _TextScalars(_KeysOnce):
    """`gpu: true` and `zone: 08` below `labels` are text for kind, whose fields have types."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - as PyYAML declares it
        first: [(tag, pattern) for tag, pattern in resolvers if tag in _KEPT]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def kind_document(text: str) -> dict[str, Any]:
    """Kind's own file.

    Raises:
        RefusedFieldError: it is not one mapping.
    """
    documents = _load(text, _TextScalars, "")
    if len(documents) != 1:
        raise RefusedFieldError("", len(documents), "documents are in it", remedy="write one Cluster")
    return documents[0]


def patch_documents(text: str, field: str) -> list[dict[str, Any]]:
    """What one entry of `kubeadmConfigPatches` holds.

    Raises:
        RefusedFieldError: it is not mappings.
    """
    return _load(text, _KeysOnce, field)


def _load(text: str, loader: type[yaml.SafeLoader], field: str) -> list[dict[str, Any]]:
    try:
        found = [document for document in yaml.load_all(text, loader) if document is not None]
    except yaml.MarkedYAMLError as error:
        place = f"line {error.problem_mark.line + 1}" if error.problem_mark else "its end"
        raise RefusedFieldError(field, place, f"is not YAML: {error.problem}", remedy="correct it there") from error
    except (yaml.YAMLError, ValueError) as error:
        raise RefusedFieldError(
            field, text, f"is not YAML: {' '.join(str(error).split())}", remedy="correct it"
        ) from error
    for document in found:
        if not isinstance(document, dict):
            raise RefusedFieldError(field, document, "is no mapping", remedy="write fields and their values")
    return found
