"""Strict sections of a document: pydantic models whose faults come all at once, with place, in our words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Set
from functools import lru_cache
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, Strict, ValidationError
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, ErrorDetails

from scenarios.document import Document, KeyPath
from scenarios.quantities import WrongValue, shown
from sim.errors import Fault, ScenarioError, nearest

T = TypeVar("T")
Many = Annotated[tuple[T, ...], Strict(False)]
"""A list in YAML, a tuple here; its items stay strict."""


class Section(BaseModel):
    """A mapping in a document: no key that is not declared, no conversion of types, no change afterwards.

    ``one_of`` lists groups of keys of which exactly one group must be given, whole. ``only_with`` maps a key to those
    without which it would say nothing. ``reserved`` are keys of later versions.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
    one_of: ClassVar[tuple[tuple[str, ...], ...]] = ()
    only_with: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    reserved: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    def keys(cls) -> dict[str, tuple[str, Any]]:
        """Every key as it is written, with its description (empty where optional) and its type."""
        return {
            field.alias or name: (field.description or "a value" if field.is_required() else "", field.annotation)
            for name, field in cls.model_fields.items()
        }

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        described = handler(schema)
        if cls.one_of:
            handler.resolve_ref_schema(described)["oneOf"] = [{"required": list(group)} for group in cls.one_of]
        return described


class Wrong(NamedTuple):
    """A fault that does not know its place yet."""

    path: KeyPath
    message: str
    suggestion: str | None = None


S = TypeVar("S", bound=Section)


def validate(kind: type[S], document: Document, others: Iterable[Wrong] = ()) -> S:
    """The document as a ``kind``.

    ``others`` are faults found by other means; they are reported with the rest, after it at the same path.

    Raises
    ------
    ScenarioError : every fault of the document, in the order of its lines.
    """
    value, wrongs = check(kind, document.data)
    faults = [*document.faults, *placed(document, [*wrongs, *others])]
    if faults or value is None:
        raise ScenarioError.of(in_order(faults))
    return value


def placed(document: Document, wrongs: Iterable[Wrong]) -> list[Fault]:
    """The first fault at each path, with file and line."""
    first = {wrong.path: wrong for wrong in reversed([*wrongs])}
    return [document.fault(*wrong) for wrong in first.values()][::-1]


def in_order(faults: Iterable[Fault]) -> list[Fault]:
    """Each fault once, by line; those without a line last."""
    return sorted(dict.fromkeys(faults), key=lambda fault: (fault.line is None, fault.line or 0))


def check(kind: type[S], data: Any) -> tuple[S | None, list[Wrong]]:
    """The data as a ``kind`` where it is one, and what is wrong with it."""
    wrongs = list(_wrong_keys(kind, data, ()))
    try:
        return kind.model_validate(data), wrongs
    except ValidationError as error:
        return None, wrongs + [in_our_words(each) for each in error.errors(include_url=False) if not _is_an_echo(each)]


def _wrong_keys(kind: type[Section], data: Any, path: KeyPath) -> Iterator[Wrong]:
    """Keys missing, unknown, reserved, without a value or at odds with each other, here and in the sections below."""
    if not isinstance(data, dict):
        return
    keys, hints = _known(kind), set[str | None]()
    for key, value in data.items():
        if key in kind.reserved:
            yield Wrong((*path, key), "reserved: not in this version")
        elif key not in keys and kind.model_config["extra"] == "forbid":
            hints.add(hint := nearest(key, keys))
            yield Wrong((*path, key), f"unknown key {shown(key)}", hint or f"known: {', '.join(keys)}")
        elif value is None:
            yield Wrong((*path, key), "has no value")
    given = data.keys() | {key for key in keys if hints and nearest(key, (key,)) in hints}  # one slip, one fault
    for key, (required, below) in keys.items():
        if required and key not in given:
            yield Wrong((*path, key), f"missing: {required}")
        if below is not None and key in data:
            for index, item in _items(data[key]):
                yield from _wrong_keys(below, item, (*path, key, *index))
    yield from _odd_company(kind, given, path)


@lru_cache
def _known(kind: type[Section]) -> Mapping[str, tuple[str, type[Section] | None]]:
    """Every key with its description (empty where optional), and the section below it, if any."""
    return {key: (required, _section_in(annotation)) for key, (required, annotation) in kind.keys().items()}


def _odd_company(kind: type[Section], given: Set[str], path: KeyPath) -> Iterator[Wrong]:
    groups = [group for group in kind.one_of if not given.isdisjoint(group)]
    if kind.one_of and len(groups) != 1:
        choices = ", ".join(" with ".join(group) for group in kind.one_of)
        found = " and ".join(key for group in groups for key in group if key in given) or "none"
        yield Wrong(path, f"expected exactly one of {choices}; got {found}")
        return
    for key in (key for group in groups for key in group if key not in given):
        yield Wrong((*path, key), f"missing: goes with {', '.join(other for other in groups[0] if other in given)}")
    for key, partners in kind.only_with.items():
        if key in given and given.isdisjoint(partners):
            yield Wrong((*path, key), f"{shown(key)} belongs with {' or '.join(partners)}, which is not given")


def _items(value: Any) -> Iterable[tuple[KeyPath, Any]]:
    return (((index,), item) for index, item in enumerate(value)) if isinstance(value, list) else [((), value)]


def _section_in(annotation: Any) -> type[Section] | None:
    """The section that a type is, holds or may be."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    return next((found for part in get_args(annotation) if (found := _section_in(part)) is not None), None)


_EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "keys and values",
    "model_type": "keys and values",
    "model_attributes_type": "keys and values",
}
_BOUNDS = {
    "greater_than": ("gt", "above"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "below"),
    "less_than_equal": ("le", "at most"),
}


def in_our_words(error: ErrorDetails) -> Wrong:
    """What pydantic found, as a user should read it."""
    kind, path, value, context = error["type"], error["loc"], error["input"], error.get("ctx", {})
    if kind == "value_error" and isinstance(wrong := context["error"], WrongValue):
        return Wrong(path, str(wrong), wrong.suggestion)
    if kind == "literal_error":
        options = re.findall(r"'([^']*)'", context["expected"])
        expected = options[0] if len(options) == 1 else f"one of {', '.join(options)}"
        return Wrong(path, f"expected {expected}, got {shown(value)}", nearest(str(value), options))
    if kind in _BOUNDS:
        bound, word = _BOUNDS[kind]
        return Wrong(path, f"must be {word} {context[bound]}, got {shown(value)}")
    if kind == "too_short":
        return Wrong(path, f"needs {context['min_length']} items, got {len(value)}" if value else "is empty")
    if kind == "too_long":
        return Wrong(path, f"at most {context['max_length']} items, got {len(value)}")
    if value is None:
        return Wrong(path, "has no value")
    if kind in _EXPECTED:
        number_as_text = kind == "string_type" and isinstance(value, int | float)
        return Wrong(
            path, f"expected {_EXPECTED[kind]}, got {shown(value)}", "put it in quotes" if number_as_text else None
        )
    return Wrong(path, f"not valid here: {shown(value)}")


def _is_an_echo(error: ErrorDetails) -> bool:
    """Whether it is reported by `_wrong_keys`, or says that a list is too short after its items were found wrong."""
    if error["type"] == "too_short":
        return bool(len(error["input"]) >= error["ctx"]["min_length"])
    return error["type"] in ("missing", "extra_forbidden")
