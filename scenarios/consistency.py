"""What must fit together in a scenario, across its sections.

These checks read the raw data and skip whatever is malformed (the schema reports that), so that no fault hides another.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Annotated, Any, get_origin

from pydantic import ConfigDict, Strict, TypeAdapter, ValidationError

from scenarios.document import NAMED_FILES, Document, KeyPath
from scenarios.load import Kind, load_document, nearest_file, shipped
from scenarios.quantities import shown
from scenarios.server_consistency import METHOD, has_servers, servers_at_odds
from scenarios.strict import Wrong, in_our_words
from sim.errors import ScenarioError, nearest
from sim.memory.settings import parse_settings

MAX_COUNT = 10**6
MAX_FORWARDS = 20 * 10**6
"""Forward passes of one scenario: stages x micro-batches x mini-batches."""
MAX_SAMPLED_FORWARDS = 10**10
"""The same times the samples: some minutes."""

Planners = Mapping[str, Callable[..., object]]
"""The ``plan`` function of each schedule, by name; read on demand, so a mapping may import on access."""

OF_EVERY_SCHEDULE = ("weights", "predict", "tensor_parallel")
"""Keys of ``schedule:`` that choose passes and devices; the others are the planner's."""
_OF_EVERY_FILE = ("csv", "dialect", "mini_batches", *OF_EVERY_SCHEDULE)
_NOT_WRITTEN = ("gpus", "costs", "told")
"""What a planner is told of the cluster and of the model on it: no keys of a schedule."""
_READ_BY_SCHEMA = ("consistency", "order", "bucket")
"""Keys of a schedule that a planner gets as the schema has read them."""
_FOR_EVERY_OP = ("lognormal", "uniform")
_FOR_SOME_OPS = ("compute", "communication", "apply")


def at_odds(document: Document, planners: Planners | None) -> Iterator[Wrong]:
    """What does not fit together in a scenario, its short forms written out."""
    data = document.data
    schedule, cluster, model = (_mapping(data.get(key)) for key in ("schedule", "cluster", "model"))
    yield from _sizes(schedule)
    group = _count(schedule, "tensor_parallel") or 1
    devices = (gpus := _devices(cluster)) and gpus // group
    yield from _stages(schedule, devices, model, _mapping(data.get("partition")))
    yield from _replicas(schedule, devices)
    yield from _tensor_parallel(schedule, cluster, model, gpus)
    yield from _zero(_mapping(data.get("training")), schedule, cluster)
    yield from _names(model, cluster)
    yield from _links_of_devices(cluster)
    yield from graph_at_odds(cluster, ("cluster",))
    for path, what in NAMED_FILES.items():
        yield from _file(_at(data, path), path, document, what)
    if "csv" in schedule and "name" not in schedule:
        yield from _keys_of_file(schedule)
    yield from _allocator(_mapping(data.get("memory")))
    yield from _random(data)
    yield from servers_at_odds(document)
    if "predict" in schedule and schedule.get("weights", "predict") != "predict":
        yield Wrong(("schedule", "predict"), "says nothing without weights: predict")
    if planners is not None and isinstance(name := schedule.get("name"), str):
        yield from _planner(name, schedule, planners)


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _at(data: Any, path: KeyPath) -> Any:
    for key in path:
        data = _mapping(data).get(str(key))
    return data


def _mappings(value: Any) -> list[tuple[int, dict[str, Any]]]:
    """The mappings of a list, with their indices."""
    return (
        [(index, item) for index, item in enumerate(value) if isinstance(item, dict)] if isinstance(value, list) else []
    )


def _count(section: Mapping[str, Any], key: str) -> int | None:
    value = section.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _counts(schedule: Mapping[str, Any]) -> dict[str, int]:
    several = [key for key in ("chunks",) if key in schedule]
    return {key: _count(schedule, key) or 1 for key in ("stages", *several, "micro_batches", "mini_batches")}


def _sizes(schedule: Mapping[str, Any]) -> Iterator[Wrong]:
    counts = _counts(schedule)
    forwards, largest = math.prod(counts.values()), max(counts, key=lambda key: counts[key])
    if forwards > MAX_FORWARDS and counts[largest] <= MAX_COUNT:
        product = f"{' x '.join(counts)} = {forwards}"
        yield Wrong(("schedule", largest), f"{product} forward passes: the limit is {MAX_FORWARDS}")


