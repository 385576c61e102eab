"""The records of a capture file, thousands at once: pcap and pcapng of either byte order, as a stream.

The framing is ours rather than dpkt's: its readers build an object per record (dpkt decodes 47,000 packets/s where this
package has to do 100,000) and end at the first damage. Here a loop only hops from length to length, numpy reads all
headers of a chunk together, and where a header makes no sense the next ones that do are searched for.

Formats: draft-ietf-opsawg-pcap and draft-ietf-opsawg-pcapng.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from struct import Struct
from typing import BinaryIO, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from sim.errors import ScenarioError

Ints = NDArray[np.int64]
Bytes = NDArray[np.uint8]

CHUNK = 1 << 20
MOST_CAPTURED = 1 << 18
"""The longest record, as libpcap has it."""
MOST_BLOCK = 1 << 24
"""The longest block of pcapng, as Wireshark has it."""
MOST_INTERFACES = 1 << 12
MOST_DAMAGED = 50_000
"""A file that is damaged in more places is read no further."""
CHAIN = 3
"""Sound records, or the end of the file, that must follow one another where reading resumes."""
PAD = 64
"""Bytes of zero after the data of `Frames`, so that a header may be read past the end before its length is checked."""

FRAMING = "their headers make no sense"
ENDS = "the file ends within the last one"
GIVEN_UP = "the file is damaged in too many places, and the rest was not read"
NO_TIME = "simple packet blocks bear no time"
MISFIT = "their lengths or interfaces do not fit"
WRONG_TIME = "their times are far from those around them"

_DAY_S = 86_400
_MOST_S = 1 << 33
_SECTION, _INTERFACE, _PACKET, _SIMPLE, _ENHANCED = 0x0A0D0D0A, 1, 2, 3, 6
_BLOCKS = np.array([_INTERFACE, _PACKET, _SIMPLE, 4, 5, _ENHANCED, _SECTION], np.uint32)


class Frames(NamedTuple):
    """Some records: where each lies in ``data``, bytes captured and on the wire, time since 1970, link-layer type."""

    data: Bytes
    at: Ints
    captured: Ints
    length: Ints
    time_ns: Ints
    link: Ints


@dataclass
class Damage:
    """How many records could not be read, by reason."""

    reasons: Counter[str] = field(default_factory=Counter)

    @property
    def records(self) -> int:
        """All of them."""
        return self.reasons.total()


class _Then(enum.Enum):
    """What a scan ended at: the end of the data, a change of byte order, or nonsense."""

    MORE = enum.auto()
    AGAIN = enum.auto()
    DAMAGED = enum.auto()


class _Format(Protocol):
    def scan(self, data: bytes, at: int) -> tuple[list[int], int, _Then]:
        """Hop over whole records: where they start, where the next would, and why it ended."""
        ...

    def frames(self, data: bytes, starts: list[int]) -> Frames:
        """The records at these places."""
        ...

    def plausible(self, data: bytes, begin: int, stop: int, ended: bool) -> Ints:
        """Places from ``begin`` to ``stop`` where a record seems to start."""
        ...


class _Source:
    """A file of which only the part being read is held."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.data, self.at, self.ended = b"", 0, False

    def more(self) -> None:
        """Let go of what lies before ``at`` and read on."""
        fresh = self._file.read(CHUNK)
        self.data, self.at, self.ended = self.data[self.at :] + fresh, 0, not fresh


