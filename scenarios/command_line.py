"""The command ``twinrail``. Heavy imports wait inside the commands, so that ``--help`` answers at once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec

import typer

from sim.errors import ScenarioError, TwinrailError

if TYPE_CHECKING:
    from rich.progress import Progress

    from scenarios.document import Document
    from scenarios.points import Point
    from scenarios.run_folder import Outcome

P = ParamSpec("P")

app = typer.Typer(
    help="How fast will this training job run on that hardware, will it fit, and is there a better plan?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

memory = typer.Typer(help="PyTorch's memory snapshots: replay and draw them.", no_args_is_help=True)
app.add_typer(memory, name="memory")
queue = typer.Typer(help="Parameter servers as queueing networks.", no_args_is_help=True)
app.add_typer(queue, name="queue")
packets = typer.Typer(help="Demands of parameter servers from captured packets.", no_args_is_help=True)
app.add_typer(packets, name="packets")

File = Annotated[str, typer.Argument(metavar="FILE", help="a scenario; - is standard input")]
Sets = Annotated[list[str] | None, typer.Option("--set", metavar="a.b=c", help="change one value; may be repeated")]
Out = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="run folder; runs/NAME unless --json is given")]
Json = Annotated[bool, typer.Option("--json", help="print JSON for machines")]
BackendName = Annotated[str | None, typer.Option("--backend", help="simulated, longest_path or torch")]
ComputeName = Annotated[
    str | None,
    typer.Option("--compute", help="of real workers with parameter servers: real, or sleep as long as planned"),
]


def main() -> None:
    """The console script: refuses to start where another package shadows ours."""
    if shadow := _shadow():
        sys.exit(f"twinrail: {shadow} shadows our package 'sim': rename it, or start elsewhere")
    app()


def _shadow() -> str | None:
    """The file that Python found for ``sim`` where it is not ours."""
    import scenarios
    import sim

    ours, found = Path(str(scenarios.__file__)).parent.parent, Path(str(sim.__file__)).parent.parent
    return None if ours == found else str(sim.__file__)


def _command(name: str, group: typer.Typer = app) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Register a command whose errors are messages and exit codes, never tracebacks."""

    def register(function: Callable[P, None]) -> Callable[P, None]:
        @wraps(function)
        def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
            try:
                function(*args, **kwargs)
            except TwinrailError as error:
                typer.echo(str(error), err=True)
                raise typer.Exit(error.exit_code) from None
            except BrokenPipeError:  # whoever read our output has seen enough
                raise typer.Exit(0) from None

        group.command(name)(guarded)
        return guarded

    return register


def _document(file: str, sets: Sequence[str] | None, backend: str | None = None) -> Document:
    """The scenario with ``--set`` and ``--backend`` in it."""
    from scenarios.load import apply_sets, load_document

    return apply_sets(load_document(file), [*(sets or ()), *([f"backend={backend}"] if backend else [])])


def _served(compute: str | None, checkpoint: Path | None = None, resume: bool = False) -> dict[str, Any]:
    """What is said of real parameter servers: keywords of `backends.torch.run`."""
    if compute not in (None, "real", "sleep"):
        raise ScenarioError(f"--compute: expected real or sleep, got '{compute}'")
    if resume and checkpoint is None:
        raise ScenarioError("--resume has no influence without --checkpoint DIR")
    said: dict[str, Any] = {} if compute is None else {"compute": compute}
    if checkpoint is not None:
        from backends.torch.servers import Checkpoint

        said["checkpoint"] = Checkpoint(checkpoint, resume=resume)
    return said


