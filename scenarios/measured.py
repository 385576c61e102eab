"""Files of measured seconds for scenarios to name: of a shipped model's layers, or of a model of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from scenarios.document import Document
from scenarios.load import dump, load_document
from scenarios.quantities import Bytes, BytesPerSecond, Seconds
from scenarios.schema import Count, Layer, Name
from scenarios.strict import Many, Section, validate
from scenarios.text_file import saving
from sim.training import Dtype, Optimizer


class MeasuredLayer(Section):
    """One layer at the file's batch: medians, and under ``quartiles`` the first and third of each pass."""

    name: Name = Field(description="the layer's name, as in the model file")
    forward: Seconds = Field(description="the time of the forward pass")
    backward_input: Seconds = Field(description="the time of the input gradient")
    backward_weight: Seconds = Field(description="the time of the weight gradient")
    quartiles: Many[Many[Seconds]] | None = None


class MeasuredLink(Section):
    """A message of n bytes took latency + n / bandwidth."""

    latency: Seconds = Field(description="the time of an empty message")
    bandwidth: BytesPerSecond = Field(description="bytes per second of long messages")


class _Measured(Section):
    """At which batch and on which machine, and what is of all layers."""

    batch: Count = Field(description="samples that were measured at once")
    dtype: Dtype = Field(description="the number format")
    optimizer: Optimizer = Field(description="whose update was timed")
    update: Seconds = Field(description="the time of updating all parameters")
    overlap_gain: Annotated[float, Field(ge=1, le=2)] | None = Field(
        None, description="how much faster forward and backward are at once: for concurrency: {shared: gain}"
    )
    machine: dict[str, str] = Field(description="processor and versions")
    link: MeasuredLink | None = None


class MeasuredFile(_Measured):
    """What the layers of a shipped model took."""

    model: Name = Field(description="the name of a shipped model")
    layers: Annotated[Many[MeasuredLayer], Field(min_length=1)] = Field(description="a list of layers")


class ModelFile(_Measured):
    """A model of somebody's own: what its layers took, pass on, keep and hold. ``assumed``: what was not measured."""

    name: Name = Field(description="the model's name")
    source: str = Field(description="where the figures come from")
    assumed: Many[str] = ()
    input: Bytes = Field(description="the size of what it is given")
    layers: Annotated[Many[Layer], Field(min_length=1)] = Field(description="a list of layers")


def read(path: Path) -> MeasuredFile:
    """The profile of a shipped model in a file.

    Raises
    ------
    ScenarioError : what is wrong with it, each fault with file and line.
    """
    return validate(MeasuredFile, load_document(path))


def read_model(path: Path) -> ModelFile:
    """The model in a file.

    Raises
    ------
    ScenarioError : what is wrong with it, each fault with file and line.
    """
    return validate(ModelFile, load_document(path))


def write(path: Path, content: dict[str, Any]) -> None:
    """Write what `MeasuredFile` or `ModelFile` describes.

    Raises
    ------
    ScenarioError : the file cannot be written.
    """
    with saving(path):
        path.write_text(dump(content), encoding="utf-8")


def warning(path: str | None, document: Document) -> str | None:
    """What to warn of where a scenario's ``model.measured`` is from another machine than this one."""
    from backends.torch.fingerprint import fingerprint

    if path is None:
        return None
    profile = read(document.directory("model.measured") / path)
    return other_machine(profile, fingerprint("cuda" if "gpu" in profile.machine else "cpu"))


def other_machine(profile: MeasuredFile, here: dict[str, str]) -> str | None:
    """What to warn of where a profile is from another machine than this one."""
    differing = [f"{key} {profile.machine.get(key, '?')}, here {value}" for key, value in here.items()]
    differing = [
        text for text, (key, value) in zip(differing, here.items(), strict=True) if profile.machine.get(key) != value
    ]
    return f"the profile of {profile.model} is from another machine: {'; '.join(differing)}" if differing else None
