"""The JSON Schema of a document, made of its structs.

Descriptions are the docstrings of classes and fields, so that who reads the code and who reads the
schema read the same.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec.inspect import DataclassType, StructType, Type, type_info

from stepscope.core.codec import Contract, schema_of
from stepscope.core.diagnosis import DiagnosisDocument
from stepscope.core.experiments.comparison import Comparisons
from stepscope.core.experiments.experiment import Verified
from stepscope.core.experiments.fixed import Fixed
from stepscope.live.shapes.alert import Alert
from stepscope.live.shapes.triage import Triage
from stepscope.plan.contract.collective import CollectiveContract
from stepscope.plan.contract.launch import CheckContract, LaunchContract
from stepscope.plan.contract.plan import PlanContract
from stepscope.plan.contract.plan_calibration import PlanCalibration, PlanComparisonContract
from stepscope.scaling.contract import ScalingContract
from stepscope.tune.shapes.tuning import Tuning

DOCUMENTS: tuple[type[Contract], ...] = (
    Comparisons,
    DiagnosisDocument,
    Fixed,
    Verified,
    Alert,
    Triage,
    CheckContract,
    CollectiveContract,
    LaunchContract,
    PlanCalibration,
    PlanComparisonContract,
    PlanContract,
    ScalingContract,
    Tuning,
)
"""Those that have a published schema."""
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def file_name(shape: type[Contract]) -> str:
    """`diagnosis.schema.json`."""
    return f"{_kind(shape)[0]}.schema.json"


def json_schema(shape: type[Contract]) -> dict[str, Any]:
    """The schema of what this version writes: every key is required but those that may be UNSET."""
    components = msgspec.json.schema_components([shape])[1]
    classes = {cls.__name__: cls for cls in _classes(type_info(shape))}
    for name, schema in components.items():
        _complete(schema, classes[name], is_closed=shape.IS_CLOSED)
    document = components.pop(shape.__name__)
    document["properties"]["schema"] = {"const": schema_of(shape)}
    kind, version = _kind(shape)
    return {
        "$schema": DIALECT,
        "$id": f"urn:stepscope:{kind}:{version}",
        "title": schema_of(shape),
        **document,
        "$defs": dict(sorted(components.items())),
    }


def _kind(shape: type[Contract]) -> tuple[str, str]:
    kind, _, version = schema_of(shape).removeprefix("stepscope.").partition("/")
    return kind, version


def _complete(schema: dict[str, Any], cls: type, *, is_closed: bool) -> None:
    """Adds to what msgspec says of a class what its source says, and closes it."""
    del schema["title"]
    schema["description"] = _words(cls.__doc__ or "")
    docs = _field_docs(cls)
    properties: dict[str, dict[str, Any]] = schema["properties"]
    always = {name for name, field in properties.items() if "default" in field}
    always.update(schema["required"])
    schema["required"] = [name for name in properties if name in always]
    for name, field in properties.items():
        field.pop("default", None)
        properties[name] = _with_null(field) | ({"description": docs[name]} if name in docs else {})
    if is_closed:
        schema["additionalProperties"] = False


def _with_null(field: dict[str, Any]) -> dict[str, Any]:
    """`{"type": ["number", "null"]}` in place of two alternatives, where it says the same."""
    match field:
        case {"anyOf": [{"type": str(name)} as schema, {"type": "null"}]} if "enum" not in schema:
            return {**schema, "type": [name, "null"]}
    return field


def _classes(shape: Type) -> Iterator[type]:
    """Every class that a type is built of."""
    if isinstance(shape, StructType | DataclassType):
        yield shape.cls
        for field in shape.fields:
            yield from _classes(field.type)
        return
    for name in ("type", "item_type", "value_type", "types", "item_types"):
        inner = getattr(shape, name, ())
        for part in (inner,) if isinstance(inner, Type) else inner:
            yield from _classes(part)


def _field_docs(cls: type) -> dict[str, str]:
    """The strings that stand under the fields of a class, and of those it inherits from; by the
    fields' names in JSON."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith("stepscope."):
            docs.update(_own_field_docs(base))
    fields = getattr(cls, "__struct_fields__", ())
    encoded = dict(zip(fields, getattr(cls, "__struct_encode_fields__", ()), strict=True))
    return {encoded.get(name, name): text for name, text in docs.items()}


def _own_field_docs(cls: type) -> Iterator[tuple[str, str]]:
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(tree, ast.ClassDef)
    for field, below in zip(tree.body, tree.body[1:], strict=False):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                yield name, _words(text)


def _words(text: str) -> str:
    """On one line, with JSON's word for None."""
    return re.sub(r"\bNone\b", "null", " ".join(text.split()))
