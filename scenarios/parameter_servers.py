"""From a scenario with parameter servers to its plan and binding."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

from scenarios.document import Document
from scenarios.profiles import build_profile
from scenarios.quantities import format_bytes
from scenarios.schema import Scenario
from scenarios.server_sections import Failure, ParameterServers
from scenarios.variation import jitter_of
from sim.binding import Binding, Cost
from sim.cluster import Cluster, Link, Node
from sim.conditions import Conditions, Degradation, Outage, Service, Straggler
from sim.errors import Fault, ScenarioError, nearest
from sim.model import ModelProfile
from sim.ops import OpKind
from sim.planners import parameter_server
from sim.planners.parameter_server import MAX_TRANSFERS, Told, transfers
from sim.program import Layout, Program
from sim.server_binding import Apply, SecondJob, ServerFigures, bind_servers, step_s
from sim.sharding import Shards, Variable, shard, variables_of
from sim.training import Training

_LARGEST_BUCKET_BYTES = 1 << 40
_APPLIES = (OpKind.UPDATE, OpKind.ACCUMULATE)


class Served(NamedTuple):
    """What a backend executes, and the model that its program is cut from."""

    program: Program
    binding: Binding
    profile: ModelProfile


def compose_servers(
    scenario: Scenario,
    document: Document,
    cluster: Cluster,
    keys: Mapping[str, Any],
    provenance: Callable[[ModelProfile, Cluster, Training], dict[str, Any]],
) -> Served:
    """Plan the program of a scenario and put figures on it; ``keys`` are those of its schedule.

    Raises
    ------
    ScenarioError : parts that do not fit together, with their path.
    UnsupportedPlan : keys that have no influence on each other.
    """
    section = scenario.parameter_servers or ParameterServers()
    nodes, servers = _workers(scenario, cluster), _servers(section, cluster)
    training = Training(**scenario.training.model_dump())
    others = scenario.background.workers if scenario.background else 0
    profiles = _profiles(scenario, document, cluster, nodes[: len(nodes) - others])
    variables = variables_of(profiles[0])
    shards = _shards(section, variables, profiles[0], len(servers))
    told = Told(len(profiles), others, len(profiles[0].layers), variables, shards)
    each_bytes = training.weight_bytes
    keys = {**keys, "bucket": keys["bucket"] / each_bytes} if "bucket" in keys else keys
    program = parameter_server.plan(told, **keys)
    layout = program.layout
    assert layout is not None
    _check_transfers(layout, program.shape.mini_batches, told, keys, each_bytes)
    conditions = _conditions(scenario, document, cluster, layout, section, [*nodes, *servers])
    uniform, capacity = scenario.model.uniform, scenario.memory.capacity
    other, apply = scenario.background, section.apply
    binding = bind_servers(
        layout,
        ServerFigures(
            profiles=profiles,
            training=training,
            cluster=cluster,
            devices=tuple(node.name for node in (*nodes, *servers)),
            conditions=conditions,
            apply=None if apply is None else Apply(apply.bandwidth or math.inf, apply.per_tensor or 0.0),
            update_s=(uniform.update or 0.0) if uniform else None,
            other=None if other is None else SecondJob(other.parameters / each_bytes, other.compute),
            capacity_bytes=None if capacity is None else round(capacity),
            provenance=provenance(profiles[0], cluster, training),
        ),
    )
    _check_influence(section, layout, binding)
    return Served(program, _at_random_phases(program, binding, keys), profiles[0])


def _fault(path: str, message: str, suggestion: str | None = None) -> ScenarioError:
    return ScenarioError.of([Fault(message, path, suggestion=suggestion)])


def _workers(scenario: Scenario, cluster: Cluster) -> tuple[Node, ...]:
    """The nodes that compute; the last of them belong to the second job."""
    if scenario.background and not scenario.background.compute:
        raise _fault("background.compute", "must be above 0: its steps have to take time")
    if scenario.background and scenario.background.workers >= len(cluster.gpus):
        message = f"{scenario.background.workers} of {len(cluster.gpus)} workers: none is left to train"
        raise _fault("background.workers", message)
    return cluster.gpus


def _servers(section: ParameterServers, cluster: Cluster) -> tuple[Node, ...]:
    if not cluster.hosts:
        raise _fault("cluster", "a parameter server needs a node of kind host", "write {workers: 8, servers: 2, …}")
    if section.count is not None and section.count > len(cluster.hosts):
        message = f"{section.count} servers on {len(cluster.hosts)} hosts"
        raise _fault("parameter_servers.count", message, f"at most {len(cluster.hosts)}")
    return cluster.hosts[: section.count]


def _profiles(
    scenario: Scenario, document: Document, cluster: Cluster, workers: Sequence[Node]
) -> tuple[ModelProfile, ...]:
    """The model on each worker, at a batch of its own."""
    made: dict[str, ModelProfile] = {}
    for node in workers:
        kind = node.spec.name if node.spec else ""
        if kind not in made:
            alone = replace(cluster, nodes=(node,))
            made[kind] = build_profile(scenario, document, alone, 1, float(scenario.model.batch_size))
    return tuple(made[node.spec.name if node.spec else ""] for node in workers)


def _shards(section: ParameterServers, variables: Sequence[Variable], profile: ModelProfile, servers: int) -> Shards:
    if not isinstance(section.sharding, dict):
        return shard(variables, servers, section.sharding)
    layers = {layer.name: number for number, layer in enumerate(profile.layers) if layer.parameter_bytes}
    faults = [
        Fault("no layer with parameters has that name", f"{_EXPLICIT}.{name}", suggestion=nearest(name, layers))
        for name in section.sharding
        if name not in layers
    ]
    faults += [
        Fault(f"there are {servers} servers, from 0 to {servers - 1}", f"{_EXPLICIT}.{name}")
        for name, server in section.sharding.items()
        if server >= servers
    ]
    if missing := [name for name in layers if name not in section.sharding]:
        faults.append(Fault(f"no server for {', '.join(missing[:5])}{' …' * (len(missing) > 5)}", _EXPLICIT))
    if faults:
        raise ScenarioError.of(faults)
    return shard(variables, servers, {layers[name]: server for name, server in section.sharding.items()})


_EXPLICIT = "parameter_servers.sharding.explicit"


def _check_transfers(layout: Layout, steps: int, told: Told, keys: Mapping[str, Any], each_bytes: int) -> None:
    """Refuse a run of too many transfers, with the bucket that would fit."""
    if (count := transfers(layout, steps)) <= MAX_TRANSFERS:
        return
    message = f"{count:,} transfers: the limit is {MAX_TRANSFERS:,}"
    if keys.get("granularity") == "layer":
        bucket_bytes = 1 << 20
        while bucket_bytes < _LARGEST_BUCKET_BYTES:
            wider = parameter_server.plan(told, **{**keys, "bucket": bucket_bytes / each_bytes}).layout
            if wider is not None and transfers(wider, steps) <= MAX_TRANSFERS:
                raise _fault("schedule.bucket", message, f"bucket: {format_bytes(bucket_bytes, binary=True)} fits")
            bucket_bytes *= 2
    raise _fault("schedule.mini_batches", message, f"at most {MAX_TRANSFERS // transfers(layout, 1):,}")


def _check_influence(section: ParameterServers, layout: Layout, binding: Binding) -> None:
    """Refuse what is said of updates and transfers where these take no time."""
    parts, jitter = range(len(layout.parts)), binding.conditions.jitter
    if not any(binding.seconds[Cost(kind, 0, part)] for kind in _APPLIES for part in parts):
        message, hint = "has no influence: updates take no time", "give cluster.host or parameter_servers.apply"
        for key in ("cores", "discipline"):
            if key in section.model_fields_set:
                raise _fault(f"parameter_servers.{key}", message, hint)
        if jitter.apply is not None:
            raise _fault("jitter.apply", message, hint)
    ways = [(layout.servers[part.server], worker) for part in layout.parts for worker in range(layout.workers)]
    free = all(math.isinf(binding.cluster.bytes_per_s(binding.route(*way))) for way in ways)
    if free and jitter.communication is not None:
        raise _fault("jitter.communication", "has no influence: transfers take no time", "give cluster.nic")


def _conditions(
    scenario: Scenario,
    document: Document,
    cluster: Cluster,
    layout: Layout,
    section: ParameterServers,
    nodes: Sequence[Node],
) -> Conditions:
    names = [node.name for node in nodes]
    outages, degradations = _failures(scenario.faults or (), cluster, names)
    return Conditions(
        services={device: Service(section.cores, section.discipline) for device in layout.servers},
        jitter=jitter_of(scenario.jitter, document),
        stragglers=_stragglers(scenario, names[: layout.workers]),
        outages=outages,
        degradations=degradations,
        windows=_windows(cluster, layout, names) if layout.order == "window" else {},
    )


def _stragglers(scenario: Scenario, workers: Sequence[str]) -> tuple[Straggler, ...]:
    found = []
    for index, each in enumerate(scenario.stragglers or ()):
        if each.worker is not None and each.worker not in workers:
            hint = nearest(each.worker, workers) or f"known: {', '.join(workers[:8])}"
            raise _fault(f"stragglers.{index}.worker", f"no worker is named '{each.worker}'", hint)
        device = -1 if each.worker is None else workers.index(each.worker)
        found.append(Straggler(each.factor, device, 1.0 if each.probability is None else each.probability))
    return tuple(found)


def _failures(
    sections: Iterable[Failure], cluster: Cluster, names: Sequence[str]
) -> tuple[tuple[Outage, ...], tuple[Degradation, ...]]:
    outages: list[Outage] = []
    degradations: list[Degradation] = []
    faults: list[Fault] = []
    for index, each in enumerate(sections):
        path = f"faults.{index}"
        if each.node is not None:
            if each.node not in names:
                hint = nearest(each.node, names) or f"known: {', '.join(names[:8])}"
                faults.append(Fault(f"no worker or server is named '{each.node}'", f"{path}.node", suggestion=hint))
                continue
            outages.append(Outage(each.at, each.down or 0.0, names.index(each.node)))
        else:
            assert each.link is not None
            assert each.bandwidth is not None
            links = tuple(
                number for number, link in enumerate(cluster.links) if {link.source, link.target} == {*each.link}
            )
            faults += _wrong_link(each.link, each.bandwidth, [cluster.links[number] for number in links], path)
            degradations.append(Degradation(each.at, each.lasts or 0.0, links, each.bandwidth))
    faults += _overlapping(outages, names)
    if faults:
        raise ScenarioError.of(faults)
    return tuple(outages), tuple(degradations)


def _wrong_link(ends: Sequence[str], bytes_per_s: float, links: Sequence[Link], path: str) -> Iterable[Fault]:
    if not links:
        yield Fault(f"there is no link between '{ends[0]}' and '{ends[1]}'", f"{path}.link")
    for link in links[:1]:
        if link.kind not in ("fair_share", "fifo"):
            message = f"link '{link.name}' is {link.kind}: only fair_share and fifo links degrade"
            yield Fault(message, f"{path}.link")
        elif bytes_per_s >= link.bytes_per_s:
            yield Fault(f"not below the {link.bytes_per_s:g} B/s of link '{link.name}'", f"{path}.bandwidth")


def _overlapping(outages: Sequence[Outage], names: Sequence[str]) -> Iterable[Fault]:
    by_time = sorted(outages, key=lambda outage: (outage.device, outage.at_s))
    for first, second in pairwise(by_time):
        if first.device == second.device and second.at_s < first.at_s + first.down_s:
            yield Fault(f"'{names[first.device]}' is down already at {second.at_s:g} s", "faults")


def _windows(cluster: Cluster, layout: Layout, names: Sequence[str]) -> dict[tuple[int, int], int]:
    """A link for every two ends that limits each transfer by itself to a window a round trip."""
    windows: dict[tuple[int, int], int] = {}
    by_latency: dict[float, int] = {}
    for worker in range(layout.workers + layout.background):
        for server in layout.servers:
            for source, target in ((server, worker), (worker, server)):
                route = cluster.route(names[source], names[target])
                latency_s = cluster.latency_s(route)
                if not latency_s or all(cluster.links[link].kind != "fair_share" for link in route):
                    hint = "give cluster.link a latency and the kind fair_share"
                    raise _fault("schedule.order", "a window has no influence on this route", hint)
                if latency_s not in by_latency:
                    by_latency[latency_s] = len(cluster.links)
                    rate = layout.window_bytes / (2 * latency_s)
                    cluster.links.append(Link(f"window of {layout.window_bytes:g} B", "", "", "in_order", 0.0, rate))
                windows[source, target] = by_latency[latency_s]
    return windows


def _at_random_phases(program: Program, binding: Binding, keys: Mapping[str, Any]) -> Binding:
    """Workers start evenly over a step of their own, unless something synchronizes them."""
    layout = program.layout
    assert layout is not None
    if keys.get("start", "together" if layout.sums else "random") == "together":
        return binding
    latest_s = {f"worker{worker}": step_s(layout, binding, worker) for worker in range(layout.workers)}
    return replace(binding, conditions=replace(binding.conditions, latest_start_s=latest_s))
