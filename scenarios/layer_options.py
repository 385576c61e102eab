"""What may stand behind the name of a layer in a model file, read strictly: every fault with its path."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from sim.errors import Fault, nearest

LARGEST = 1_000_000
"""Largest whole number of a model file."""

Options = Mapping[str, Any]
"""Options of a layer as read: whole numbers, (height, width) of windows, flags."""
Value = Literal["nothing", "'in_place' or nothing", "a probability from 0 up to 1"]


@dataclass(frozen=True, slots=True)
class Option:
    """A key of a layer: a whole number from ``least``, one for height and width or a pair of them, or a flag.

    ``default``: a value, the name of the option whose value it takes, or ``None`` where the key must be given.
    """

    default: int | str | None = None
    least: int = 1
    form: Literal["whole", "sides", "flag"] = "whole"


def read_value(kind: str, takes: Mapping[str, Option] | Value, value: Any, path: str, faults: list[Fault]) -> Options:
    """The options behind ``kind``; those with faults are left out."""
    if not isinstance(takes, str):
        return read_options(takes, value, path, faults)
    if takes == "a probability from 0 up to 1":
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
            faults.append(Fault(f"expected {takes}, got {shown(value)}", path))
    elif value == "in_place" and takes == "'in_place' or nothing":
        return {"in_place": True}
    elif value is not None:
        faults.append(Fault(f"expected {takes} behind '{kind}:', got {shown(value)}", path))
    return {}


def read_options(known: Mapping[str, Option], value: Any, path: str, faults: list[Fault]) -> Options:
    """The options of a mapping, defaults filled in."""
    if not isinstance(value, Mapping):
        faults.append(Fault(f"expected options such as {{{next(iter(known))}: 2}}, got {shown(value)}", path))
        return {}
    faults += unknown_keys(value, known, path)
    options: dict[str, Any] = {}
    for key, option in known.items():
        if key not in value and option.default is None:
            faults.append(Fault(f"'{key}' is missing", path))
        elif key not in value and isinstance(option.default, str):
            options[key] = options.get(option.default)
        else:
            options[key] = _read_option(option, value.get(key, option.default), f"{path}.{key}", faults)
    return options


def _read_option(option: Option, given: Any, path: str, faults: list[Fault]) -> Any:
    if option.form == "flag":
        if not isinstance(given, bool):
            faults.append(Fault(f"expected true or false, got {shown(given)}", path))
        return given
    if is_whole(given, option.least):
        return (given, given) if option.form == "sides" else given
    if option.form == "sides" and len(pair := as_list(given)) == 2 and all(is_whole(n, option.least) for n in pair):
        return tuple(pair)
    pair_too = " or [height, width]" if option.form == "sides" else ""
    expected = f"expected a whole number from {option.least} to {LARGEST}{pair_too}"
    faults.append(Fault(f"{expected}, got {shown(given)}", path))
    return None


def unknown_keys(given: Mapping[str, Any], known: Iterable[str], path: str) -> list[Fault]:
    """A fault for each key that is not ``known``."""
    known = tuple(known)
    return [
        Fault(f"unknown key {shown(key)}", f"{path}.{key}" if path else str(key), suggestion=nearest(str(key), known))
        for key in given
        if key not in known
    ]


def as_list(value: Any) -> Sequence[Any]:
    """A list as it is; nothing for whatever is none."""
    return value if isinstance(value, list | tuple) else ()


def is_whole(value: Any, least: int) -> bool:
    """Whether this is a whole number from ``least`` to `LARGEST`."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= LARGEST


def shown(value: Any) -> str:
    """A value for a message, cut short; Python refuses to write out whole numbers of thousands of digits."""
    return "a huge number" if isinstance(value, int) and abs(value) > 10**30 else reprlib.repr(value)
