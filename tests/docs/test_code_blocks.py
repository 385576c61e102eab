"""Every code block of the README and of the pages is run, in the order in which a reader meets them.

A page has a folder of its own. A YAML or Python block with ``title="FILE"`` is a file there; Python without one is run.
Of a console block each command is run; where output follows, it is compared, and … stands for anything.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(
    r"^```(?P<kind>yaml|python|console)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^```$", re.M | re.S
)
ELSEWHERE = ("make ", "pip ", "sudo ", "torchrun ", "git ")
"""Commands that set up or need more than a test may have: rights, a network, a cluster."""


class Block(NamedTuple):
    """A code block: what it is, the file it is meant for, its text, and the line where it starts."""

    kind: str
    title: str | None
    text: str
    line: int


def blocks(page: Path) -> list[Block]:
    text = page.read_text("utf-8")
    return [
        Block(found["kind"], found["title"], found["text"], text.count("\n", 0, found.start()) + 1)
        for found in BLOCK.finditer(text)
    ]


def commands(text: str) -> Iterator[tuple[str, str]]:
    """Each command of a console block with the output that is shown of it."""
    for part in re.split(r"^\$ ", text, flags=re.M)[1:]:
        command, shown = re.match(r"((?:.*\\\n)*.*)\n?((?:.|\n)*)", part).groups()  # type: ignore[union-attr]
        yield re.sub(r"\s+# .*", "", command), shown


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "240"}
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        check=False,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


def matches(shown: str, output: str) -> bool:
    pattern = r"(?:.|\n)*?".join(re.escape(part.strip(" ")) for part in re.split("…", shown.rstrip()))
    return re.fullmatch(pattern, "\n".join(line.rstrip() for line in output.rstrip().splitlines())) is not None


SLOW = ("twinrail plan ", "twinrail validate ", "twinrail queue predict ")
"""What takes many seconds."""


def parameter(page: Path) -> Any:
    marks = [pytest.mark.slow] if any(f"$ {command}" in page.read_text("utf-8") for command in SLOW) else []
    return pytest.param(page, id=str(page.relative_to(ROOT)), marks=marks)


PARAMETERS = [parameter(page) for page in PAGES if blocks(page)]


@pytest.mark.parametrize("page", PARAMETERS)
def test_what_a_page_shows_is_what_happens(page: Path, tmp_path: Path) -> None:
    for name in ("scenarios", "docs"):
        (tmp_path / name).symlink_to(ROOT / name)
    for block in blocks(page):
        where = f"{page.relative_to(ROOT)}:{block.line}"
        if block.title is not None:
            (tmp_path / block.title).write_text(block.text, "utf-8")
        elif block.kind == "python":
            done = run(f"python - <<'END'\n{block.text}\nEND", tmp_path)
            assert done.returncode == 0, f"{where}: {done.stderr}"
        for command, shown in commands(block.text) if block.kind == "console" else ():
            if command.startswith(ELSEWHERE) or "PATH/TO" in command:
                continue
            done = run(command, tmp_path)
            assert done.returncode == 0, f"{where}: {command}\n{done.stdout}{done.stderr}"
            assert not shown.strip() or matches(shown, done.stdout), f"{where}: {command}\n{done.stdout}"


def test_yaml_without_a_file_is_a_scenario() -> None:
    """A YAML block is a whole scenario or the part of one; either way it is YAML that the loader reads."""
    from scenarios.load import parse_text

    for page in PAGES:
        for block in blocks(page):
            if block.kind == "yaml":
                parse_text(block.text, f"{page.name}:{block.line}")
