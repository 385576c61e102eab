"""The reference pages of the site, made from the schema, the commands and the docstrings when ``mkdocs`` builds it.

A hook of mkdocs (``hooks:`` in ``mkdocs.yml``): no page of these is kept, so none can be out of date.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

import typer

import twinrail
from scenarios.command_line import app
from scenarios.schema import json_schema
from sim.planners import PLANNERS


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages to those of the folder: mkdocs' ``Files`` and ``MkDocsConfig``."""
    from mkdocs.structure.files import File

    for name, text in {"scenario": scenario(), "commands": commands(), "python": python()}.items():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    return files


def scenario() -> str:
    """Every section and key of a scenario file, and every schedule with its keys."""
    schema = json_schema()
    parts = ["# Scenario files", schema["description"], "`twinrail schema` prints the same as JSON Schema for editors."]
    parts += ["## Sections", _keys(schema)]
    for name, section in sorted(schema["$defs"].items()):
        parts += [f"## {name}", section.get("description", ""), _keys(section)]
    parts += ["## Schedules", "Each is a file of `sim/planners`; its parameters are its keys.", *_schedules()]
    return "\n\n".join(filter(None, parts)) + "\n"


def _keys(section: Mapping[str, Any]) -> str:
    required = section.get("required", ())
    rows = []
    for key, about in section.get("properties", {}).items():
        default = "required" if key in required else _shown(about.get("default"))
        rows.append(f"| `{key}` | {_kind(about)} | {default} | {about.get('description', '')} |")
    return "\n".join(["| key | value | unless given | |", "|---|---|---|---|", *rows]) if rows else ""


def _kind(about: Mapping[str, Any]) -> str:
    """What may be written, in words; units are in the pattern's description."""
    if "$ref" in about:
        name = about["$ref"].rsplit("/", 1)[-1]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in about:
        return " or ".join(dict.fromkeys(map(_kind, about["anyOf"])))
    if "enum" in about:
        return ", ".join(f"`{value}`" for value in about["enum"])
    if "const" in about:
        return f"`{about['const']}`"
    if about.get("type") == "array":
        return f"list of {_kind(about.get('items', {}))}"
    if about.get("type") == "object" and about.get("properties"):
        return "`{" + ", ".join(f"{key}: {_kind(value)}" for key, value in about["properties"].items()) + "}`"
    limits = [f"{sign} {about[key]:,}" for key, sign in _LIMITS.items() if key in about and about[key] < _ANY]
    return " ".join([str(about.get("type", "any")), *limits])


_ANY = 2**31
"""An upper limit that nobody meets says nothing."""

_LIMITS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


def _shown(value: Any) -> str:
    return "" if value is None or isinstance(value, Mapping) else f"`{value}`"


def _schedules() -> Iterator[str]:
    for name in sorted(PLANNERS):
        planner = PLANNERS[name]
        about = re.sub(r"^(\w+)\n-+$", r"**\1** ", str(inspect.getdoc(planner)), flags=re.MULTILINE)
        yield f"### {name}\n\n{inspect.getdoc(inspect.getmodule(planner))}\n\n{about}"
        signature = inspect.signature(planner)
        yield "`" + ", ".join(str(each) for each in signature.parameters.values()) + "`"


def commands() -> str:
    """Every command with its arguments and options."""
    root: Any = typer.main.get_command(app)
    parts = ["# Commands", str(root.help), "Exit code 0: done; 1: the run failed; 2: the input is wrong."]
    return "\n\n".join([*parts, *_commands(root, "twinrail")]) + "\n"


def _commands(group: Any, prefix: str) -> Iterator[str]:
    for name, command in sorted(group.commands.items()):
        if hasattr(command, "commands"):
            yield from _commands(command, f"{prefix} {name}")
        else:
            yield _command(command, f"{prefix} {name}")


def _command(command: Any, name: str) -> str:
    arguments, rows = [], []
    for each in command.params:
        word, default = each.metavar or each.name.upper(), each.default
        if not each.opts[0].startswith("-"):
            arguments.append(word)
            rows.append(f"| `{word}` | {each.help or ''} |")
        else:
            value = "" if each.is_flag else f" {word}"
            unless = "" if default in (None, False, ()) else f" ({default} unless said)"
            rows.append(f"| `{each.opts[0]}{value}` | {each.help or ''}{unless} |")
    usage = " ".join([name, *arguments])
    return "\n\n".join([f"## {usage}", str(command.help), "\n".join(["| | |", "|---|---|", *rows])])


def python() -> str:
    """The public names, each where it is defined."""
    parts = ["# Python", f"```python\n{_first_lines()}\n```", "All of these come from `import twinrail`."]
    for name in twinrail.__all__:
        where = getattr(getattr(twinrail, name), "__module__", "")
        if where and not isinstance(getattr(twinrail, name), str):
            parts.append(f"::: {where}.{getattr(getattr(twinrail, name), '__name__', name)}")
    return "\n\n".join(parts) + "\n"


def _first_lines() -> str:
    return "\n".join(line for line in str(twinrail.__doc__).splitlines() if line.startswith(">>>"))
