"""``twinrail import kineto``: what is read of a trace is what its making says, PyTorch's own figures, or the model.

Traces of a CPU are made by PyTorch itself. Those of a GPU are typed here, in the format that Kineto writes.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from scenarios import import_command, kineto, kineto_profile, measured
from scenarios.command_line import app
from scenarios.load import load_document, parse_text
from scenarios.points import parse_points
from scenarios.run_folder import run_point
from scenarios.strict import validate
from sim.errors import ScenarioError, UnsupportedPlan
from sim.planners import PLANNERS

Event = dict[str, Any]


class Steps:
    """A trace by hand: an encoder of two linear layers, each time stated; ``scale`` times as long in each step."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.at_us = 1000.0
        self.number = 10

    def span(self, category: str, name: str, start_us: float, length_us: float, thread: int = 1, **more: Any) -> None:
        event = {"ph": "X", "cat": category, "name": name, "pid": 7, "tid": thread, "ts": start_us, "dur": length_us}
        self.events.append({**event, "args": {key.replace("_", " "): value for key, value in more.items()}})

    def op(self, name: str, at_us: float, length_us: float, shapes: list[list[int]], **more: Any) -> None:
        types = {"Input_Dims": shapes, "Input_type": ["float" if shape else "" for shape in shapes]}
        self.span("cpu_op", name, at_us, length_us, **types, **more)

    def node(self, name: str, at_us: float, length_us: float, shape: list[int], **more: Any) -> None:
        self.span("cpu_op", f"autograd::engine::evaluate_function: {name}", at_us, length_us, **more)
        self.op(name, at_us + 1, length_us - 2, [shape], **more)

    def step(self, scale: float = 1.0) -> None:
        """Two layers of 4 x 8 and 4 x 2, and a loss; backward and update follow."""
        at, first = self.at_us, self.number
        self.span("python_function", "nn.Module: Net_0", at, 200 * scale)
        for number, (wide, into, length_us) in enumerate(((8, 3, 30), (2, 8, 40))):
            start = at + (5 + 90 * number) * scale
            self.span("python_function", f"nn.Module: Linear_{number}", start, 80 * scale)
            self.op(
                "aten::linear", start + 1, length_us * scale, [[4, into], [wide, into]], Sequence_number=first + number
            )
            self.op(
                "aten::mm",
                start + 2,
                (length_us - 5) * scale,
                [[4, into], [into, wide]],
                Sequence_number=first + number,
            )
        self.op("aten::relu", at + 90 * scale, 4 * scale, [[4, 8]])
        self.op("aten::mse_loss", at + 210 * scale, 6 * scale, [[4, 2]], Sequence_number=first + 2)
        back, after = at + 300 * scale, "torch::autograd::AccumulateGrad"
        self.node("MseLossBackward0", back, 7 * scale, [], Sequence_number=first + 2)
        self.node("MmBackward0", back + 20 * scale, 50 * scale, [4, 2], Sequence_number=first + 1)
        self.node(after, back + 80 * scale, 3 * scale, [2, 8])
        self.node("MmBackward0", back + 90 * scale, 60 * scale, [4, 8], Sequence_number=first)
        self.node(after, back + 160 * scale, 5 * scale, [8, 3])
        self.span("user_annotation", "Optimizer.step#SGD.step", at + 500 * scale, 100 * scale)
        self.op("aten::add_", at + 510 * scale, 11 * scale, [[2, 8]])
        self.op("aten::add_", at + 530 * scale, 13 * scale, [[8, 3]])
        self.at_us, self.number = at + 1000 * scale, first + 3

    def write(self, path: Path) -> Path:
        path.write_text(json.dumps({"traceEvents": self.events}))
        return path


@pytest.fixture
def steps() -> Steps:
    return Steps()


