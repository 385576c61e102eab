"""From frames to TCP segments, all frames of a chunk at once.

Ethernet with VLAN tags, Linux cooked (v1 and v2), raw IP and loopback; IPv4 and IPv6 with extension headers and
fragments. Payload is counted by the IP length, not by what was captured; where segmentation offloading left that at 0,
by the length on the wire.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from analysis.packets.capture import Bytes, Damage, Frames, Ints

Bools = NDArray[np.bool_]
Words = NDArray[np.uint64]

SHORT = "their headers were not captured whole"
LENGTHS = "their IP and TCP lengths contradict each other"

_ETHERNET, _NULL, _LOOP, _SLL, _SLL2 = 1, 0, 108, 113, 276
_RAW = (12, 14, 101, 228, 229)
_HEADER_BYTES = {_ETHERNET: 14, _NULL: 4, _LOOP: 4, _SLL: 16, _SLL2: 20, **dict.fromkeys(_RAW, 0)}
_TYPE_AT = {_ETHERNET: 12, _SLL: 14, _SLL2: 0}
"""Where the EtherType stands; other link layers have none, and IP's own version tells."""
_TAGS, _MOST_TAGS = (0x8100, 0x88A8, 0x9100, 0x9200), 4
_IPV4, _IPV6, _TCP, _SYN = 0x0800, 0x86DD, 6, 2
_EXTENSIONS, _FRAGMENT, _AUTHENTICATION, _MOST_EXTENSIONS = (0, 43, 44, 51, 60, 135, 139, 140), 44, 51, 8
_MAPPED = np.uint64(0xFFFF << 32)
_MOST_FRAGMENTED = 1024


class Segments(NamedTuple):
    """TCP segments. An address is two words of 64 bits (IPv4 as ``::ffff:a.b.c.d``); ``payload`` counts bytes."""

    time_ns: Ints
    source: tuple[Words, Words]
    target: tuple[Words, Words]
    source_port: Ints
    target_port: Ints
    sequence: Ints
    payload: Ints
    syn: Bools


class _Packets(NamedTuple):
    """Headers of one layer: where each begins, where what was captured of it ends, its ``size`` as its layer says."""

    data: Bytes
    at: Ints
    end: Ints
    size: Ints
    time_ns: Ints

    def some(self, kept: Bools | Ints) -> _Packets:
        return _Packets(self.data, self.at[kept], self.end[kept], self.size[kept], self.time_ns[kept])

    def read(self, offset: int | Ints, width: int) -> Ints:
        """Big-endian numbers of 1, 2 or 4 bytes, ``offset`` after the start of each."""
        return self._words(offset, width).astype(np.int64)

    def _words(self, offset: int | Ints, width: int) -> NDArray[Any]:
        count = len(self.data) - width + 1
        every: NDArray[Any] = np.ndarray((count,), np.dtype(f">u{width}"), self.data, 0, (1,))
        found: NDArray[Any] = every[np.minimum(self.at + offset, count - 1)]
        return found

    def address(self, offset: int, is_ipv4: bool) -> tuple[Words, Words]:
        if is_ipv4:
            low = self._words(offset, 4).astype(np.uint64) | _MAPPED
            return np.zeros_like(low), low
        return self._words(offset, 8).astype(np.uint64), self._words(offset + 8, 8).astype(np.uint64)

    def has(self, length: int | Ints) -> Bools:
        """Whether so many bytes of each were captured."""
        return self.end - self.at >= length


class _Datagrams(NamedTuple):
    """What IP carries, TCP only: ``first_byte`` is its place in a fragmented datagram, known by ``number``."""

    packets: _Packets
    source: tuple[Words, Words]
    target: tuple[Words, Words]
    first_byte: Ints
    continued: Bools
    number: Ints

    def some(self, kept: Bools) -> _Datagrams:
        source, target = ((high[kept], low[kept]) for high, low in (self.source, self.target))
        return _Datagrams(
            self.packets.some(kept), source, target, self.first_byte[kept], self.continued[kept], self.number[kept]
        )