def _replicas(schedule: Mapping[str, Any], devices: int | None) -> Iterator[Wrong]:
    """Replicas of stages that the cluster has no room for, or whose turns hardly ever meet."""
    replicas, path = schedule.get("replicas"), ("schedule", "replicas")
    if replicas == []:
        yield Wrong(path, "is empty", "one count for each stage")
    if not isinstance(replicas, list) or not all(type(count) is int and count > 0 for count in replicas):
        return
    if devices and sum(replicas) > devices:
        yield Wrong(path, f"{sum(replicas)} GPUs on {devices} devices")
    elif (forwards := len(replicas) * math.lcm(*replicas)) > MAX_FORWARDS:
        yield Wrong(path, f"no common round within {MAX_FORWARDS} forward passes: it takes {forwards}")


def _stages(
    schedule: Mapping[str, Any], devices: int | None, model: Mapping[str, Any], partition: Mapping[str, Any]
) -> Iterator[Wrong]:
    stages = _count(schedule, "stages")
    layers = len(model["layers"]) if isinstance(model.get("layers"), list) else None
    cuts = partition.get("cuts") if isinstance(partition.get("cuts"), list) else None
    if stages and devices and stages > devices:
        yield Wrong(("schedule", "stages"), f"{stages} stages on {devices} devices", f"use 1 to {devices} stages")
    if stages and layers and stages > layers:
        yield Wrong(("schedule", "stages"), f"{stages} stages of {layers} layers", f"use 1 to {layers} stages")
    if cuts is None or not all(isinstance(cut, int) for cut in cuts):
        return
    if any(after <= before for before, after in itertools.pairwise(cuts)):
        yield Wrong(("partition", "cuts"), f"cuts must increase, got {cuts}")
    if stages and (len(cuts) + 1) % stages:  # a GPU may hold several
        yield Wrong(("partition", "cuts"), f"{len(cuts)} cuts make {len(cuts) + 1} stages, schedule.stages is {stages}")
    if layers and cuts and max(cuts) >= layers:
        yield Wrong(
            ("partition", "cuts"), f"no cut at {max(cuts)}: the model has {layers} layers", f"at most {layers - 1}"
        )


def _tensor_parallel(
    schedule: Mapping[str, Any], cluster: Mapping[str, Any], model: Mapping[str, Any], gpus: int | None
) -> Iterator[Wrong]:
    """Groups of GPUs that split layers: where it is known how, and for what is played on one GPU of each."""
    path, group = ("schedule", "tensor_parallel"), _count(schedule, "tensor_parallel") or 1
    if group == 1:
        return
    if "huggingface" not in model:
        yield Wrong(path, "it is not known how this model's layers are split", "use model.huggingface")
    elif schedule.get("name") == METHOD or schedule.get("sync") == "parameter_server":
        yield Wrong(path, "not with parameter servers: what a group moves to them is not counted")
    elif "cores" in cluster:
        yield Wrong(path, "not with cluster.cores, which the others of a group would share")
    elif gpus and (wrong := no_groups(gpus, group)):
        yield wrong


def no_groups(gpus: int, size: int) -> Wrong | None:
    """What is wrong where so many GPUs make no whole groups of ``size``."""
    if gpus % size == 0:
        return None
    hint = f"use {' or '.join(str(each) for each in range(1, gpus + 1) if gpus % each == 0)}"
    return Wrong(("schedule", "tensor_parallel"), f"{gpus} GPUs in groups of {size}", hint)


def _zero(training: Mapping[str, Any], schedule: Mapping[str, Any], cluster: Mapping[str, Any]) -> Iterator[Wrong]:
    path, rings = (
        ("training", "zero"),
        schedule.get("name") == "data_parallel" and schedule.get("sync", "ring") == "ring",
    )
    if not _count(training, "zero"):
        return
    if not rings:
        yield Wrong(path, "only the replicas of schedule data_parallel with sync: ring share what they hold")
    elif "cores" in cluster:
        yield Wrong(path, "not with cluster.cores, which replicas would not need while they gather")


