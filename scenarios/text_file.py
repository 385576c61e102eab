"""Files that users name: what is no such file is refused before it is read, what the disk refuses is told."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scenarios.load import nearest_file
from scenarios.quantities import printable
from sim.errors import Fault, ScenarioError

_MISSING = "no such file"


def read_text(path: Path, what: str, most_bytes: int) -> str:
    """The text of a file that should hold ``what``, such as "a PipeDream profile".

    Raises
    ------
    ScenarioError : no ordinary file of at most ``most_bytes``, or no UTF-8.
    """
    try:
        refusal = _refusal(path, what, most_bytes)
        text = "" if refusal else path.read_text(encoding="utf-8-sig")
    except OSError as error:
        refusal = f"cannot be read: {error.strerror}"
    except UnicodeDecodeError:
        refusal = f"a binary file: expected {what}, which is text"
    else:
        refusal = f"a binary file: expected {what}, which is text" if "\0" in text else refusal
    if refusal:
        hint = nearest_file(path) if refusal == _MISSING else None
        raise ScenarioError.of([Fault(refusal, file=printable(str(path)), suggestion=hint)])
    return text


@contextmanager
def saving(path: Path | str, option: str = "--out") -> Iterator[None]:
    """Write to a path that an option named; what the disk refuses is the user's fault to mend.

    Raises
    ------
    ScenarioError : it cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise ScenarioError.of([Fault(f"cannot write there: {error.strerror}", option, str(path))]) from None


def _refusal(path: Path, what: str, most_bytes: int) -> str | None:
    """Why there is nothing to read, told before it is opened: a device or a pipe may never end."""
    if path.is_dir():
        return f"a directory: expected {what}"
    if not path.exists():
        return _MISSING
    if not path.is_file() or path.stat().st_size > most_bytes:
        return f"expected {what}: a text file of at most {most_bytes >> 20} MiB"
    return None