def frames(file: BinaryIO, damage: Damage) -> Iterator[Frames]:
    """Read a capture; what cannot be read is counted in ``damage``.

    Raises
    ------
    ScenarioError : no capture file.
    """
    source = _Source(file)
    source.more()
    form = _form(source, damage)
    while damage.reasons[FRAMING] <= MOST_DAMAGED:
        starts, at, then = form.scan(source.data, source.at)
        found = None
        if then is _Then.MORE and source.ended and at < len(source.data):  # cut short, or its length is wrong
            found = _search(source, form, at + 1)
            then = _Then.MORE if found is None else _Then.DAMAGED
        elif then is _Then.DAMAGED:
            found = _search(source, form, starts[-1] + 1 if starts else at + 1)
            if found is not None and found < at:  # the length before the nonsense was wrong already
                starts.pop()
        damage.reasons[FRAMING] += then is _Then.DAMAGED and found != at  # else the clock was set, no more
        if starts:
            yield _timely(form.frames(source.data, starts), damage)
        source.at = at
        if then is _Then.DAMAGED:
            source.at = _search_on(source, form) if found is None else found
        if then is _Then.MORE:
            if source.ended:
                break
            source.more()
    else:
        damage.reasons[GIVEN_UP] += 1
        return
    if source.at < len(source.data):
        damage.reasons[ENDS] += 1


def _form(source: _Source, damage: Damage) -> _Format:
    magic = source.data[:4]
    for order in "<>":
        for nanoseconds, number in ((1000, 0xA1B2C3D4), (1, 0xA1B23C4D)):
            if magic == Struct(order + "I").pack(number) and len(source.data) >= 24:
                source.at = 24
                return _Pcap(order, nanoseconds, Struct(order + "I").unpack_from(source.data, 20)[0] & 0xFFFF)
    if magic == b"\n\r\r\n" and _order(source.data, 0):
        return _Pcapng(damage)
    hint = ": gunzip it first" if magic[:2] == b"\x1f\x8b" else ""
    raise ScenarioError(f"no capture: expected a file that begins as pcap or pcapng do{hint}")


def _search(source: _Source, form: _Format, begin: int) -> int | None:
    """The first place from ``begin`` on, in what is held, where a record seems to start."""
    width = 1 << 12
    while begin < len(source.data):
        found = form.plausible(source.data, begin, begin + width, source.ended)
        if len(found):
            return int(found[0])
        begin, width = begin + width, min(width * 8, 1 << 17)
    return None


def _search_on(source: _Source, form: _Format) -> int:
    """The same in what follows, or the end; a record that was cut by the end of what was held is met again."""
    while not source.ended:
        source.at = max(source.at, len(source.data) - MOST_CAPTURED - PAD)
        source.more()
        found = _search(source, form, 1)
        if found is not None:
            return found
    return len(source.data)


def _timely(found: Frames, damage: Damage) -> Frames:
    """Without the records whose time is far from the times around it, which are close to each other."""
    if len(found.at) < 3:
        return found
    time = found.time_ns.astype(np.float64)
    before, after = np.r_[time[2], time[:-1]], np.r_[time[1:], time[-3]]
    far = np.minimum(np.abs(time - before), np.abs(time - after)) > 10 * np.abs(after - before) + 1e9
    far[[0, -1]] &= np.abs(time - before)[[0, -1]] > _DAY_S * 1e9
    damage.reasons[WRONG_TIME] += int(far.sum())
    return _some(found, ~far) if far.any() else found


def _some(found: Frames, kept: NDArray[np.bool_]) -> Frames:
    return Frames(found.data, *(column[kept] for column in found[1:]))


def _padded(data: bytes) -> Bytes:
    return np.frombuffer(data + bytes(PAD), np.uint8)


def _words(data: bytes, order: str, offset: int = 0) -> NDArray[np.uint32]:
    """The 32-bit word that starts ``offset`` bytes after each byte of ``data`` but the last ones."""
    count = len(data) - offset - 3
    return np.ndarray((count,), np.dtype(f"{order}u4"), data, offset, (1,)) if count > 0 else np.empty(0, np.uint32)