def test_known_durations_come_out_exactly(steps: Steps, tmp_path: Path) -> None:
    steps.step()
    found = kineto_profile.profile(kineto.read(steps.write(tmp_path / "one.json")))
    layers = [(each.name, each.forward_us, each.backward_us) for each in found.layers]
    assert layers == [
        ("Linear_0", pytest.approx(30 + 4, abs=1e-6), pytest.approx(60 + 5, abs=1e-6)),  # with the relu after it
        ("Linear_1", pytest.approx(40 + 6, abs=1e-6), pytest.approx(50 + 3 + 7, abs=1e-6)),  # with the loss
    ]
    assert [(each.output_bytes, each.parameter_bytes, each.saved_bytes) for each in found.layers] == [
        (4 * 8 * 4, 8 * 3 * 4, None),
        (4 * 2 * 4, 2 * 8 * 4, None),
    ]
    assert (found.input_bytes, found.update_us) == (4 * 3 * 4, pytest.approx(24, abs=1e-6))
    assert (found.optimizer, found.dtype, found.steps, found.nccl) == ("SGD", "fp32", 1, 0)


def test_the_first_of_several_steps_does_not_count(steps: Steps, tmp_path: Path) -> None:
    for scale in (50, 1, 3, 2):
        steps.step(scale)
    found = kineto_profile.profile(kineto.read(steps.write(tmp_path / "four.json")))
    assert [each.forward_us for each in found.layers] == [pytest.approx(2 * 34), pytest.approx(2 * 46)]
    assert (found.update_us, found.steps) == (pytest.approx(2 * 24), 3)


def test_a_call_without_backward_is_no_step(steps: Steps, tmp_path: Path) -> None:
    steps.step()
    steps.span("python_function", "nn.Module: Net_0", steps.at_us, 500)
    steps.op("aten::linear", steps.at_us + 1, 400, [[4, 3], [8, 3]])
    found = kineto_profile.profile(kineto.read(steps.write(tmp_path / "eval.json")))
    assert (found.steps, found.layers[0].forward_us) == (1, pytest.approx(34))


def test_memory_that_stays_is_what_a_layer_saves(steps: Steps, tmp_path: Path) -> None:
    """Layer 0 keeps 500 of 700 bytes, of which layer 1 frees 100 again and allocates 20."""
    steps.step()
    for at_us, size in ((1010, 700), (1030, -200), (1100, 20), (1120, -120), (1500, 999)):
        arguments = {"Bytes": size, "Device Type": 0, "Addr": 1}
        steps.events.append({"ph": "i", "name": "[memory]", "pid": 7, "tid": 1, "ts": at_us, "args": arguments})
    found = kineto_profile.profile(kineto.read(steps.write(tmp_path / "memory.json")))
    assert [each.saved_bytes for each in found.layers] == [400, 0]


def kernel(
    steps: Steps, name: str, number: int, launched_us: float, length_us: float, thread: int = 1, stream: int = 7
) -> None:
    """A kernel long after its launch."""
    steps.span("cuda_runtime", "cudaLaunchKernel", launched_us, 1, thread, correlation=number)
    steps.span("kernel", name, launched_us + 5000, length_us, stream, correlation=number, stream=stream)


def test_on_a_gpu_kernels_count_by_what_launched_them(steps: Steps, tmp_path: Path) -> None:
    steps.step()
    for event in steps.events:  # PyTorch runs backward on a thread of its own
        event["tid"] = 2 if event["ts"] >= 1300 and event["cat"] == "cpu_op" and event["ts"] < 1490 else event["tid"]
    kernel(steps, "gemm", 1, 1007, 111)
    kernel(steps, "relu", 2, 1091, 5)
    kernel(steps, "gemm", 3, 1098, 222, stream=20)
    kernel(steps, "mse", 4, 1212, 7)
    kernel(steps, "gemm_backward", 5, 1325, 300, thread=2)
    kernel(steps, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 6, 1382, 9000, thread=2, stream=30)
    kernel(steps, "gemm_backward", 7, 1395, 400, thread=2)
    kernel(steps, "multi_tensor_apply", 8, 1512, 50)
    kernel(steps, "sync", 9, 1700, 77)
    found = kineto_profile.profile(kineto.read(steps.write(tmp_path / "gpu.json")))
    assert [(each.forward_us, each.backward_us) for each in found.layers] == [(116, 400), (229, 300)]
    assert (found.update_us, found.nccl) == (50, 1)
    content = import_command.model(tmp_path / "gpu.json", 4, "sgd", ())
    assert content["machine"] == {"device": "GPU"}
    assert "kernels of NCCL: left out (1), links take their time" in content["assumed"]


