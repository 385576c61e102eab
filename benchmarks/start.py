"""Start-up: ``twinrail --help`` against importing the libraries it cannot do without."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Sequence

from benchmarks.measure import Row


def _cpu_seconds(arguments: Sequence[str]) -> float:
    """CPU time of a child process, user and system."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime)


def measure() -> list[Row]:
    """The row of this benchmark; the least of seven, since noise only adds."""
    ours = ["-c", "import sys; sys.argv = ['twinrail', '--help']; from scenarios.command_line import main; main()"]
    reference = ["-c", "import typer, rich, pydantic, ruamel.yaml"]
    pairs = [(_cpu_seconds(ours), _cpu_seconds(reference)) for _ in range(7)]
    mine, theirs = (min(pair[side] for pair in pairs) for side in (0, 1))
    text = "importing typer, rich, pydantic, ruamel.yaml"
    return [Row("twinrail --help", f"{1e3 * mine:.0f} ms", f"{1e3 * theirs:.0f} ms", theirs / mine, "0.625", text)]
