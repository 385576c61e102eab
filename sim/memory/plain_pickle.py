"""Pickles of plain data, read without running any of them.

A pickle is a program for a stack machine. This machine knows the instructions that build dict, list, tuple, str, int,
float, bool and None in protocols 2 to 5, and no other: nothing is imported, called or sized by what the file says.
"""

from __future__ import annotations

import pickletools
import struct
from typing import Any

from sim.errors import BadTraceFile

MOST_BYTES = 2**29
_MOST_OBJECTS = 20_000_000  # containers and remembered values: one byte each in a file, a hundred in memory
_MOST_STACKED, _DEEPEST = 100_000, 100
_NAMES = {ord(opcode.code): opcode.name for opcode in pickletools.opcodes}
_CODES = {opcode.name: ord(opcode.code) for opcode in pickletools.opcodes}

_MEMOIZE, _BINPUT, _LONG_BINPUT = _CODES["MEMOIZE"], _CODES["BINPUT"], _CODES["LONG_BINPUT"]
_BINGET, _LONG_BINGET = _CODES["BINGET"], _CODES["LONG_BINGET"]
_MARK, _STOP, _PROTO, _FRAME, _LONG1 = (_CODES[name] for name in ("MARK", "STOP", "PROTO", "FRAME", "LONG1"))
_APPEND, _APPENDS, _SETITEM, _SETITEMS = (_CODES[name] for name in ("APPEND", "APPENDS", "SETITEM", "SETITEMS"))
_LENGTH = {_CODES["SHORT_BINUNICODE"]: 1, _CODES["BINUNICODE"]: 4, _CODES["BINUNICODE8"]: 8}
_SHORT_TUPLES = {_CODES["EMPTY_TUPLE"]: 0, _CODES["TUPLE1"]: 1, _CODES["TUPLE2"]: 2, _CODES["TUPLE3"]: 3}
_TUPLE = _CODES["TUPLE"]
_CONSTANTS = {_CODES["NONE"]: None, _CODES["NEWTRUE"]: True, _CODES["NEWFALSE"]: False}
_EMPTY = {_CODES["EMPTY_DICT"]: dict, _CODES["EMPTY_LIST"]: list}
_NUMBERS = {"BININT": "<i", "BININT1": "<B", "BININT2": "<H", "BINFLOAT": ">d"}
_SIZED = {_CODES[name]: struct.Struct(form) for name, form in _NUMBERS.items()}
_FOUR = struct.Struct("<I").unpack_from


def loads(data: bytes, name: str) -> Any:
    """The value that a pickle of plain data describes.

    Raises
    ------
    BadTraceFile : it is no pickle, is cut off, is beyond all size, or asks for anything but plain data.
    """
    if len(data) < 2 or data[0] != _PROTO or not 2 <= data[1] <= 5:
        raise BadTraceFile(f"{name}: no pickle of protocol 2 to 5")
    try:
        return _run(data)
    except _RefusedError as refused:
        raise BadTraceFile(f"{name}: {refused}") from None
    except (IndexError, struct.error):
        raise BadTraceFile(f"{name}: the pickle is damaged or cut off") from None
    except (KeyError, TypeError, AttributeError, ValueError):
        raise BadTraceFile(f"{name}: the pickle is damaged") from None


class _RefusedError(Exception):
    """An instruction that a file of plain data has no need for."""


def _run(data: bytes) -> Any:  # one loop: a call per instruction would take most of the time
    memo: dict[int, Any] = {}
    stack: list[Any] = []
    marked: list[list[Any]] = []
    at, objects = 2, 0
    while True:
        code = data[at]
        at += 1
        if code == _LONG_BINGET:
            stack.append(memo[_FOUR(data, at)[0]])
            at += 4
        elif code == _BINGET:
            stack.append(memo[data[at]])
            at += 1
        elif code == _MEMOIZE:
            memo[len(memo)] = stack[-1]
            objects += 1
        elif code == _LONG1:
            stack.append(_long(data, at))
            at += 1 + data[at]
        elif code == _MARK:
            marked.append(stack)
            stack = []
            if len(marked) > _DEEPEST or objects > _MOST_OBJECTS:
                raise _RefusedError("it nests or holds more than a snapshot does")
        elif code in _SIZED:
            stack.extend(_SIZED[code].unpack_from(data, at))
            at += _SIZED[code].size
        elif code == _SETITEMS:
            items, stack = stack, marked.pop()
            _set(stack[-1], items)
        elif code in _EMPTY:
            stack.append(_EMPTY[code]())
            objects += 1
            if objects > _MOST_OBJECTS or len(stack) > _MOST_STACKED:
                raise _RefusedError("it nests or holds more than a snapshot does")
        elif code in _LENGTH:
            width = _LENGTH[code]
            end = at + width + int.from_bytes(data[at : at + width], "little")
            if end > len(data):
                raise IndexError
            stack.append(str(data[at + width : end], "utf-8", "replace"))
            at = end
        elif code == _APPENDS:
            items, stack = stack, marked.pop()
            stack[-1].extend(items)
        elif code == _APPEND:
            item = stack.pop()
            stack[-1].append(item)
        elif code == _SETITEM:
            items = stack[-2:]
            del stack[-2:]
            _set(stack[-1], items)
        elif code == _BINPUT:
            memo[data[at]] = stack[-1]
            at += 1
        elif code == _LONG_BINPUT:
            memo[_FOUR(data, at)[0]] = stack[-1]
            at += 4
        elif code in _SHORT_TUPLES:
            count = len(stack) - _SHORT_TUPLES[code]
            if count < 0:
                raise IndexError
            stack[count:] = [tuple(stack[count:])]
            objects += 1
        elif code == _TUPLE:
            items, stack = stack, marked.pop()
            stack.append(tuple(items))
        elif code in _CONSTANTS:
            stack.append(_CONSTANTS[code])
        elif code == _FRAME:
            at += 8
        elif code == _STOP:
            return stack.pop()
        else:
            what = _NAMES.get(code, f"byte {code}")
            raise _RefusedError(f"it asks for {what}; a snapshot is plain dicts, lists, strings and numbers")


def _long(data: bytes, at: int) -> int:
    size = data[at]
    if size > 9:
        raise _RefusedError(f"it holds a number of {size} bytes; addresses have 8")
    if at + size >= len(data):
        raise IndexError
    return int.from_bytes(data[at + 1 : at + 1 + size], "little", signed=True)


def _set(target: dict[Any, Any], items: list[Any]) -> None:
    if type(target) is not dict or len(items) % 2:
        raise ValueError
    for key, value in zip(items[::2], items[1::2], strict=True):
        if type(key) is not str:
            raise _RefusedError("it has a key that is no string")
        target[key] = value