def _devices(cluster: Mapping[str, Any]) -> int | None:
    """How many GPUs there are, where that can be told."""
    preset = cluster.get("preset")
    if isinstance(preset, str):
        return _devices_of_preset(preset)
    nodes = _mappings(cluster.get("nodes"))
    if nodes:
        return sum(1 for _, node in nodes if node.get("kind") == "gpu")
    return _count(cluster, "devices") or _count(cluster, "workers")


@lru_cache
def _devices_of_preset(name: str) -> int | None:
    path = shipped("clusters").get(name)
    return _devices({"nodes": load_document(path).data.get("nodes")}) if path else None


def _names(model: Mapping[str, Any], cluster: Mapping[str, Any]) -> Iterator[Wrong]:
    """Names of shipped things that do not exist."""
    named: list[tuple[Kind, KeyPath, Any]] = [
        ("models", ("model", "name"), model.get("name")),
        ("clusters", ("cluster", "preset"), cluster.get("preset")),
        *(("devices", ("cluster", key), cluster.get(key)) for key in ("device", "host")),
    ]
    for kind, path, name in named:
        if isinstance(name, str) and name not in (known := shipped(kind)):
            yield Wrong(path, f"unknown {kind[:-1]} {shown(name)}", _hint(name, known))
    yield from devices_at_odds(cluster, ("cluster",))


def devices_at_odds(section: Mapping[str, Any], path: KeyPath) -> Iterator[Wrong]:
    """Devices of ``nodes`` that do not exist."""
    known = shipped("devices")
    for index, node in _mappings(section.get("nodes")):
        if isinstance(name := node.get("device"), str) and name not in known:
            yield Wrong((*path, "nodes", index, "device"), f"unknown device {shown(name)}", _hint(name, known))


def _hint(name: str, known: Iterable[str]) -> str:
    return nearest(name, known) or f"known: {', '.join(known)}"


def _links_of_devices(cluster: Mapping[str, Any]) -> Iterator[Wrong]:
    link = cluster.get("link")
    if "workers" in cluster and "bandwidth" in _mapping(link):
        yield Wrong(
            ("cluster", "link", "bandwidth"), "of workers and servers it is that of their nic", "write cluster.nic"
        )
    if "workers" in cluster and "kind" in _mapping(link) and "nic" not in cluster:
        yield Wrong(("cluster", "link", "kind"), "has no influence without cluster.nic")
    if "devices" not in cluster:
        return
    if "cores" in cluster and "concurrency" in cluster:
        yield Wrong(("cluster", "concurrency"), "has no influence beside cores, which all compute lanes share")
    if link is None and _count(cluster, "devices") != 1:
        yield Wrong(("cluster", "link"), "missing: what joins the devices, such as {kind: fifo, bandwidth: 12 GB/s}")
    if isinstance(link, dict) and "kind" not in link:
        yield Wrong(("cluster", "link", "kind"), "missing: latency, in_order, fifo or fair_share")
    yield from _bandwidth(_mapping(link), ("cluster", "link"))


def _bandwidth(link: Mapping[str, Any], path: KeyPath) -> Iterator[Wrong]:
    if link.get("kind") in ("in_order", "fifo", "fair_share") and "bandwidth" not in link:
        yield Wrong((*path, "bandwidth"), f"missing: a link of kind {link['kind']} needs one, such as 12 GB/s")


def graph_at_odds(section: Mapping[str, Any], path: KeyPath) -> Iterator[Wrong]:
    """What is wrong with ``nodes`` and ``links``: doubled names, ends that do not exist, no GPU, no route."""
    kinds: dict[str, Any] = {}
    for index, node in _mappings(section.get("nodes")):
        here: KeyPath = (*path, "nodes", index)
        if node.get("kind") == "switch":
            yield from (Wrong((*here, key), "a switch has none") for key in ("device", "concurrency") if key in node)
        if not isinstance(name := node.get("name"), str):
            continue
        if name in kinds:
            yield Wrong((*here, "name"), f"node {shown(name)} is there twice")
        kinds[name] = node.get("kind")
    if kinds and all(kind in ("host", "switch") for kind in kinds.values()):
        yield Wrong((*path, "nodes"), "there is no node of kind gpu")
    strangers = False
    edges: dict[tuple[str, str], None] = {}
    for index, link in _mappings(section.get("links")):
        here = (*path, "links", index)
        yield from _bandwidth(link, here)
        ends = _ends(link)
        for key, end in ends:
            if end not in kinds:
                strangers = True
                yield Wrong((*here, *key), f"unknown node {shown(end)}", _hint(end, kinds))
        names = [end for _, end in ends]
        if len(set(names)) < len(names):
            yield Wrong(here, "joins a node with itself")
        for edge in itertools.permutations(names, 2) if "between" in link else itertools.pairwise(names):
            if edge in edges and edge[0] != edge[1]:
                yield Wrong(here, f"there is a link from {shown(edge[0])} to {shown(edge[1])} already")
            edges[edge] = None
    computing = [name for name, kind in kinds.items() if kind != "switch"]
    if not strangers and (pair := _without_route(computing, edges)):
        yield Wrong((*path, "links"), f"there is no route from {shown(pair[0])} to {shown(pair[1])}")


