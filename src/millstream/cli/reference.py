"""The reference of commands and settings, as documents: ``python -m millstream.cli.reference docs/reference``."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import click
import msgspec

from millstream.cli.main import millstream
from millstream.core.amounts import Duration
from millstream.core.clock import MICROSECONDS
from millstream.settings import Settings

WIDTH = 100
"""Columns of a help text."""


def commands() -> str:
    """Every command with its help text, as Markdown."""
    head = (
        "# Commands\n\n"
        "What `--help` says of every command. All of them end with the same [exit codes](../exit-codes.md);\n"
        "`--json` prints one object a line, and `millstream --debug …` the traceback of an error. Shells\n"
        "complete commands and options once they were told how (`millstream completion bash`, `zsh`, `fish`).\n\n"
    )
    return head + "\n".join(_sections(millstream, "millstream", 1))


def _sections(command: click.Command, path: str, depth: int) -> Iterator[str]:
    context = click.Context(command, info_name=path, max_content_width=WIDTH, terminal_width=WIDTH)
    lines = [line.rstrip() for line in command.get_help(context).replace("\b", "").splitlines()]
    heading = "#" * min(depth + 1, 4)
    yield f"{heading} `{path}`\n\n```text\n" + "\n".join(lines) + "\n```\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None and not found.hidden:
                yield from _sections(found, f"{path} {name}", depth + 1)


def settings() -> str:
    """Every setting with its default, as Markdown."""
    head = (
        "# Settings\n\n"
        "A node reads `millstream.toml` in its data folder, or the file that `--config` or `MILLSTREAM_CONFIG` names.\n"
        "Stronger than the file is the environment (`MILLSTREAM_BATCHING__WINDOW=30m` sets `window` of the section\n"
        "`batching`), stronger than that are the flags of a command. `millstream config show` prints every setting\n"
        "with its value and where it comes from. Durations are written as `500ms`, `30s`, `20m`, `2h`, `7d`.\n\n"
    )
    return head + "\n".join(_tables(Settings, ""))


def _tables(struct: type[msgspec.Struct], section: str) -> Iterator[str]:
    hints = get_type_hints(struct)
    plain, nested = list[str](), list[tuple[str, type[msgspec.Struct]]]()
    for field in msgspec.structs.fields(struct):
        kind = hints[field.name]
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            nested.append((f"{section}.{field.name}".lstrip("."), kind))
        else:
            plain.append(f"| `{field.name}` | {_default(field, kind)} |")
    heading = f"## `[{section}]`" if section else "## The node"
    text = inspect.cleandoc(struct.__doc__ or "").replace("``", "`")
    if plain:
        yield f"{heading}\n\n{text}\n\n| setting | default |\n|---|---|\n" + "\n".join(plain) + "\n"
    for name, kind in nested:
        yield from _tables(kind, name)


def _default(field: msgspec.structs.FieldInfo, kind: Any) -> str:
    value = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    if value is None or value == "":
        return "not set"
    if kind is Duration:
        return f"`{_duration(value)}`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, str | int | float):
        return f"`{value}`"
    return "none" if not value else f"`{msgspec.json.encode(value).decode()}`"


def _duration(micros: int) -> str:
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        if micros and micros % (size * MICROSECONDS) == 0:
            return f"{micros // (size * MICROSECONDS)}{unit}"
    return f"{micros // 1000}ms" if micros else "0s"


PAGES = {"commands.md": commands, "settings.md": settings}
"""The generated documents, by name."""


if __name__ == "__main__":
    for name, page in PAGES.items():
        (Path(sys.argv[1]) / name).write_text(page(), "utf-8")
