"""The console script ``twinrail``: every file of `scenarios.commands` adds commands to it."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import scenarios
import sim


def _shadow() -> str | None:
    """The file that Python found for ``sim`` where it is not ours."""
    ours, found = (Path(str(package.__file__)).resolve().parent.parent for package in (scenarios, sim))
    return None if ours == found else str(sim.__file__)


if shadow := _shadow():  # before anything is imported from it
    sys.exit(f"twinrail: {shadow} shadows our package 'sim': rename it, or start elsewhere")

from scenarios import commands  # noqa: E402
from scenarios.terminal import app as app  # noqa: E402

for _module in iter_modules(commands.__path__):
    import_module(f"scenarios.commands.{_module.name}")


def main() -> None:
    """Do what was asked for."""
    app()