@_command("run")
def run(
    file: File,
    sets: Sets = None,
    out: Out = None,
    json: Json = False,
    backend: BackendName = None,
    compute: ComputeName = None,
    checkpoint: Annotated[
        Path | None, typer.Option("--checkpoint", metavar="DIR", help="where real parameter servers keep their state")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on from what stands in --checkpoint")] = False,
) -> None:
    """Run one scenario."""
    from scenarios.run_folder import read_points

    document = _document(file, sets, backend)
    points = read_points(document)
    if len(points) > 1:
        raise ScenarioError(f"{file} holds a sweep of {len(points)} points: use 'twinrail sweep'")
    _execute(document, points, out, json, _served(compute, checkpoint, resume), single=True)


@_command("sweep")
def sweep(
    file: File,
    sets: Sets = None,
    out: Out = None,
    json: Json = False,
    backend: BackendName = None,
    compute: ComputeName = None,
) -> None:
    """Run every point of a scenario's sweep and compare them."""
    from scenarios.run_folder import read_points

    document = _document(file, sets, backend)
    if "sweep" not in document.data:
        raise ScenarioError(f"{file} has no sweep: use 'twinrail run'")
    _execute(document, read_points(document), out, json, _served(compute), single=False)


def _execute(
    document: Document, points: Sequence[Point], out: Path | None, json: bool, served: Mapping[str, Any], single: bool
) -> None:
    """Run the points, print them, and write the run folder where one is wanted."""
    from scenarios import run_folder

    if "converge" in document.data:
        raise ScenarioError("this scenario is an experiment: use 'twinrail converge', or write --set converge=null")
    name = str(document.data.get("name", "run"))
    outcomes = _with_progress(points, name, served)
    folder = out or (None if json else Path("runs") / run_folder.file_name(name))
    table = _table(outcomes)
    if folder is not None:
        run_folder.write(folder, document, outcomes, table)
    if json:
        results = [outcome.result for outcome in outcomes]
        typer.echo(run_folder.to_json(results[0] if single else results), nl=False)
        return
    typer.echo(table, nl=False)
    typer.echo(f"{folder}: gantt.png, result.json, traces (Chrome JSON for ui.perfetto.dev)", err=True)


def _with_progress(points: Sequence[Point], scenario: str, served: Mapping[str, Any]) -> list[Outcome]:
    """Run the points under a progress bar."""
    from scenarios.run_folder import run_all

    with _progress() as progress:
        task = progress.add_task(scenario, total=len(points))
        return run_all(points, scenario, lambda _: progress.advance(task), served)


def _progress() -> Progress:
    """A bar with an ETA, on a terminal only."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def _table(outcomes: Sequence[Outcome]) -> str:
    """Runs with parameter servers have a table of their own; one by itself also says who does what."""
    from analysis import server_table, table

    results = [outcome.result for outcome in outcomes]
    served = [result for result in results if "parameter_servers" in result]
    tables = [] if len(served) == len(results) else [table.rows(results)]
    tables += [server_table.rows(served)] if served else []
    tables += [server_table.details(served[0])] if len(results) == len(served) == 1 else []
    return "\n".join(_render(*each) for each in tables)


def _render(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table as text: the first column and the last to the left, figures to the right."""
    import io

    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for index, column in enumerate(columns):
        grid.add_column(column, justify="left" if index in (0, len(columns) - 1) else "right")
    for row in rows:
        grid.add_row(*map(Text, row))
    text = io.StringIO()
    width = Console().width if sys.stdout.isatty() else 240
    Console(file=text, width=width).print(grid)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


@_command("check")
def check(file: File, sets: Sets = None, json: Json = False) -> None:
    """Validate a scenario, a schedule or a trace, told apart by content, and run nothing."""
    from scenarios.check import check_file
    from scenarios.run_folder import to_json

    found = check_file(file, sets or ())
    typer.echo(to_json(found) if json else f"{file}: {found['what']}", nl=not json)


@_command("show")
def show_schedule(
    file: File,
    sets: Sets = None,
    point: Annotated[str | None, typer.Option(help="which point of a sweep")] = None,
    columns: Annotated[int | None, typer.Option(min=1, help="slots to show; 32 unless said")] = None,
    csv: Annotated[bool, typer.Option("--csv", help="print one schedule as the CSV that PyTorch reads")] = False,
    json: Json = False,
) -> None:
    """Draw the schedule: a row a compute lane, a column a slot in which a forward or a backward takes one."""
    from scenarios.run_folder import to_json
    from scenarios.show import csv_text, drawings

    if csv and columns is not None:
        raise ScenarioError("--columns has no influence on --csv")
    drawn = csv_text(file, sets or (), point) if csv else drawings(file, sets or (), point, columns or 32)
    if json:
        typer.echo(to_json(drawn), nl=False)
        return
    for name, text in drawn.items():
        typer.echo(text if csv else f"{name}\n{text}\n", nl=not csv)


@_command("diff")
def diff(
    first: Annotated[Path, typer.Argument(metavar="RUN", help="a run folder")],
    second: Annotated[Path, typer.Argument(metavar="RUN", help="another")],
    json: Json = False,
) -> None:
    """Compare two run folders: every figure that differs, point by point."""
    from scenarios import run_folder
    from scenarios.show import differences

    rows = differences(run_folder.read(first), run_folder.read(second))
    if json:
        typer.echo(run_folder.to_json(rows), nl=False)
    elif rows:
        typer.echo(_render([*rows[0]], [[_cell(value) for value in row.values()] for row in rows]), nl=False)
    else:
        typer.echo("no difference")


def _cell(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "" if value is None else str(value)


@_command("partition")
def partition(
    profile: Annotated[Path, typer.Argument(metavar="PROFILE", help="a graph.txt of PipeDream's profiler")],
    machines: Annotated[int, typer.Option(metavar="N", help="machines, all of which are used")],
    bandwidth: Annotated[str, typer.Option(metavar="RATE", help="between machines, such as '12 GB/s'")],
    transfers: Annotated[str, typer.Option(help="include or ignore activations and their gradients")] = "include",
    sync: Annotated[str, typer.Option(help="compute and gradients of replicas: sum (as released) or max")] = "sum",
    straight: Annotated[bool, typer.Option("--straight", help="one machine a stage")] = False,
    memory: Annotated[str | None, typer.Option(metavar="SIZE", help="of a machine, such as '16 GB'")] = None,
    plot: Annotated[str | None, typer.Option(metavar="FILE", help="draw the graph, stages in colour: .png")] = None,
    json: Json = False,
) -> None:
    """Cut a measured profile into stages and replicate them, as PipeDream does."""
    from scenarios import partition_command
    from scenarios.run_folder import to_json

    options = {"machines": machines, "bandwidth": bandwidth, "transfers": transfers, "sync": sync}
    options |= {"straight": straight, "memory": memory, "plot": plot}
    result = partition_command.partition_profile(profile, options)
    if json:
        typer.echo(to_json(result), nl=False)
        return
    typer.echo(_render(partition_command.COLUMNS, partition_command.rows(result)), nl=False)
    typer.echo(partition_command.summary(result), nl=False)


@_command("replay", memory)
def memory_replay(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="a snapshot of PyTorch's CUDA memory")],
    sets: Annotated[list[str] | None, typer.Option("--set", metavar="key=value", help="what if; repeatable")] = None,
    capacity: Annotated[str | None, typer.Option(metavar="SIZE", help="what if on a GPU of, say, '16 GiB'")] = None,
    compare: Annotated[bool, typer.Option("--compare", help="what other allocators would have needed")] = False,
    device: Annotated[int | None, typer.Option(min=0, help="which, where there are several")] = None,
    recorded_on: Annotated[str | None, typer.Option(metavar="SIZE", help="memory of the GPU recorded on")] = None,
    json: Json = False,
) -> None:
    """Play a recorded trace through the model of PyTorch's allocator and compare every address, segment and block."""
    from scenarios import memory_command
    from scenarios.run_folder import to_json

    given = {"capacity": capacity, "recorded_on": recorded_on}
    result = memory_command.replay_file(file, given, sets or (), device, compare)
    if json:
        typer.echo(to_json(result), nl=False)
    else:
        typer.echo(_render(["replayed", "checked", "matched"], memory_command.rows(result)), nl=False)
        typer.echo(memory_command.summary(result), nl=False)
    if not memory_command.agrees(result):
        raise typer.Exit(1)


