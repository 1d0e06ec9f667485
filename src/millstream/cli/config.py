"""``millstream config``: what a node is told, and by whom."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from millstream.cli.common import json_option, print_json
from millstream.log.database.place import masked
from millstream.settings import load_settings


@click.group()
def config() -> None:
    """The settings and where each comes from."""


@config.command()
@click.option("--data", metavar="DIR", help="The node's folder (default ./millstream-data).")
@click.option("--config", "path", type=click.Path(path_type=Path), metavar="FILE", help="Settings file (TOML).")
@json_option
def show(data: str | None, path: Path | None, as_json: bool) -> None:
    """Print every setting with its origin: default, the settings file, environment or flag. Passwords are hidden."""
    settings, origins = load_settings({"data": data}, config=path)
    rows = [
        {
            "setting": name,
            "value": masked(value) if isinstance(value, str) else value,
            "origin": origins.get(name, "default"),
        }
        for name, value in flatten(msgspec.to_builtins(settings))
    ]
    for row in rows:
        if as_json:
            print_json(row)
        else:
            click.echo(f"{row['setting']:<28} {_text(row['value']):<40} {row['origin']}")


def _text(value: Any) -> str:
    """*value* for people; tables of settings as JSON."""
    return msgspec.json.encode(value).decode("utf-8") if isinstance(value, list | tuple) else str(value)


def flatten(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested *values* with their dotted names."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value