class Decoder:
    """Decodes chunk after chunk; it remembers the latest datagrams that came in fragments."""

    def __init__(self, damage: Damage) -> None:
        self._damage = damage
        self._fragmented: OrderedDict[tuple[int, ...], tuple[int, int, int]] = OrderedDict()

    def segments(self, frames: Frames) -> Segments:
        """The TCP segments among some frames, those of one time in the order of the frames."""
        packets = self._link(frames)
        version = packets.read(0, 1) >> 4
        found = [
            self._tcp(datagrams)
            for datagrams in (self._ipv4(packets.some(version == 4)), self._ipv6(packets.some(version == 6)))
        ]
        return found[0] if not len(found[1].time_ns) else _joined(found)

    def _sound(self, packets: _Packets, sound: Bools, reason: str) -> Bools:
        """``sound``, with the others counted as unreadable."""
        self._damage.reasons[reason] += int(len(sound) - sound.sum())
        return sound

    def _link(self, frames: Frames) -> _Packets:
        """The IP packets of some frames."""
        packets = _Packets(frames.data, frames.at.copy(), frames.at + frames.captured, frames.length, frames.time_ns)
        kind = np.zeros(len(packets.at), np.int64)
        for link in np.unique(frames.link).tolist():
            mine = np.flatnonzero(frames.link == link)
            if link not in _HEADER_BYTES:
                self._damage.reasons[f"link layers of type {link} are not read"] += len(mine)
                continue
            kind[mine] = packets.some(mine).read(_TYPE_AT[link], 2) if link in _TYPE_AT else -1
            packets.at[mine] += _HEADER_BYTES[link]
        for _ in range(_MOST_TAGS):
            tagged = np.flatnonzero(np.isin(kind, _TAGS))
            kind[tagged] = packets.some(tagged).read(2, 2)
            packets.at[tagged] += 4
        packets = packets._replace(size=frames.length - (packets.at - frames.at))
        stated = np.where(kind == _IPV4, 4, np.where(kind == _IPV6, 6, 0))
        version = packets.read(0, 1) >> 4
        is_ip = (version == stated) | ((kind == -1) & ((version == 4) | (version == 6)))
        return packets.some(is_ip)

    def _ipv4(self, packets: _Packets) -> _Datagrams:
        packets = packets.some(self._sound(packets, packets.has(20), SHORT))
        header, size = (packets.read(0, 1) & 15) * 4, packets.read(2, 2)
        size = np.where(size == 0, packets.size, size)
        offset = packets.read(6, 2)
        datagrams = _Datagrams(
            packets._replace(at=packets.at + header, size=size - header),
            packets.address(12, True),
            packets.address(16, True),
            (offset & 0x1FFF) * 8,
            (offset & 0x2000) != 0,
            packets.read(4, 2),
        )
        is_tcp = packets.read(9, 1) == _TCP
        sound = (header >= 20) & (size >= header)
        return datagrams.some(is_tcp & self._sound(packets, sound | ~is_tcp, LENGTHS))

    def _ipv6(self, packets: _Packets) -> _Datagrams:
        packets = packets.some(self._sound(packets, packets.has(40), SHORT))
        size = packets.read(4, 2)
        size = np.where(size == 0, packets.size - 40, size)  # also of jumbograms
        following, header = packets.read(6, 1), np.full(len(size), 40)
        first_byte, number, continued = np.zeros_like(size), np.zeros_like(size), np.zeros(len(size), np.bool_)
        for _ in range(_MOST_EXTENSIONS):
            more = np.isin(following, _EXTENSIONS) & packets.has(header + 8)
            if not more.any():
                break
            length = (packets.read(header + 1, 1) + 1) * 8
            length = np.where(following == _AUTHENTICATION, length // 2 + 4, length)
            in_parts = more & (following == _FRAGMENT)
            length[in_parts] = 8
            part = packets.read(header + 2, 2)
            first_byte[in_parts], continued[in_parts] = (part & 0xFFF8)[in_parts], (part & 1 != 0)[in_parts]
            number[in_parts] = packets.read(header + 4, 4)[in_parts]
            following = np.where(more, packets.read(header, 1), following)
            header = np.where(more, header + length, header)
        size = size - (header - 40)
        known = self._sound(packets, ~np.isin(following, _EXTENSIONS), SHORT)
        datagrams = _Datagrams(
            packets._replace(at=packets.at + header, size=size),
            packets.address(8, False),
            packets.address(24, False),
            first_byte,
            continued,
            number,
        )
        is_tcp = known & (following == _TCP)
        return datagrams.some(is_tcp & self._sound(packets, (size >= 0) | ~is_tcp, LENGTHS))

    def _tcp(self, datagrams: _Datagrams) -> Segments:
        begins = datagrams.first_byte == 0
        later = datagrams.some(~begins) if not begins.all() else None
        whole = datagrams.some(begins)
        whole = whole.some(self._sound(whole.packets, whole.packets.has(14), SHORT))
        header = (whole.packets.read(12, 1) >> 4) * 4
        sound = self._sound(whole.packets, (header >= 20) & (whole.packets.size >= header), LENGTHS)
        whole, header = whole.some(sound), header[sound]
        packets = whole.packets
        found = Segments(
            packets.time_ns,
            whole.source,
            whole.target,
            packets.read(0, 2),
            packets.read(2, 2),
            packets.read(4, 4),
            packets.size - header,
            (packets.read(13, 1) & _SYN) != 0,
        )
        for index in np.flatnonzero(whole.continued).tolist():
            ports = int(found.source_port[index]), int(found.target_port[index])
            self._remember(_name(whole, index), (*ports, int(found.sequence[index] - header[index])))
        return found if later is None else _joined([found, self._fragments(later)])

    def _remember(self, name: tuple[int, ...], ports_and_start: tuple[int, int, int]) -> None:
        self._fragmented[name] = ports_and_start
        if len(self._fragmented) > _MOST_FRAGMENTED:
            self._fragmented.popitem(last=False)

    def _fragments(self, later: _Datagrams) -> Segments:
        """Fragments after the first, each as a segment of its own; what the first did not announce is left out."""
        known = [self._fragmented.get(_name(later, index)) for index in range(len(later.number))]
        later = later.some(np.array([each is not None for each in known], np.bool_))
        figures = np.array([each for each in known if each is not None], np.int64).reshape(-1, 3)
        return Segments(
            later.packets.time_ns,
            later.source,
            later.target,
            figures[:, 0],
            figures[:, 1],
            (figures[:, 2] + later.first_byte) % 2**32,
            later.packets.size,
            np.zeros(len(figures), np.bool_),
        )


def _name(datagrams: _Datagrams, index: int) -> tuple[int, ...]:
    words = (*datagrams.source, *datagrams.target, datagrams.number)
    return tuple(int(word[index]) for word in words)


def _joined(parts: list[Segments]) -> Segments:
    """Segments of several kinds in order of time."""
    order = np.argsort(np.concatenate([part.time_ns for part in parts]), kind="stable")

    def column(name: str, word: int | None = None) -> NDArray[Any]:
        columns = [getattr(part, name) for part in parts]
        return np.concatenate([each if word is None else each[word] for each in columns])[order]

    return Segments(
        column("time_ns"),
        (column("source", 0), column("source", 1)),
        (column("target", 0), column("target", 1)),
        *(column(name) for name in Segments._fields[3:]),
    )
