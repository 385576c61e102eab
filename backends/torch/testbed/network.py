"""From a cluster to the commands that build it: ``ip`` joins namespaces by veth pairs, ``tc`` shapes what they carry.

A link is shaped where packets enter it: what a node sends at its own interface, what it receives at the switch's port
to it. So a capture on a node sees both as the links let them pass.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sim.cluster import Cluster, Link
from sim.errors import UnsupportedPlan

INTERFACE, SWITCH = "eth0", "switch"

QUEUE_S, LEAST_QUEUE_BYTES = 0.005, 64_000
"""How much may wait before a link, at its rate: little, as in a switch, for requests wait behind gradients there."""

BURST_S, LEAST_BURST_BYTES = 0.001, 3_200
"""What may pass at once after a pause: longer than a timer is late, and no less than two frames."""

_FRAME_BYTES = 1514


@dataclass(frozen=True, slots=True)
class Port:
    """A node, its link to the switch and the one from it."""

    node: str
    egress: Link
    ingress: Link


def ports(cluster: Cluster, nodes: Sequence[str]) -> tuple[Port, ...]:
    """The ports of some nodes of a cluster around one switch.

    Raises
    ------
    UnsupportedPlan : it is no such cluster, or has links that only a simulation knows; every reason, one a line.
    """
    found = [_port(cluster, node) for node in nodes]
    reasons = [reason for port in found if isinstance(reason := port, str)]
    made = [port for port in found if isinstance(port, Port)]
    if len({port.egress.target for port in made} | {port.ingress.source for port in made}) > 1:
        reasons.append("not all nodes are joined to the same switch: a testbed has one")
    reasons += [reason for port in made for link in (port.egress, port.ingress) for reason in _refused(link)]
    if reasons:
        raise UnsupportedPlan("\n".join(reasons))
    return tuple(made)


def _port(cluster: Cluster, node: str) -> Port | str:
    egress = [link for link in cluster.links if link.source == node]
    ingress = [link for link in cluster.links if link.target == node]
    if not re.fullmatch(r"[\w.-]+", node):
        return f"node '{node}' gives a namespace its name: use letters, digits, '-', '_' and '.'"
    if len(egress) != 1 or len(ingress) != 1:
        return f"'{node}' has not one link to a switch and one from it: write cluster: {{workers: 2, nic: 1 Gbit/s}}"
    return Port(node, egress[0], ingress[0])


def _refused(link: Link) -> Iterator[str]:
    if link.kind not in ("fair_share", "latency"):
        yield f"link '{link.name}' is {link.kind}: TCP shares links, use fair_share"


def namespaces(prefix: str, layout: Sequence[Port]) -> list[str]:
    """Names of the namespaces, the switch's first."""
    return [f"{prefix}-{name}" for name in (SWITCH, *(port.node for port in layout))]


def address(number: int) -> str:
    """The address of the node of that number, in a network that none but the namespaces know."""
    return "10.{}.{}.{}".format(*(number + 1).to_bytes(3, "big"))


def commands(prefix: str, layout: Sequence[Port]) -> list[list[str]]:
    """What builds the network in its namespaces."""
    return [line.split() for line in _lines(prefix, layout)]


def _lines(prefix: str, layout: Sequence[Port]) -> Iterator[str]:
    switch, *nodes = namespaces(prefix, layout)
    yield f"ip -n {switch} link add name {SWITCH} up type bridge"
    for number, (node, port) in enumerate(zip(nodes, layout, strict=True)):
        yield f"ip -n {node} link add name {INTERFACE} type veth peer name port{number} netns {switch}"
        yield f"ip -n {node} address add {address(number)}/32 dev {INTERFACE}"
        yield f"ip -n {node} link set dev {INTERFACE} up"
        # the host's own choice may be bbr, which models a link that it has to itself
        yield f"ip -n {node} route add 10.0.0.0/8 dev {INTERFACE} src {address(number)} congctl cubic"
        yield f"ip -n {switch} link set dev port{number} master {SWITCH} up"
        yield from _shaping(f"tc -n {node} qdisc add dev {INTERFACE}", port.egress)
        yield from _shaping(f"tc -n {switch} qdisc add dev port{number}", port.ingress)


def _shaping(add: str, link: Link) -> Iterator[str]:
    """A bucket of tokens for the rate, and before it a delay."""
    place, queue_bytes = "root", 1000 * _FRAME_BYTES
    if math.isfinite(link.bytes_per_s):
        burst_bytes = max(link.bytes_per_s * BURST_S, LEAST_BURST_BYTES)
        queue_bytes = round(max(link.bytes_per_s * QUEUE_S, LEAST_QUEUE_BYTES))
        rate = f"rate {link.bytes_per_s:.0f}bps burst {burst_bytes:.0f} limit {queue_bytes}"
        yield f"{add} root handle 1: tbf {rate}"
        place = "parent 1:1"
    if link.latency_s:
        packets = -(-queue_bytes // _FRAME_BYTES)
        yield f"{add} {place} netem delay {1e6 * link.latency_s:g}us limit {packets}"