def without(steps: Steps, keep: Callable[[Event], bool]) -> list[Event]:
    return [event for event in steps.events if keep(event)]


FAULTS: dict[str, tuple[Callable[[Event], bool], str]] = {
    "stack": (
        lambda event: event["cat"] != "python_function",
        "no calls of nn.Module in it (with_stack=True: profile(",
    ),
    "shapes": (lambda event: not event["args"].pop("Input Dims", None) or True, "record_shapes=True"),
    "backward": (lambda event: "autograd" not in event["name"], "no backward pass in it"),
    "optimizer": (lambda event: event["cat"] != "user_annotation", "no optimizer.step() in it"),
    "parameters": (lambda event: "Accumulate" not in event["name"], "parameters are none"),
    "output": (lambda event: not (event["name"] == "MmBackward0" and event["ts"] < 1350), "what Linear_1 passes on"),
}


@pytest.mark.parametrize("what", FAULTS)
def test_what_a_trace_lacks_is_told_with_the_way_to_record_it(what: str, steps: Steps, tmp_path: Path) -> None:
    keep, message = FAULTS[what]
    steps.step()
    steps.events = without(steps, keep)
    with pytest.raises(ScenarioError) as caught:
        kineto_profile.profile(kineto.read(steps.write(tmp_path / "t.json")))
    assert message in str(caught.value)
    assert "t.json" in str(caught.value)


def test_all_that_is_lacking_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text('{"traceEvents": []}')
    with pytest.raises(ScenarioError) as caught:
        kineto_profile.profile(kineto.read(tmp_path / "t.json"), ["Block"])
    assert len(caught.value.faults) == 5


BROKEN = {
    "cut short": (b'{"traceEvents": [{"ph": "X"', "no JSON, or cut short"),
    "no trace": (b'{"events": []}', "no traceEvents"),
    "a list": (b"[]", "no traceEvents"),
    "binary": (b"\xff\xfe\x00", "no JSON, or cut short"),
    "deep": (b"[" * 100_000, "no JSON, or cut short"),
    "a long number": (b'{"traceEvents": ' + b"9" * 5000 + b"}", "no JSON, or cut short"),
    "damaged gzip": (gzip.compress(b'{"traceEvents": []}')[:-9], "a damaged gzip file"),
    "no gzip": (b"\x1f\x8bnothing", "a damaged gzip file"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_broken_files_are_refused(what: str, tmp_path: Path) -> None:
    content, message = BROKEN[what]
    (tmp_path / "t.json").write_bytes(content)
    with pytest.raises(ScenarioError, match=message):
        kineto.read(tmp_path / "t.json")


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "trace.json").touch()
    for name, message in (("trce.json", "did you mean 'trace.json'"), ("", "no ordinary file")):
        with pytest.raises(ScenarioError, match=message):
            kineto.read(tmp_path / name)


@pytest.mark.parametrize(
    "more",
    [{"ts": "now"}, {"dur": -1}, {"ts": float("nan")}, {"dur": 10**400}, {"tid": None}, {"args": []}, {"name": 3}],
)
def test_events_that_are_none_are_named(more: Event, steps: Steps, tmp_path: Path) -> None:
    steps.step()
    steps.events[3] |= more
    steps.events[5] |= more
    with pytest.raises(ScenarioError) as caught:
        kineto.read(steps.write(tmp_path / "t.json"))
    assert [fault.path for fault in caught.value.faults] == ["traceEvents.3", "traceEvents.5"]


def test_many_faulty_events_are_counted(steps: Steps, tmp_path: Path) -> None:
    steps.step()
    steps.events += [{**steps.events[1], "dur": -1}] * 30
    with pytest.raises(ScenarioError) as caught:
        kineto.read(steps.write(tmp_path / "t.json"))
    assert [len(caught.value.faults), caught.value.faults[-1].message] == [11, "20 more such events"]


def test_a_gzip_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto, "_MOST_BYTES", 1 << 20)
    (tmp_path / "bomb.json.gz").write_bytes(gzip.compress(b" " * (2 << 20)))
    with pytest.raises(ScenarioError, match="more than 1 MiB, unpacked"):
        kineto.read(tmp_path / "bomb.json.gz")