def _ends(link: Mapping[str, Any]) -> list[tuple[KeyPath, str]]:
    """The two ends of a link and where each is written."""
    between = link.get("between")
    if isinstance(between, list):
        written: list[tuple[KeyPath, Any]] = [(("between", index), end) for index, end in enumerate(between[:2])]
    else:
        written = [((key,), link.get(key)) for key in ("from", "to")]
    return [(key, end) for key, end in written if isinstance(end, str)]


def _without_route(nodes: Sequence[str], edges: Iterable[tuple[str, str]]) -> tuple[str, str] | None:
    """Two nodes, the second out of reach of the first. All reach each other if the first reaches all, and all it."""
    edges = list(edges)
    onward = _reached(nodes[:1], edges)
    back = _reached(nodes[:1], [(target, source) for source, target in edges])
    for node in nodes[1:]:
        if node not in onward:
            return nodes[0], node
        if node not in back:
            return node, nodes[0]
    return None


def _reached(start: Iterable[str], edges: Iterable[tuple[str, str]]) -> set[str]:
    following: dict[str, list[str]] = {}
    for source, target in edges:
        following.setdefault(source, []).append(target)
    reached, pending = set(start), list(start)
    while pending:
        new = set(following.get(pending.pop(), ())) - reached
        reached |= new
        pending += new
    return reached


def _file(name: Any, path: KeyPath, document: Document, what: str) -> Iterator[Wrong]:
    """Whether there is a file of that name; whoever reads it says what is wrong in it."""
    if not isinstance(name, str):
        return
    file = document.directory(path) / name
    try:
        if file.is_dir():
            hint = "name the graph.txt in it" if path[-1] == "profile" else None
            yield Wrong(path, f"{shown(name)} is a directory: expected {what}", hint)
        elif not file.exists():
            yield Wrong(path, f"there is no file {shown(str(file))}", nearest_file(file))
        elif not file.is_file():
            yield Wrong(path, f"{shown(name)} is no ordinary file: expected {what}")
    except (OSError, ValueError) as error:
        yield Wrong(path, f"{shown(name)} cannot be read: {getattr(error, 'strerror', None) or 'no file name'}")


def _random(data: Mapping[str, Any]) -> Iterator[Wrong]:
    """What needs random times, where there are none, and what does not bear them."""
    backend, jitter = data.get("backend", "simulated"), data.get("jitter")
    if isinstance(jitter, dict) and jitter.keys() <= {*_FOR_EVERY_OP, *_FOR_SOME_OPS}:
        every, some = ([key for key in group if key in jitter] for group in (_FOR_EVERY_OP, _FOR_SOME_OPS))
        if len(every) > 1 or bool(every) == bool(some):
            choices = (
                "lognormal or uniform for every op, or a distribution under some of compute, communication and apply"
            )
            yield Wrong(("jitter",), f"expected {choices}; got {' and '.join(every + some) or 'none'}")
    forwards = math.prod(_counts(_mapping(data.get("schedule"))).values()) * (_count(data, "samples") or 1)
    if "samples" in data and forwards > MAX_SAMPLED_FORWARDS:
        message = f"{forwards} forward passes over all samples: the limit is {MAX_SAMPLED_FORWARDS}"
        yield Wrong(("samples",), message)
    if "jitter" in data and "samples" not in data and not has_servers(data):
        yield Wrong(("jitter",), "'jitter' belongs with samples, which is not given")
    if "samples" in data and backend in ("simulated", "torch"):
        yield Wrong(("samples",), f"backend {backend} plays one run at a time", "write backend: longest_path")
    if "steady_state" in data and "jitter" in data:
        yield Wrong(("steady_state",), "times that vary do not repeat: leave out samples and jitter, or this")
    if "steady_state" in data and backend == "torch":
        yield Wrong(("steady_state",), "backend torch measures, and measured times do not repeat")