@_command("plot", memory)
def memory_plot(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="a memory snapshot, or a trace of a run (.npz)")],
    out: Annotated[str, typer.Option("--out", metavar="FILE", help="the image: .png, .svg or .pdf")] = "memory.png",
    device: Annotated[int | None, typer.Option(min=0, help="which, where there are several")] = None,
) -> None:
    """Draw memory over time by category, allocated and reserved, and the map of segments at the peak."""
    from scenarios import memory_command

    memory_command.plot_file(file, Path(out), device)
    typer.echo(f"{out} written", err=True)


@_command("solve", queue)
def queue_solve(
    network: Annotated[str, typer.Argument(metavar="NETWORK", help="population and stations; - is standard input")],
    json: Json = False,
) -> None:
    """Solve a closed queueing network: throughput, response, queues and bounds."""
    from scenarios import queue_command
    from scenarios.run_folder import to_json

    result = queue_command.solve_file(network)
    if json:
        typer.echo(to_json(result), nl=False)
        return
    typer.echo(_render(queue_command.COLUMNS, queue_command.rows(result)), nl=False)
    typer.echo(queue_command.summary(result), nl=False)


@_command("predict", queue)
def queue_predict(
    file: File,
    workers: Annotated[str | None, typer.Option(metavar="1..8", help="or 1,2,4; up to the scenario's")] = None,
    servers: Annotated[str | None, typer.Option(metavar="1,2,4", help="the scenario's unless said")] = None,
    target: Annotated[float | None, typer.Option(metavar="0.9", help="of linear speed: how many servers?")] = None,
    steps: Annotated[int | None, typer.Option(metavar="N", help="simulated of each worker")] = None,
    point: Annotated[str | None, typer.Option(help="which point of a sweep")] = None,
    sets: Sets = None,
    out: Out = None,
    json: Json = False,
) -> None:
    """Predict throughput and staleness over workers and servers: simulation, queueing theory and bounds."""
    from analysis.queueing import predict_table
    from scenarios import queue_predict
    from scenarios.run_folder import file_name, to_json

    options = {"workers": workers, "servers": servers, "target": target, "steps": steps, "point": point}
    asked = queue_predict.prepare(_document(file, sets), options)
    with _progress() as progress:
        task = progress.add_task(asked.name, total=queue_predict.runs(asked))
        result = queue_predict.predict(asked, lambda: progress.advance(task))
    table = _render(predict_table.COLUMNS, predict_table.rows(result)) + predict_table.summary(result)
    folder = out or (None if json else Path("runs") / f"{file_name(asked.name)}-queue")
    if folder is not None:
        queue_predict.write(folder, result, table)
    typer.echo(to_json(result) if json else table, nl=False)
    if not json:
        typer.echo(f"{folder}: result.json, table.txt, throughput.png", err=True)