def test_few_bytes_of_many_values_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto, "_MOST_VALUES", 1000)
    (tmp_path / "bomb.json.gz").write_bytes(gzip.compress(b'{"traceEvents": [' + b"[]," * 1000 + b"[]]}"))
    with pytest.raises(ScenarioError, match="more than 1000 values: more than is read"):
        kineto.read(tmp_path / "bomb.json.gz")


def test_a_backward_pass_within_a_call_is_refused(steps: Steps, tmp_path: Path) -> None:
    """As of a penalty on gradients: the forward pass would seem to end where that begins."""
    steps.step()
    steps.node("MmBackward0", 1097, 3, [4, 8], thread=2, Sequence_number=3)
    with pytest.raises(ScenarioError, match="a backward pass begins within a call of the model"):
        kineto_profile.profile(kineto.read(steps.write(tmp_path / "t.json")))


def test_two_optimizers_of_a_class_are_refused(steps: Steps, tmp_path: Path) -> None:
    """Each would count as an update of all parameters."""
    steps.step()
    steps.span("user_annotation", "Optimizer.step#SGD.step", steps.at_us - 300, 100)
    with pytest.raises(ScenarioError, match=r"2 calls of optimizer\.step\(\) follow one of the model"):
        kineto_profile.profile(kineto.read(steps.write(tmp_path / "t.json")))


def test_deeply_nested_modules_end(steps: Steps, tmp_path: Path) -> None:
    steps.step()
    for level in range(3000):
        steps.span("python_function", f"nn.Module: Sequential_{level}", 1005 + level / 1e4, 20 - level / 1e3)
    assert len(kineto_profile.profile(kineto.read(steps.write(tmp_path / "t.json"))).layers) == 2


@pytest.fixture
def imported(steps: Steps, tmp_path: Path) -> Callable[..., Result]:
    steps.step()
    trace = steps.write(tmp_path / "net.pt.trace.json")

    def run(*options: str) -> Result:
        arguments = ["import", "kineto", str(trace), "--batch", "4", "--out", str(tmp_path / "net.yaml"), *options]
        return CliRunner().invoke(app, arguments)

    return run


def test_the_command_writes_a_model_and_shows_it(imported: Callable[..., Result], tmp_path: Path) -> None:
    told = imported("--optimizer", "sgd")
    assert told.exit_code == 0, told.stderr
    assert "Linear_1" in told.stdout
    assert "saved: its output, for want of profile_memory=True" in told.stderr
    file = measured.read_model(tmp_path / "net.yaml")
    assert (file.name, file.batch, file.optimizer, file.update) == ("net", 4, "sgd", pytest.approx(24e-6))
    again = imported("--optimizer", "sgd", "--json")
    assert json.loads(again.stdout)["layers"][0]["output"] == "128 B"


def test_whatever_things_are_called_the_file_is_read_again(steps: Steps, tmp_path: Path) -> None:
    steps.step()
    for event, name in zip(
        (event for event in steps.events if "Linear" in event["name"]), ("", "a/b\\\n"), strict=True
    ):
        event["name"] = f"nn.Module: {name}"
    content = import_command.model(steps.write(tmp_path / "a \\b\n.json"), 4, "sgd", ())
    import_command.write(content, tmp_path / "net.yaml")
    file = measured.read_model(tmp_path / "net.yaml")
    assert [file.name, *(layer.name for layer in file.layers)] == ["a___b_n", "module", "a_b__"]


@pytest.mark.parametrize("options", [(), ("--optimizer", "adam"), ("--optimizer", "momentm")])
def test_what_a_trace_hides_of_its_optimizer_is_asked(
    imported: Callable[..., Result], options: tuple[str, ...]
) -> None:
    told = imported(*options)
    assert told.exit_code == 2
    assert "--optimizer: the trace has SGD: expected sgd or momentum" in told.stderr


def test_what_is_opened_must_be_there(imported: Callable[..., Result]) -> None:
    told = imported("--optimizer", "sgd", "--open", "Linea")
    assert told.exit_code == 2
    assert "did you mean 'Linear'?" in told.stderr


