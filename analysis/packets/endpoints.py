"""Addresses of servers and workers, as text and as the two words that segments carry."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from analysis.packets.capture import Ints
from analysis.packets.decode import Bools, Words
from sim.errors import Fault, ScenarioError

Address = tuple[int, int]
"""High and low 64 bits; IPv4 as ``::ffff:a.b.c.d``."""

_MAPPED = 0xFFFF << 32


class Server(NamedTuple):
    """A parameter server: its name as given, its addresses, its port; ``None``: every port."""

    name: str
    addresses: tuple[Address, ...]
    port: int | None

    def matches(self, address: tuple[Words, Words], port: Ints) -> Bools:
        """Which of some ends of connections are this server's."""
        found = np.zeros(len(port), np.bool_)
        for high, low in self.addresses:
            found |= (address[0] == np.uint64(high)) & (address[1] == np.uint64(low))
        return found if self.port is None else found & (port == self.port)


def text(address: Address) -> str:
    """An address as people write it."""
    high, low = address
    if high == 0 and low >> 32 == 0xFFFF:
        return str(ipaddress.IPv4Address(low & 0xFFFFFFFF))
    return str(ipaddress.IPv6Address(high << 64 | low))


def words(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> Address:
    """An address as segments carry it."""
    number = int(address)
    return (0, _MAPPED | number) if address.version == 4 else (number >> 64, number & 2**64 - 1)


def parse_servers(given: Sequence[str]) -> list[Server]:
    """Read ``HOST:PORT``, ``[HOST]:PORT`` or ``HOST`` (every port of it) for each server; HOST may be a name.

    Raises
    ------
    ScenarioError : every one that is none, or that is there twice.
    """
    faults, servers = list[Fault](), list[Server]()
    for value in given:
        try:
            server = _parse(value)
        except ValueError as error:
            faults.append(Fault(str(error), "--server"))
            continue
        if twice := next((other for other in servers if _overlap(other, server)), None):
            faults.append(Fault(f"'{value}' and '{twice.name}' are one server", "--server"))
        servers.append(server)
    if not given:
        faults.append(Fault("which ends are servers? expected HOST:PORT, such as 10.0.0.1:2222", "--server"))
    if faults:
        raise ScenarioError.of(faults)
    return servers


def _overlap(one: Server, other: Server) -> bool:
    return bool(set(one.addresses) & set(other.addresses)) and (
        None in (one.port, other.port) or one.port == other.port
    )


def _parse(value: str) -> Server:
    host, port = value, ""
    if value.startswith("["):
        host, _, port = value[1:].partition("]")
    elif value.count(":") == 1:
        host, port = value.split(":")
        port = f":{port}"
    number = port[1:]
    if not host or (
        port and not (port[0] == ":" and number.isascii() and number.isdigit() and 0 < int(number) < 65536)
    ):
        raise ValueError(f"'{value[:60]}' is no server: expected HOST:PORT, such as 10.0.0.1:2222 or [fd00::1]:2222")
    return Server(value, _addresses(host), int(number) if port else None)


def _addresses(host: str) -> tuple[Address, ...]:
    """Of an address itself, of a name all that it has."""
    try:
        return (words(ipaddress.ip_address(host)),)
    except ValueError:
        pass
    try:
        found = {ipaddress.ip_address(entry[4][0]) for entry in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no name"
        raise ValueError(f"'{host[:60]}' has no address: {reason}") from None
    return tuple(sorted(map(words, found)))