@_command("fit", queue)
def queue_fit(
    series: Annotated[Path, typer.Argument(metavar="SERIES.csv", help="columns workers, steps_per_s and group keys")],
    upto: Annotated[int | None, typer.Option(min=1, metavar="W", help="fit no more workers; all unless said")] = None,
    predict: Annotated[int | None, typer.Option(metavar="W", help="predict up to; twice as many unless said")] = None,
    steps: Annotated[
        Path | None, typer.Option(metavar="STEPS.csv", help="phases of one worker's steps, to simulate more of it")
    ] = None,
    json: Json = False,
) -> None:
    """Find a server's demands in measured throughput, and predict it with more workers."""
    from scenarios import queue_fit_command
    from scenarios.run_folder import to_json

    result = queue_fit_command.fit_series(series, upto, predict, steps)
    if json:
        typer.echo(to_json(result), nl=False)
        return
    typer.echo(_render(*queue_fit_command.rows(result)), nl=False)
    typer.echo(queue_fit_command.summary(result), nl=False)


@_command("snapshot", memory)
def memory_snapshot(
    file: Annotated[Path, typer.Argument(metavar="TRACE", help="the trace of a run with allocator: caching (.npz)")],
    out: Annotated[str, typer.Option("--out", metavar="FILE", help="the snapshot")] = "snapshot.pickle",
) -> None:
    """Write a simulated run as a snapshot that PyTorch's memory viewer (pytorch.org/memory_viz) opens."""
    from scenarios import memory_command

    memory_command.write_snapshot(file, Path(out))
    typer.echo(f"{out} written", err=True)


