"""The model of a scenario as a profile at one micro-batch: named, measured, written out, or uniform."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from scenarios import huggingface, measured
from scenarios.document import Document
from scenarios.layer_table import layer_table
from scenarios.load import load_document, shipped
from scenarios.pipedream import batch_of, read_graph
from scenarios.quantities import printable
from scenarios.schema import Layer as LayerSection
from scenarios.schema import Model, Scenario, Uniform
from sim import tensor_parallel
from sim.cluster import Cluster
from sim.errors import Fault, ScenarioError
from sim.graph import chain
from sim.model import DTYPE_BYTES, Layer, LayerTable, ModelProfile, roofline, taking, total, uniform


def build_profile(
    scenario: Scenario, document: Document, cluster: Cluster, stages: int, samples: float
) -> ModelProfile:
    """The profile at ``samples`` samples; a uniform model has one layer for each of ``stages``.

    Raises
    ------
    ScenarioError : a file that is no profile, no batch for a measured one, no equal devices for a layer table.
    """
    model = scenario.model
    if model.uniform is not None:
        return uniform(stages, _uniform_layer(model.uniform), samples)
    if model.measured is not None:
        return _from_machine(scenario, document, samples)
    if model.file is not None:
        return _from_file(scenario, document, samples)
    if model.name is not None:
        return _from_table(shipped_table(model.name), scenario, cluster, samples)
    if model.huggingface is not None:
        assert model.sequence is not None
        path = document.directory("model.huggingface") / model.huggingface
        count = cluster.tensor_parallel
        table = huggingface.read_table(path, model.sequence, model.attention or "eager", count)
        profile = _from_table(table, scenario, cluster, samples)
        return profile if count == 1 else tensor_parallel.reducing(profile, table, cluster)
    profile = _measured(model, document) if model.profile is not None else _written_out(model)
    return profile.at(samples)


@lru_cache
def shipped_table(name: str) -> LayerTable:
    """The shipped layer table of that name."""
    return layer_table(load_document(shipped("models")[name]).data)


def _from_table(table: LayerTable, scenario: Scenario, cluster: Cluster, samples: float) -> ModelProfile:
    specs = {node.name: node.spec for group in cluster.groups for node in group}
    missing = [name for name, spec in specs.items() if spec is None]
    if missing:
        message = f"model '{table.name}' has no times of its own and '{missing[0]}' is no known device"
        hint = "name a device such as p40, or give model.profile, model.layers or model.uniform"
        raise ScenarioError.of([Fault(message, "cluster", suggestion=hint)])
    kinds = {spec.name: spec for spec in specs.values() if spec is not None}
    if len(kinds) > 1:
        message = f"devices differ ({', '.join(kinds)}): a layer table is put on equal devices"
        raise ScenarioError.of([Fault(message, "cluster", suggestion="give model.layers with times of their own")])
    spec = next(iter(kinds.values()))
    dtype = scenario.training.dtype
    if dtype not in spec.peak_flops_per_s:
        message = f"device '{spec.name}' has no {dtype} arithmetic: it has {', '.join(spec.peak_flops_per_s)}"
        raise ScenarioError.of([Fault(message, "training.dtype")])
    return roofline(table, spec, dtype, samples)


def _from_machine(scenario: Scenario, document: Document, samples: float) -> ModelProfile:
    """A shipped model with the seconds of a file of ``twinrail profile``."""
    model, training = scenario.model, scenario.training
    assert model.name is not None
    assert model.measured is not None
    table, path = shipped_table(model.name), document.directory("model.measured") / model.measured
    file = measured.read(path)
    names, own = [layer.name for layer in file.layers], [work.name for work in table.layers]
    differing = {"model": (file.model, model.name), "layers": (names, own), "dtype": (file.dtype, training.dtype)}
    differing["optimizer"] = (file.optimizer, training.optimizer)
    if wrong := [what for what, (found, wanted) in differing.items() if found != wanted]:
        message = f"'{printable(model.measured)}' was measured with another {' and another '.join(wrong)}"
        raise ScenarioError.of([Fault(message, "model.measured", suggestion="measure it with 'twinrail profile'")])
    passes = [(layer.forward, layer.backward_input, layer.backward_weight) for layer in file.layers]
    source = f"{model.measured}: {', '.join(file.machine.values())}; {table.source}"
    profile = taking(table, file.dtype, file.batch, passes, "measured", source)
    return replace(profile.at(samples), update_s=file.update)


def _from_file(scenario: Scenario, document: Document, samples: float) -> ModelProfile:
    """A model of somebody's own, from a file of ``twinrail profile`` or ``twinrail import``."""
    assert scenario.model.file is not None
    file = measured.read_model(document.directory("model.file") / scenario.model.file)
    differing = {key: (getattr(file, key), getattr(scenario.training, key)) for key in ("dtype", "optimizer")}
    if faults := [
        Fault(
            f"'{printable(scenario.model.file)}' was measured with {found}, not {wanted}",
            f"training.{key}",
            suggestion=found,
        )
        for key, (found, wanted) in differing.items()
        if found != wanted
    ]:
        raise ScenarioError.of(faults)
    layers = tuple(_layer(layer) for layer in file.layers)
    profile = ModelProfile(
        name=file.name,
        batch=file.batch,
        layers=layers,
        input_bytes=file.input,
        origin="measured",
        source=f"{scenario.model.file}: {', '.join(file.machine.values())}; {file.source}",
        parameter_bytes_each=DTYPE_BYTES[file.dtype],
        notes=file.assumed,
        update_s=file.update if total(layers, "parameter_bytes") else None,
    )
    return profile.at(samples)