def _keys_of_file(schedule: Mapping[str, Any]) -> Iterator[Wrong]:
    """A file states its stages and micro-batches itself."""
    for key in sorted(schedule.keys() - set(_OF_EVERY_FILE)):
        if key in ("stages", "micro_batches"):
            yield Wrong(("schedule", key), "is what the file of schedule.csv says", "leave it out")
        else:
            hint = nearest(key, _OF_EVERY_FILE) or f"known: {', '.join(_OF_EVERY_FILE)}"
            yield Wrong(("schedule", key), f"unknown key {shown(key)} of a schedule in CSV", hint)


def _allocator(memory: Mapping[str, Any]) -> Iterator[Wrong]:
    """Settings that PyTorch would refuse, and keys that the allocator does not heed."""
    name, text = memory.get("allocator", "counting"), memory.get("settings")
    if name != "caching":
        for key in (key for key in ("settings", "driver") if key in memory):
            yield Wrong(("memory", key), f"has no influence on allocator: {shown(name)}", "use allocator: caching")
        return
    expandable = False
    if isinstance(text, str):
        try:
            expandable = parse_settings(text).expandable_segments
        except ScenarioError as error:
            message = "; ".join(str(fault) for fault in error.faults)
            yield Wrong(("memory", "settings"), message)
            return
    for key in _mapping(memory.get("driver")):
        if expandable != (key in ("map", "unmap")):
            reason = "take no cudaMalloc or cudaFree" if expandable else "alone map pages"
            yield Wrong(("memory", "driver", key), f"has no influence here: expandable segments {reason}")


def _planner(name: str, schedule: Mapping[str, Any], planners: Planners) -> Iterator[Wrong]:
    if name not in planners:
        yield Wrong(
            ("schedule", "name"),
            f"unknown schedule {shown(name)}: known are {', '.join(planners)}",
            nearest(name, planners),
        )
        return
    keys = {key: value for key, value in schedule.items() if key != "name"}
    yield from wrong_schedule_keys(name, keys, signature_of(planners[name]))


@lru_cache
def signature_of(plan: Callable[..., object]) -> inspect.Signature:
    """What a planner wants to know, its annotations as types."""
    return inspect.signature(plan, eval_str=True)


def wrong_schedule_keys(name: str, keys: Mapping[str, Any], signature: inspect.Signature) -> Iterator[Wrong]:
    """What is wrong with the keys of a schedule, given the signature of its planner with annotations evaluated."""
    known = {key: parameter for key, parameter in signature.parameters.items() if key not in _NOT_WRITTEN}
    for key, value in keys.items():
        path: KeyPath = ("schedule", key)
        if key in _READ_BY_SCHEMA and key in known:
            continue
        if key in known:
            yield from _wrong_value(path, value, known[key].annotation)
        elif key not in OF_EVERY_SCHEDULE:
            words = (*known, *OF_EVERY_SCHEDULE)
            hint = nearest(key, words) or f"known: {', '.join(words)}"
            yield Wrong(path, f"unknown key {shown(key)} of schedule {shown(name)}", hint)
    for key, parameter in known.items():
        if parameter.default is inspect.Parameter.empty and key not in keys:
            yield Wrong(("schedule", key), f"missing: schedule {shown(name)} needs it")


def _wrong_value(path: KeyPath, value: Any, annotation: Any) -> Iterator[Wrong]:
    if isinstance(value, int) and not isinstance(value, bool) and not 1 <= value <= MAX_COUNT:
        yield Wrong(path, f"must be from 1 to {MAX_COUNT}, got {shown(value)}")
        return
    try:
        _adapter(annotation).validate_python(value)
    except ValidationError as error:
        yield from (in_our_words(each)._replace(path=path) for each in error.errors(include_url=False)[:1])


@lru_cache
def _adapter(annotation: Any) -> TypeAdapter[Any]:
    if get_origin(annotation) is tuple:
        annotation = Annotated[annotation, Strict(False)]
    return TypeAdapter(annotation, config=ConfigDict(strict=True, allow_inf_nan=False))