@_command("read", packets)
def packets_read(
    capture: Annotated[str, typer.Argument(metavar="CAPTURE", help="pcap or pcapng; - is standard input")],
    server: Annotated[list[str] | None, typer.Option(metavar="HOST:PORT", help="a server; may be repeated")] = None,
    model_bytes: Annotated[int | None, typer.Option(metavar="N", help="what a step loads, as far as known")] = None,
    compute: Annotated[str | None, typer.Option(metavar="TIME", help="what a step computes, as far as known")] = None,
    each_connection: Annotated[
        bool, typer.Option("--each-connection", help="every connection is a worker, not every address")
    ] = False,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="draw the time line there")] = None,
    yaml: Annotated[str | None, typer.Option(metavar="FILE", help="write a scenario with the demands")] = None,
    json: Json = False,
) -> None:
    """Steps of every worker and demands of every server from a capture."""
    from scenarios import packets_command
    from scenarios.run_folder import to_json

    options = {"model_bytes": model_bytes, "compute": compute, "yaml": yaml}
    with _progress() as progress:
        size = Path(capture).stat().st_size if Path(capture).is_file() else None
        task = progress.add_task(Path(capture).name, total=size)
        result = packets_command.read_file(
            capture, server or (), options, each_connection, out, lambda more: progress.advance(task, more)
        )
    if json:
        typer.echo(to_json(result), nl=False)
        return
    typer.echo(_render(packets_command.WORKER_COLUMNS, packets_command.worker_rows(result)), nl=False)
    typer.echo(_render(packets_command.SERVER_COLUMNS, packets_command.server_rows(result)), nl=False)
    typer.echo(packets_command.summary(result), nl=False)


@_command("capture", packets)
def packets_capture(
    file: File,
    sets: Sets = None,
    port: Annotated[int | None, typer.Option(help="of the servers; 2222 unless said")] = None,
    interface: Annotated[str | None, typer.Option(help="any unless said")] = None,
    node: Annotated[str | None, typer.Option(metavar="NAME", help="one node of the scenario")] = None,
    start: Annotated[bool, typer.Option("--run", help="start it here; needs --node")] = False,
    json: Json = False,
) -> None:
    """Print the command that captures the packets of a scenario, for each node."""
    from scenarios import packets_command
    from scenarios.run_folder import to_json

    if start and node is None:
        raise ScenarioError("--run: which node is this? expected --node NAME")
    options = {"port": port, "interface": interface, "node": node}
    found = packets_command.commands(_document(file, sets), options)
    if json:
        typer.echo(to_json(found), nl=False)
    else:
        for name, command in found.items():
            typer.echo(f"{name}: {packets_command.line(command)}")
    if start and node is not None:
        packets_command.capture(found[node])


@_command("synthesize", packets)
def packets_synthesize(
    file: File,
    out: Annotated[str, typer.Option("--out", metavar="FILE.pcap", help="where to write")],
    sets: Sets = None,
    segment: Annotated[int | None, typer.Option(metavar="BYTES", help="payload of a packet; 1448 unless said")] = None,
    json: Json = False,
) -> None:
    """Write the capture that a simulated run would have produced."""
    from scenarios import packets_command
    from scenarios.run_folder import to_json

    result = packets_command.synthesize(_document(file, sets), {"out": out, "segment": segment})
    if json:
        typer.echo(to_json(result), nl=False)
        return
    typer.echo(f"{out}: {result['packets']:,} packets; read it with\n{result['read_with']}")