def _measured(model: Model, document: Document) -> ModelProfile:
    """A PipeDream profile as a chain, at the batch it was measured at."""
    assert model.profile is not None
    path = document.directory("model.profile") / model.profile
    graph = read_graph(path)
    batch = model.measured_batch or batch_of(path)
    if batch is None:
        message = f"'{printable(model.profile)}' does not say at which batch it was measured"
        raise ScenarioError.of([Fault(message, "model.measured_batch", suggestion="write measured_batch: 128")])
    return chain(graph, path.stem, batch)


def _written_out(model: Model) -> ModelProfile:
    assert model.layers is not None
    layers = tuple(_layer(layer) for layer in model.layers)
    batch = model.measured_batch or model.batch_size
    arriving = model.input if model.input is not None else 0.0
    return ModelProfile("layers", batch, layers, arriving, "assumed", "layers of the scenario")


def _layer(section: LayerSection) -> Layer:
    input_s, weight_s = _backward(section)
    return Layer(
        name=section.name,
        forward_s=section.forward,
        backward_input_s=input_s,
        backward_weight_s=weight_s,
        output_bytes=section.output,
        saved_bytes=section.output if section.saved is None else section.saved,
        parameter_bytes=section.parameters,
        flops=section.flops or 0.0,
        saved_for_weight_bytes=section.saved_for_weight,
    )


def _uniform_layer(section: Uniform) -> Layer:
    input_s, weight_s = _backward(section)
    return Layer(
        name="stage",
        forward_s=section.forward,
        backward_input_s=input_s,
        backward_weight_s=weight_s,
        output_bytes=section.activation,
        saved_bytes=section.activation if section.saved is None else section.saved,
        parameter_bytes=section.parameters,
        saved_for_weight_bytes=section.saved_for_weight,
    )


def _backward(section: LayerSection | Uniform) -> tuple[float, float]:
    """Seconds of the input and the weight gradient; half each where only their sum is given."""
    if section.backward is not None:
        return section.backward / 2, section.backward / 2
    assert section.backward_input is not None
    assert section.backward_weight is not None
    return section.backward_input, section.backward_weight
