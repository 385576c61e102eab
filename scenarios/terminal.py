"""What every command of ``twinrail`` shares: how it is registered, its options, tables and progress bars.

Heavy imports wait inside the functions, so that ``--help`` answers at once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ParamSpec

import typer

from sim.errors import TwinrailError

if TYPE_CHECKING:
    from rich.progress import Progress

    from scenarios.document import Document

P = ParamSpec("P")

app = typer.Typer(
    help="How fast will this training job run on that hardware, will it fit, and is there a better plan?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

File = Annotated[str, typer.Argument(metavar="FILE", help="a scenario; - is standard input")]
Sets = Annotated[list[str] | None, typer.Option("--set", metavar="a.b=c", help="change one value; may be repeated")]
Out = Annotated[Path | None, typer.Option("--out", metavar="DIR", help="run folder; runs/NAME unless --json is given")]
Device = Annotated[str | None, typer.Option("--device", help="cpu or cuda: where real stages compute; cpu unless said")]
Oversubscribe = Annotated[
    bool, typer.Option("--allow-oversubscribe", help="let compute lanes of a device share one real core")
]
Json = Annotated[bool, typer.Option("--json", help="print JSON for machines")]


def group(name: str, what: str) -> typer.Typer:
    """A group of commands, ``twinrail NAME …``."""
    commands = typer.Typer(help=what, no_args_is_help=True)
    app.add_typer(commands, name=name)
    return commands


def command(name: str, group: typer.Typer = app) -> Callable[[Callable[P, None]], Callable[P, None]]:
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


def read_document(file: str, sets: Sequence[str] | None, backend: str | None = None) -> Document:
    """The scenario with ``--set`` and ``--backend`` in it."""
    from scenarios.load import apply_sets, load_document

    return apply_sets(load_document(file), [*(sets or ()), *([f"backend={backend}"] if backend else [])])


def folder_for(document: Document, out: Path | None, json: bool, what: str = "") -> Path | None:
    """The folder to write: ``--out``, else one in ``runs`` named by the scenario and ``what``, none for machines."""
    from scenarios.run_folder import file_name

    return out or (None if json else Path("runs") / f"{file_name(document.name)}{what}")


def progress_bar() -> Progress:
    """A bar with an ETA, on a terminal only."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


def render(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
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
