"""Conversion of a model's pydantic JSON schema to a Kubernetes structural schema."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.alias_generators import to_camel

Schema = dict[str, Any]


def structural(model: type[BaseModel], *, with_defaults: bool = True) -> Schema:
    """Return the schema of a model, without references, alternatives and titles.

    `with_defaults` adds defaults, which the API server persists in objects that users write, so that they are visible.
    """
    schema = model.model_json_schema(by_alias=True, mode="validation")
    definitions: Schema = schema.pop("$defs", {})
    return _Structural(definitions, with_defaults=with_defaults).of(schema)


class _Structural:
    def __init__(self, definitions: Schema, *, with_defaults: bool) -> None:
        self._definitions = definitions
        self._with_defaults = with_defaults

    def of(self, node: Schema) -> Schema:
        node = self._resolved(node)
        title, kept = node.get("title"), {}
        description = node.get("description") or _DOCS.classes.get(str(title), "")
        if description:
            kept["description"] = _sentence(description)
        if node.get("format") == "date-time" or node["type"] != "object":
            kept |= self._scalar_or_list(node)
        else:
            kept |= self._object(node, str(title))
        if self._with_defaults and node.get("default") is not None:
            default = node["default"]
            kept["default"] = {} if isinstance(default, dict) else default
        return kept

    def _resolved(self, node: Schema) -> Schema:
        """Resolve `$ref`, and drop the alternative null: an absent field stands for null."""
        node = dict(node)
        alternatives = [each for each in node.pop("anyOf", []) if each.get("type") != "null"]
        if len(alternatives) > 1:
            raise ValueError(f"an API server supports no alternatives: {alternatives}")
        for each in alternatives:
            node = {**each, **node}
        if reference := node.pop("$ref", None):
            return self._resolved({**self._definitions[reference.rpartition("/")[2]], **node})
        return node

    def _scalar_or_list(self, node: Schema) -> Schema:
        plain = ("type", "format", "enum", "pattern", "minLength", "maxLength", "minimum", "maximum")
        kept = {name: node[name] for name in plain if name in node}
        if "const" in node:
            kept["enum"] = [node["const"]]
        if "exclusiveMinimum" in node:
            kept |= {"minimum": node["exclusiveMinimum"], "exclusiveMinimum": True}
        if node["type"] in {"integer", "number"}:
            kept.setdefault("format", {"integer": "int64", "number": "double"}[node["type"]])
        if node["type"] == "array":
            kept["items"] = self.of(node["items"])
            if self._resolved(node["items"]).get("title") == "Condition":
                kept |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
        return kept

    def _object(self, node: Schema, title: str) -> Schema:
        kept: Schema = {"type": "object"}
        if node.get("x-kubernetes-preserve-unknown-fields"):
            return kept | {"x-kubernetes-preserve-unknown-fields": True}
        if isinstance(node.get("additionalProperties"), dict):
            return kept | {"additionalProperties": self.of(node["additionalProperties"])}
        if node.get("required"):
            kept["required"] = node["required"]
        documented = _DOCS.fields(title)
        kept["properties"] = {
            name: self.of({"description": documented.get(name), **field}) for name, field in node["properties"].items()
        }
        return kept


class _Docstrings:
    """Docstrings of classes, and of their fields or members, in the source files of the models."""

    def __init__(self, folder: Path) -> None:
        self.classes: dict[str, str] = {}
        self._bases: dict[str, list[str]] = {}
        self._fields: dict[str, dict[str, str]] = {}
        for path in sorted(folder.rglob("*.py")):
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef):
                    self.classes[node.name] = ast.get_docstring(node) or ""
                    self._bases[node.name] = [base.id for base in node.bases if isinstance(base, ast.Name)]
                    self._fields[node.name] = dict(_documented(node))

    def fields(self, name: str) -> dict[str, str]:
        """Return the docstrings of a class's own and inherited fields, by the fields' names in objects."""
        inherited: dict[str, str] = {}
        for base in self._bases.get(name, ()):
            inherited |= self.fields(base)
        return inherited | {to_camel(field): text for field, text in self._fields.get(name, {}).items()}


def _documented(node: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for field, after in zip(node.body, node.body[1:], strict=False):
        match field, after:
            case (
                ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                yield name, text


def _sentence(text: str) -> str:
    """Return the text as one line, with fields named as in objects (camelCase)."""
    in_objects = re.sub(r"`([a-z]+(?:_[a-z]+)+)`", lambda found: f"`{to_camel(found[1])}`", text)
    return " ".join(in_objects.split())


_DOCS = _Docstrings(Path(__file__).resolve().parents[1] / "cedana_sched/model")