class _Pcap:
    """Records of 16 bytes of header (seconds, fraction, bytes captured, bytes on the wire) and a frame."""

    def __init__(self, order: str, fraction_ns: int, link: int) -> None:
        self._order, self._fraction_ns, self._link = order, fraction_ns, link
        self._captured = Struct(order + "I").unpack_from
        self._before_s: int | None = None

    def scan(self, data: bytes, at: int) -> tuple[list[int], int, _Then]:
        captured_at, last, starts = self._captured, len(data) - 16, list[int]()
        while at <= last:
            captured = captured_at(data, at + 8)[0]
            if not 0 < captured <= MOST_CAPTURED:
                return self._sound(data, starts, at, _Then.DAMAGED)
            end = at + 16 + captured
            if end > len(data):
                break
            starts.append(at)
            at = end
        return self._sound(data, starts, at, _Then.MORE)

    def _sound(self, data: bytes, starts: list[int], at: int, then: _Then) -> tuple[list[int], int, _Then]:
        """Cut where a fraction is a second or more, or the time a day away from the one before."""
        if not starts:
            return starts, at, then
        seconds, fraction = (_words(data, self._order, offset)[starts].astype(np.int64) for offset in (0, 4))
        since = np.abs(np.diff(seconds, prepend=seconds[0] if self._before_s is None else self._before_s))
        wrong = np.flatnonzero((fraction >= 10**9 // self._fraction_ns) | (since > _DAY_S))
        self._before_s = None if len(wrong) or then is _Then.DAMAGED else int(seconds[-1])
        return (starts[: wrong[0]], starts[wrong[0]], _Then.DAMAGED) if len(wrong) else (starts, at, then)

    def frames(self, data: bytes, starts: list[int]) -> Frames:
        at = np.array(starts, np.int64)
        seconds, fraction, captured, length = (
            _words(data, self._order, offset)[at].astype(np.int64) for offset in (0, 4, 8, 12)
        )
        time_ns = seconds * 10**9 + fraction * self._fraction_ns
        return Frames(
            _padded(data), at + 16, captured, np.maximum(length, captured), time_ns, np.full(len(at), self._link)
        )

    def plausible(self, data: bytes, begin: int, stop: int, ended: bool) -> Ints:
        first = np.arange(begin, min(stop, len(data) - 15), dtype=np.int64)
        first = first[self._header(data, first)]
        seconds, captured = (_words(data, self._order, offset) for offset in (0, 8))
        found, at = list[Ints](), first
        for _ in range(CHAIN):
            after = at + 16 + captured[at]
            if ended:
                found.append(first[after == len(data)])
            within = after <= len(data) - 16
            first, at, after = (column[within] for column in (first, at, after))
            near = np.abs(seconds[after].astype(np.int64) - seconds[at]) <= _DAY_S
            follows = near & self._header(data, after)
            first, at = first[follows], after[follows]
        return np.sort(np.concatenate([*found, first]))

    def _header(self, data: bytes, at: Ints) -> NDArray[np.bool_]:
        fraction, captured, length = (_words(data, self._order, offset)[at] for offset in (4, 8, 12))
        sound = (fraction < 10**9 // self._fraction_ns) & (captured >= 4) & (captured <= MOST_CAPTURED)
        return sound & (captured <= length) & (length <= 4 * MOST_CAPTURED)


class _Interface(NamedTuple):
    """``ticks`` make a second; times count from ``offset_s``."""

    link: int
    ticks: int
    offset_s: int


class _Pcapng:
    """Blocks: type, length, body, length again. A section header sets the byte order, an interface its unit of time."""

    def __init__(self, damage: Damage) -> None:
        self._damage, self._interfaces, self._order = damage, list[_Interface](), "<"

    def scan(self, data: bytes, at: int) -> tuple[list[int], int, _Then]:
        starts = list[int]()
        head, tail = Struct(self._order + "II").unpack_from, Struct(self._order + "I").unpack_from
        while at <= len(data) - 12:
            kind, total = head(data, at)
            if kind == _SECTION:
                if starts:  # they are in the byte order of the section before
                    return starts, at, _Then.AGAIN
                order = _order(data, at)
                if order is None:
                    return starts, at, _Then.DAMAGED
                self._order, self._interfaces = order, []
                head, tail = Struct(order + "II").unpack_from, Struct(order + "I").unpack_from
                total = head(data, at)[1]
            if total < 12 or total % 4 or total > MOST_BLOCK:
                return starts, at, _Then.DAMAGED
            if at + total > len(data):
                break
            if tail(data, at + total - 4)[0] != total:
                return starts, at, _Then.DAMAGED
            if kind in (_ENHANCED, _PACKET) and total >= 32:
                starts.append(at)
            elif kind == _INTERFACE and total >= 20:
                self._add_interface(data[at + 8 : at + total - 4])
            elif kind == _SIMPLE:
                self._damage.reasons[NO_TIME] += 1
            at += total
        return starts, at, _Then.MORE

    def _add_interface(self, body: bytes) -> None:
        link, ticks, offset_s, at = Struct(self._order + "H").unpack_from(body)[0], 10**6, 0, 8
        while at + 4 <= len(body):
            option, length = Struct(self._order + "HH").unpack_from(body, at)
            value = body[at + 4 : at + 4 + length]
            if option == 0:
                break
            if option == 9 and length == 1 and value:
                exponent = value[0] & 0x7F
                ticks = 2 ** min(exponent, 63) if value[0] & 0x80 else 10 ** min(exponent, 18)
            if option == 14 and len(value) == 8:
                offset_s = int(Struct(self._order + "q").unpack(value)[0])
            at += 4 + length + -length % 4
        if len(self._interfaces) < MOST_INTERFACES:
            self._interfaces.append(_Interface(link, ticks, offset_s))

    def frames(self, data: bytes, starts: list[int]) -> Frames:
        at = np.array(starts, np.int64)
        kind, total, index, high, low, captured, length = (
            _words(data, self._order, offset)[at].astype(np.int64) for offset in (0, 4, 8, 12, 16, 20, 24)
        )
        narrow = np.ndarray((len(data) - 9,), np.dtype(f"{self._order}u2"), data, 8, (1,))
        index = np.where(kind == _PACKET, narrow[at], index)
        time_ns, link = np.full(len(at), -1), np.full(len(at), -1)
        for number, interface in enumerate(self._interfaces):
            mine = index == number
            if mine.any():
                link[mine] = interface.link
                time_ns[mine] = _nanoseconds(high[mine], low[mine], interface)
        sound = (time_ns >= 0) & (captured <= total - 32) & (captured > 0)
        self._damage.reasons[MISFIT] += int(len(at) - sound.sum())
        return _some(Frames(_padded(data), at + 28, captured, np.maximum(length, captured), time_ns, link), sound)

    def plausible(self, data: bytes, begin: int, stop: int, ended: bool) -> Ints:
        at = np.arange(begin, min(stop, len(data) - 11), dtype=np.int64)
        words = _words(data, self._order)
        total = _words(data, self._order, 4)[at].astype(np.int64)
        fits = (total >= 12) & (total % 4 == 0) & (total <= MOST_CAPTURED + PAD) & (at + total <= len(data))
        at, total = at[fits], total[fits]
        at = at[words[at + total - 4] == total]
        return np.compress(np.isin(words[at], _BLOCKS), at)


def _order(data: bytes, at: int) -> str | None:
    """The byte order that a section header states."""
    return {b"\x4d\x3c\x2b\x1a": "<", b"\x1a\x2b\x3c\x4d": ">"}.get(data[at + 8 : at + 12])


def _nanoseconds(high: Ints, low: Ints, interface: _Interface) -> Ints:
    """Times since 1970; −1 where they are no time."""
    ticks = (high.astype(np.uint64) << np.uint64(32)) | low.astype(np.uint64)
    per_s = np.uint64(interface.ticks)
    seconds = (ticks // per_s).astype(np.float64) + interface.offset_s
    sound = (seconds >= 0) & (seconds < _MOST_S)
    part = ticks % per_s
    if interface.ticks <= 10**9:
        part_ns = (part * np.uint64(10**9) // per_s).astype(np.int64)
    else:
        part_ns = (part.astype(np.float64) * (1e9 / interface.ticks)).astype(np.int64)
    return np.where(sound, np.where(sound, seconds, 0).astype(np.int64) * 10**9 + part_ns, -1)
