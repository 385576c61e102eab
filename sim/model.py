"""What is trained: layers with seconds, bytes and flops.

A `ModelProfile` holds seconds (measured, or computed from a `LayerTable` and a device by the roofline);
a `LayerTable` holds work per sample, so it can be put on any device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Literal

Origin = Literal["measured", "published", "assumed"]
"""Where a figure comes from: measured by somebody's run, published in a paper or data sheet, or assumed."""

DTYPE_BYTES = {"fp32": 4, "bf16": 2}


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer at the profile's batch: seconds per pass, bytes per batch (parameters: per model copy).

    ``saved_bytes`` is what backward needs of this layer (its output unless stated), ``flops`` of the forward pass.
    ``saved_for_weight_bytes`` is what the weight gradient needs once the input gradient is done; ``None``: all of it.
    ``variables_bytes`` are its parameter tensors in the order of creation; empty: one, if it has parameters.
    """

    name: str
    forward_s: float
    backward_input_s: float
    backward_weight_s: float
    output_bytes: float
    saved_bytes: float
    parameter_bytes: float
    flops: float = 0.0
    saved_for_weight_bytes: float | None = None
    variables_bytes: tuple[float, ...] = ()

    @property
    def variable_bytes(self) -> tuple[float, ...]:
        """Sizes of its parameter tensors."""
        return self.variables_bytes or ((self.parameter_bytes,) if self.parameter_bytes else ())

    @property
    def weight_state_bytes(self) -> float:
        """What is held between input gradient and weight gradient."""
        return self.saved_bytes if self.saved_for_weight_bytes is None else self.saved_for_weight_bytes

    @property
    def backward_s(self) -> float:
        """Seconds of the full backward: input gradient and weight gradient."""
        return self.backward_input_s + self.backward_weight_s


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """A chain of layers with seconds and bytes at a batch of ``batch`` samples.

    Times and activation bytes scale linearly with samples (`at`). ``parameter_bytes_each`` is the size of one
    parameter in ``parameter_bytes``: 4 for fp32. ``update_s`` is the time of updating all of them, where measured.
    """

    name: str
    batch: float
    layers: tuple[Layer, ...]
    input_bytes: float
    origin: Origin
    source: str
    parameter_bytes_each: int = 4
    notes: tuple[str, ...] = ()
    update_s: float | None = None

    def at(self, samples: float) -> ModelProfile:
        """The same model at another batch; seconds, activation bytes and flops in proportion to samples."""
        if samples == self.batch:
            return self
        f = samples / self.batch
        layers = tuple(
            replace(
                layer,
                forward_s=layer.forward_s * f,
                backward_input_s=layer.backward_input_s * f,
                backward_weight_s=layer.backward_weight_s * f,
                output_bytes=layer.output_bytes * f,
                saved_bytes=layer.saved_bytes * f,
                flops=layer.flops * f,
                saved_for_weight_bytes=layer.weight_state_bytes * f,
            )
            for layer in self.layers
        )
        return replace(self, batch=samples, layers=layers, input_bytes=self.input_bytes * f)


@dataclass(frozen=True, slots=True)
class Kernel:
    """One operation of a layer: flops and activation elements moved, both per sample, and its parameters.

    ``parameter_reads``: how often a forward pass reads all parameters: each step of a recurrence does, an embedding
    reads single rows, which count as moved. ``operands``: inputs that want a gradient, two for a product of
    activations. ``variables``: elements of each parameter tensor in the order of creation; empty: one, if any.
    """

    flops: float
    moved_elements: float
    parameter_elements: float = 0.0
    parameter_reads: int = 1
    operands: int = 1
    variables: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class LayerWork:
    """One layer of a `LayerTable`, per sample: multiply–adds count as two flops; elements, not bytes.

    ``saved_elements`` is what backward needs of this layer: its output unless stated, nothing where it works in place.
    ``kernels`` run one after the other: unless stated one, that moves input, output and parameters; a view has none.
    Of a layer split among GPUs all but ``forward_flops`` is the share of one of them, and ``reduced_elements`` what
    they sum, forward and backward.
    """

    name: str
    forward_flops: float
    output_elements: float
    parameter_elements: float
    in_place: bool = False
    saved_elements: float | None = None
    kernels: tuple[Kernel, ...] | None = None
    reduced_elements: tuple[float, float] = (0.0, 0.0)

    @property
    def saved(self) -> float:
        """Elements kept for backward."""
        if self.saved_elements is not None:
            return self.saved_elements
        return 0.0 if self.in_place else self.output_elements

    def kernels_on(self, arriving: float) -> tuple[Kernel, ...]:
        """The kernels where ``arriving`` input elements are read."""
        if self.kernels is not None:
            return self.kernels
        return (Kernel(self.forward_flops, arriving + self.output_elements, self.parameter_elements),)

    @property
    def variables(self) -> tuple[float, ...]:
        """Elements of its parameter tensors, in the order of creation."""
        kernels = self.kernels_on(0.0)
        return tuple(size for kernel in kernels for size in kernel.variables or (kernel.parameter_elements,) if size)


@dataclass(frozen=True, slots=True)
class LayerTable:
    """A model as published: work per sample, without a device and without a batch."""

    name: str
    input_elements: float
    layers: tuple[LayerWork, ...]
    source: str


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """What a device can do. Peaks per dtype in flop/s, memory in bytes and bytes/s; efficiencies in (0, 1]."""

    name: str
    memory_bytes: int
    memory_bytes_per_s: float
    peak_flops_per_s: dict[str, float]
    compute_efficiency: dict[str, float]
    memory_efficiency: float
    source: str


def roofline(table: LayerTable, device: DeviceSpec, dtype: str, samples: float) -> ModelProfile:
    """Seconds of each kernel as the larger of arithmetic time and memory time (Williams et al., CACM 2009), summed.

    Forward moves the input, the output and the parameters once. Each of the two gradients of backward does the
    arithmetic of forward: the input gradient moves dy, parameters and dx; the weight gradient x, dy and dw. A kernel
    without parameters has no weight gradient; one with no parameters before it needs no input gradient.

    Raises
    ------
    ValueError : the device has no peak for ``dtype``.
    """
    if dtype not in device.peak_flops_per_s:
        raise ValueError(f"device '{device.name}' has no peak for dtype {dtype}")
    flops_per_s = device.peak_flops_per_s[dtype] * device.compute_efficiency[dtype]
    bytes_per_s = device.memory_bytes_per_s * device.memory_efficiency
    size = DTYPE_BYTES[dtype]

    def seconds(kernel: Kernel, parameter_reads: int) -> float:
        moved_elements = kernel.moved_elements * samples + kernel.parameter_elements * parameter_reads
        return max(kernel.flops * samples / flops_per_s, moved_elements * size / bytes_per_s)

    passes: list[Passes] = []
    arriving, trained = table.input_elements, False
    for work in table.layers:
        forward_s = backward_input_s = backward_weight_s = 0.0
        for kernel in work.kernels_on(arriving):
            pass_s = seconds(kernel, kernel.parameter_reads)
            forward_s += pass_s
            backward_input_s += pass_s * kernel.operands if trained else 0.0
            backward_weight_s += seconds(kernel, 1) if kernel.parameter_elements else 0.0
            trained = trained or kernel.parameter_elements > 0
        passes.append((forward_s, backward_input_s, backward_weight_s))
        arriving = work.output_elements
    return taking(table, dtype, samples, passes, "published", f"roofline of {device.name} ({dtype}); {table.source}")


Passes = tuple[float, float, float]
"""Seconds of the forward pass, the input gradient and the weight gradient."""


def taking(
    table: LayerTable, dtype: str, samples: float, passes: Sequence[Passes], origin: Origin, source: str
) -> ModelProfile:
    """A layer table whose layers take the seconds of ``passes`` for ``samples`` samples."""
    size = DTYPE_BYTES[dtype]
    layers = tuple(
        Layer(
            work.name,
            *seconds,
            output_bytes=work.output_elements * samples * size,
            saved_bytes=work.saved * samples * size,
            parameter_bytes=work.parameter_elements * size,
            flops=work.forward_flops * samples,
            variables_bytes=tuple(elements * size for elements in work.variables),
        )
        for work, seconds in zip(table.layers, passes, strict=True)
    )
    arriving = table.input_elements * samples * size
    return ModelProfile(table.name, samples, layers, arriving, origin, source, parameter_bytes_each=size)


def uniform(stages: int, layer: Layer, samples: float) -> ModelProfile:
    """One identical layer per stage, at the micro-batch of ``samples``: the model behind most closed forms."""
    layers = tuple(replace(layer, name=f"stage{index}") for index in range(stages))
    return ModelProfile("uniform", samples, layers, layer.output_bytes, "assumed", "uniform stages of the scenario")


def total(layers: Sequence[Layer], field: str) -> float:
    """Sum of one field over layers, in layer order."""
    return float(sum(map(attrgetter(field), layers)))