@_command("checkpoint")
def checkpoint(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="a shipped model, a model file, or graph.txt")
    ] = None,
    sizes: Annotated[str | None, typer.Option(metavar="d0,d1,…", help="bytes of y_0…y_n, instead of a model")] = None,
    objective: Annotated[str | None, typer.Option(help="basic, corrected, reentrant or non_reentrant")] = None,
    budget: Annotated[str | None, typer.Option(metavar="SIZE", help="least time within '8GiB', not least peak")] = None,
    batch: Annotated[int | None, typer.Option(help="samples; 32 unless said")] = None,
    shape: Annotated[str | None, typer.Option(metavar="3,224,224", help="of a sample, if not the model's")] = None,
    ends: Annotated[str | None, typer.Option(help="whether y_0 and y_n count: counted or not")] = None,
    granularity: Annotated[str | None, typer.Option(help="plain, standalone_pool or operation")] = None,
    optimizer: Annotated[str | None, typer.Option(help="sgd, momentum, adam or adamw")] = None,
    platform: Annotated[str | None, typer.Option(help="whose PyTorch: cpu or cuda")] = None,
    device: Annotated[str | None, typer.Option(help="whose seconds: a shipped device; p40 unless said")] = None,
    nested: Annotated[bool, typer.Option("--nested", help="let what is run again be checkpointed in turn")] = False,
    offload: Annotated[str | None, typer.Option(metavar="RATE", help="nested, and inputs may wait in the host")] = None,
    compare: Annotated[bool, typer.Option("--compare", help="print other plans beside it")] = False,
    measure: Annotated[bool, typer.Option("--measure", help="set what PyTorch holds beside it")] = False,
    out: Annotated[str | None, typer.Option(metavar="FILE", help="write the plan: .yaml or .json")] = None,
    json: Json = False,
) -> None:
    """Find which activations to keep and which to recompute: the least peak, or the least time within a budget."""
    from scenarios import checkpoint_command
    from scenarios.run_folder import to_json

    options = {"model": model, "sizes": sizes, "objective": objective, "budget": budget, "batch": batch, "ends": ends}
    options["shape"] = shape
    options |= {"granularity": granularity, "optimizer": optimizer, "platform": platform, "device": device}
    options |= {"nested": nested, "offload": offload, "measure": measure, "out": out}
    result = checkpoint_command.solve(options)
    if json:
        typer.echo(to_json(result), nl=False)
        return
    if compare:
        typer.echo(_render(checkpoint_command.COLUMNS, checkpoint_command.rows(result)), nl=False)
    typer.echo(checkpoint_command.summary(result), nl=False)


@_command("profile")
def profile(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="a shipped model, or your module:factory")],
    batch: Annotated[int, typer.Option(help="samples measured at once: the micro-batch of what is to be run")] = 32,
    optimizer: Annotated[str, typer.Option(help="sgd, momentum, adam or adamw")] = "momentum",
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    repeats: Annotated[int, typer.Option(help="steps that count, after three that warm up")] = 20,
    link: Annotated[bool, typer.Option("--link", help="also time messages between two processes")] = False,
    analytic: Annotated[bool, typer.Option("--analytic", help="flops and bytes only, without running")] = False,
    input_: Annotated[str | None, typer.Option("--input", metavar="3,224,224", help="of your own: one sample")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="for 'model.measured' of a scenario")
    ] = None,
    json: Json = False,
) -> None:
    """Measure what the layers of a model take on this machine."""
    from scenarios import profile_command
    from scenarios.run_folder import to_json

    options = {"batch": batch, "optimizer": optimizer, "device": device, "repeats": repeats, "link": link}
    found = profile_command.profile(model, {**options, "analytic": analytic, "input": input_})
    if out is not None:
        profile_command.write(out, found)
    if json or analytic:
        typer.echo(to_json(found), nl=False)
    else:
        typer.echo(_render(profile_command.COLUMNS, profile_command.rows(found)), nl=False)


@_command("validate")
def validate(
    file: File,
    sets: Sets = None,
    out: Out = None,
    repeats: Annotated[int, typer.Option(min=1, help="runs of each point")] = 5,
    oversubscribe: Annotated[
        bool, typer.Option("--allow-oversubscribe", help="let lanes of a device share one core")
    ] = False,
    json: Json = False,
) -> None:
    """Profile, simulate, execute and compare: how far is the prediction from this machine?"""
    from scenarios import run_folder, server_validation, validation

    document = _document(file, sets)
    points, name = run_folder.read_points(document), str(document.data.get("name", "run"))
    folder = out or Path("runs") / f"{run_folder.file_name(name)}-validation"
    if server_validation.is_for(points):
        if oversubscribe:
            raise ScenarioError("--allow-oversubscribe has no influence on workers of parameter servers: they sleep")
        _validate_servers(document, points, folder, repeats, json)
        return
    with run_folder.writing(folder), _progress() as progress:
        task = progress.add_task(name, total=validation.steps(points, repeats))
        found = validation.validate(
            points, folder, repeats, oversubscribe, lambda what: progress.update(task, advance=1, description=what)
        )
    tables = {each.name: _render(validation.COLUMNS, validation.rows(each)) for each in found}
    validation.write(folder, document, found, tables)
    if json:
        typer.echo(run_folder.to_json(validation.as_json(found)), nl=False)
        return
    for each in found:
        typer.echo(f"{each.name}: {each.verdict}{tables[each.name]}", nl=False)
    typer.echo(f"{folder}: validation.json, profiles, traces and charts of both rails", err=True)


