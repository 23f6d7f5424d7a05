"""What numbers and words of our documents may be, said where a field is declared.

A number out of its range is refused when a document is read. Words are only published, in the JSON
Schema: a later version may know more of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec
from msgspec import Meta

from stepscope.errors import FormatError
from stepscope.protocol.json_text import json_text
from stepscope.protocol.untrusted import TOO_DEEP, parse_json

Count = Annotated[int, Meta(ge=0)]
AtLeastZero = Annotated[float, Meta(ge=0)]
AboveZero = Annotated[float, Meta(gt=0)]
Share = Annotated[float, Meta(ge=0, le=1)]
Gain = Annotated[float, Meta(ge=1)]
"""A speedup that is never a loss."""


def one_of(*words: str) -> Meta:
    """Constraint of a text: one of these."""
    return Meta(extra_json_schema={"enum": list(words)})


def like(pattern: str) -> Meta:
    """Constraint of a text: what the regular expression matches."""
    return Meta(extra_json_schema={"pattern": pattern})


def keys_of(*words: str) -> Meta:
    """Constraint of a mapping: its keys are among these."""
    return Meta(extra_json_schema={"propertyNames": {"enum": list(words)}})


T = TypeVar("T")


def decode_json(data: bytes | str, shape: type[T]) -> T:
    """The text as a `shape`. ValueError, and nothing else, where it is none; bytes that are no
    characters become U+FFFD.

    Fast, for files of any size. Whole numbers may have more than 64 bits: untrusted.whole and
    finite judge them.
    """
    return decode_with(msgspec.json.Decoder(shape), data)


def decode_with(decoder: msgspec.json.Decoder[T], data: bytes | str) -> T:
    """The same by a decoder that is made once."""
    try:
        try:
            return decoder.decode(data)
        except UnicodeDecodeError:
            text = data.decode("utf-8", "replace") if isinstance(data, bytes) else data
            return decoder.decode(text.encode("utf-8", "replace"))
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    except (OverflowError, msgspec.MsgspecError) as problem:
        raise ValueError(str(problem)) from None


def convert_json(data: bytes | str, shape: type[T]) -> T:
    """The text as a `shape`, each number finite and of 64 bits or None. ValueError where it is
    none. For small files."""
    return convert_value(parse_json(data), shape)


def convert_value(value: Any, shape: type[T]) -> T:
    """The same of what `parse_json` gave."""
    try:
        return msgspec.convert(value, shape)
    except (OverflowError, RecursionError, msgspec.MsgspecError) as problem:
        raise ValueError(str(problem)) from None


MANY = 16
"""Items of a list, from which they are written one by one."""


class Contract(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema"):
    """The JSON of one command; its tag is the name of its schema, and the key `schema` of its
    JSON."""

    AGAIN: ClassVar[str] = "Make it again"
    """What to do where one cannot be read."""
    IS_CLOSED: ClassVar[bool] = True
    """Whether its JSON Schema refuses keys that it does not name."""


D = TypeVar("D", bound=Contract)


def schema_of(shape: type[Contract]) -> str:
    """`stepscope.diagnosis/1`."""
    return str(shape.__struct_config__.tag)


def plain(contract: Contract) -> dict[str, Any]:
    """The document as dicts and lists, its keys in order."""
    values: dict[str, Any] = msgspec.to_builtins(contract, enc_hook=_builtin)
    return values


def encode(contract: Contract) -> str:
    """Encode as indented text."""
    return json_text(plain_by_item(contract), indent=2)


def plain_by_item(contract: Contract) -> dict[str, Any]:
    """Make plain as `plain` does, but the items of long lists only when they are written: of
    hundreds of ranks, dicts and lists would be most of what a command holds."""
    fields = zip(contract.__struct_fields__, contract.__struct_encode_fields__, strict=True)
    long = {
        name: (key, items)
        for name, key in fields
        if isinstance(items := getattr(contract, name), tuple) and len(items) > MANY
    }
    values = plain(
        msgspec.structs.replace(contract, **{name: items[:1] for name, (_, items) in long.items()})
    )
    for key, items in long.values():
        values[key] = _PlainItems(items)
    return values


class _PlainItems(list[Any]):
    """Items of a contract, each made plain when it is asked for."""

    def __iter__(self) -> Iterator[Any]:
        return (msgspec.to_builtins(item, enc_hook=_builtin) for item in super().__iter__())


def decode(text: str | bytes, shape: type[D], where: str, *, is_strict: bool = False) -> D:
    """FormatError where it is none. Half characters, which names may hold, are let by. NaN was not
    measured, and is refused where the reader is strict."""
    schema = schema_of(shape)
    kind = schema.removeprefix("stepscope.").partition("/")[0]
    try:
        value = parse_json(text, is_strict=is_strict)
        if isinstance(value, dict):
            _check_schema(value.get("schema"), schema)
        return convert_value(value, shape)
    except ValueError as problem:
        message = f"{where} is not a {kind} of the schema {schema!r}: {problem}. {shape.AGAIN}"
        raise FormatError(message) from None


def _check_schema(given: object, schema: str) -> None:
    if given != schema:
        has = f"the schema {given[:80]!r}" if isinstance(given, str) else "no schema"
        raise ValueError(f"it has {has}, and this version reads {schema!r}")


def _builtin(value: Any) -> Any:
    """Numbers of numpy that are Python's too."""
    if isinstance(value, float):
        return float(value)
    raise TypeError(f"{type(value).__name__} has no JSON")