SCENARIO = """\
name: imported
model: {MODEL, batch_size: 16}
cluster: {devices: 2, link: {kind: in_order, latency: 10 us, bandwidth: 12 GB/s}}
schedule: {name: one_f_one_b, stages: 2, micro_batches: 4, mini_batches: 2}
training: {optimizer: sgd}
"""


def test_a_scenario_simulates_what_was_imported(imported: Callable[..., Result], tmp_path: Path) -> None:
    """As if its layers were written out in the scenario."""
    imported("--optimizer", "sgd")
    layers = [
        "{name: a, forward: 34 us, backward: 65 us, output: 128 B, parameters: 96 B}",
        "{name: b, forward: 46 us, backward: 60 us, output: 32 B, parameters: 64 B}",
    ]
    written = f"layers: [{', '.join(layers)}], input: 48 B, measured_batch: 4"
    results = []
    for model in ("file: net.yaml", written):
        (tmp_path / "s.yaml").write_text(SCENARIO.replace("MODEL", model))
        (point,) = parse_points(load_document(tmp_path / "s.yaml"), PLANNERS)
        results.append(run_point(point, "s").result)
    peaks = [[device["peak_memory_bytes"] for device in result["devices"]] for result in results]
    assert peaks[0] == peaks[1]
    assert "parameters: every leaf tensor that got a gradient" in results[0]["provenance"]["model"]["notes"]


def test_on_one_device_a_step_takes_what_was_traced(imported: Callable[..., Result], tmp_path: Path) -> None:
    imported("--optimizer", "sgd")
    text = SCENARIO.replace("MODEL", "file: net.yaml").replace("stages: 2", "stages: 1")
    (tmp_path / "s.yaml").write_text(text)
    (point,) = parse_points(load_document(tmp_path / "s.yaml"), PLANNERS)
    step_us = 4 * (34 + 46 + 65 + 60) + 24
    assert run_point(point, "s").result["step_time_s"] == pytest.approx(step_us * 1e-6, rel=1e-9)


def test_a_scenario_must_train_as_the_trace_did(imported: Callable[..., Result], tmp_path: Path) -> None:
    imported("--optimizer", "sgd")
    text = SCENARIO.replace("MODEL", "file: net.yaml").replace("{optimizer: sgd}", "{optimizer: adam, dtype: bf16}")
    (tmp_path / "s.yaml").write_text(text)
    told = CliRunner().invoke(app, ["run", str(tmp_path / "s.yaml"), "--json"])
    assert told.exit_code == 2
    assert "s.yaml:5: training.optimizer: 'net.yaml' was measured with sgd, not adam" in told.stderr
    assert "s.yaml:5: training.dtype: 'net.yaml' was measured with fp32, not bf16" in told.stderr


def test_a_name_of_a_file_does_not_break_a_line(imported: Callable[..., Result], tmp_path: Path) -> None:
    imported("--optimizer", "sgd")
    (tmp_path / "net.yaml").rename(tmp_path / "a\nb.yaml")
    text = SCENARIO.replace("MODEL", 'file: "a\\nb.yaml"').replace("sgd", "adam")
    (tmp_path / "s.yaml").write_text(text)
    told = CliRunner().invoke(app, ["run", str(tmp_path / "s.yaml"), "--json"])
    assert "training.optimizer: 'a\\nb.yaml' was measured with sgd" in told.stderr


def test_a_model_of_times_is_not_executed(imported: Callable[..., Result], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    imported("--optimizer", "sgd")
    (tmp_path / "s.yaml").write_text(SCENARIO.replace("MODEL", "file: net.yaml") + "backend: torch\n")
    (point,) = parse_points(load_document(tmp_path / "s.yaml"), PLANNERS)
    with pytest.raises(UnsupportedPlan, match="of model 'net' only times are known"):
        run_point(point, "s")


def test_faults_of_a_model_file_have_lines(imported: Callable[..., Result], tmp_path: Path) -> None:
    imported("--optimizer", "sgd")
    text = (tmp_path / "net.yaml").read_text().replace("batch: 4", "batch: 0").replace("input: 48 B", "input: 48")
    with pytest.raises(ScenarioError) as caught:
        validate(measured.ModelFile, parse_text(text, "net.yaml"))
    assert [fault.path for fault in caught.value.faults] == ["batch", "input"]
    assert all(fault.line for fault in caught.value.faults)