def _validate_servers(document: Document, points: Sequence[Point], folder: Path, repeats: int, json: bool) -> None:
    from scenarios import run_folder, server_validation

    with run_folder.writing(folder), _progress() as progress:
        task = progress.add_task(folder.name, total=server_validation.steps(points, repeats))
        found = server_validation.validate(
            points, folder, repeats, lambda what: progress.update(task, advance=1, description=what)
        )
    figures = server_validation.as_json(found)
    table = _render(server_validation.COLUMNS, server_validation.rows(found))
    table += f"{server_validation.verdict(figures)}\n"
    server_validation.write(folder, document, found, table)
    if json:
        typer.echo(run_folder.to_json(figures), nl=False)
        return
    typer.echo(table, nl=False)
    typer.echo(f"{folder}: validation.json, throughput.png, captures of one worker, traces of all runs", err=True)


@_command("converge")
def converge(
    file: File,
    sets: Sets = None,
    out: Out = None,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="trainings at once, one core each")] = 1,
    json: Json = False,
) -> None:
    """Train every point of a scenario in the order of its simulation: what do methods learn in cluster time?"""
    from scenarios import converge_command, run_folder

    document = _document(file, sets)
    points, name = run_folder.read_points(document), str(document.data.get("name", "run"))
    wanted = converge_command.check(points)
    with _progress() as progress:
        task = progress.add_task(name, total=len(converge_command.cases(points, wanted)))
        found = converge_command.converge(points, wanted, jobs, lambda: progress.advance(task))
    tables = {"methods": _render(converge_command.COLUMNS, converge_command.rows(found))}
    if found.prediction:
        rows = converge_command.prediction_rows(found)
        tables["prediction"] = _render(converge_command.PREDICTION_COLUMNS, rows)
    folder = out or (None if json else Path("runs") / f"{run_folder.file_name(name)}-converge")
    if folder is not None:
        converge_command.write(folder, document, found, tables)
    if json:
        typer.echo(run_folder.to_json(converge_command.as_json(found)), nl=False)
        return
    typer.echo("".join(tables.values()), nl=False)
    typer.echo(f"{folder}: converge.json, converge.png, every loss", err=True)


@_command("init")
def init(
    file: Annotated[str, typer.Argument(metavar="FILE", help="where to write; - is standard output")] = "-",
) -> None:
    """Write a commented scenario to start from."""
    from scenarios.show import starter

    text = starter()
    if file == "-":
        typer.echo(text, nl=False)
        return
    try:
        with Path(file).open("x", encoding="utf-8") as new:
            new.write(text)
    except OSError as error:
        raise ScenarioError(f"{file}: cannot write there: {error.strerror}") from None
    typer.echo(f"{file} written: try 'twinrail run {file}'", err=True)


@_command("list")
def catalogue(
    kind: Annotated[str, typer.Argument(metavar="KIND", help="schedules, models, clusters, devices or scenarios")],
    json: Json = False,
) -> None:
    """List what is shipped: schedules, models, clusters, devices or scenarios."""
    from scenarios.run_folder import to_json
    from scenarios.show import catalogue as shipped

    found = shipped(kind)
    if json:
        typer.echo(to_json(found), nl=False)
        return
    typer.echo(_render([kind, "what it is"], [[name, text] for name, text in found.items()]), nl=False)


@_command("schema")
def schema() -> None:
    """Print the JSON Schema of scenario files, for editors."""
    from scenarios.run_folder import to_json
    from scenarios.schema import json_schema

    typer.echo(to_json(json_schema()), nl=False)
