"""``millstream config``: the settings of a node and the source of each."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from millstream.cli.command_group import SummaryGroup
from millstream.cli.common import config_option, data_option, json_option, print_json
from millstream.cli.examples import example
from millstream.core.passwords import hash_password
from millstream.settings import load_settings, readable, redacted
from millstream.settings.console import Role

_USER = re.compile(r"[\w.@-]{1,64}")
_LONGEST = 1_000


@click.group(cls=SummaryGroup)
def config() -> None:
    """Show the settings and their origins; create console users."""


@example("millstream config show")
@config.command()
@data_option
@config_option
@json_option
def show(data: str | None, config: Path | None, as_json: bool) -> None:
    """Print every setting with its origin: default, settings file, environment or flag. Secrets are hidden.

    Durations have units, as in a settings file; with --json they are microseconds.
    """
    settings, origins = load_settings({"data": data}, config=config)
    settings = redacted(settings)
    values = msgspec.to_builtins(settings) if as_json else readable(settings)
    rows = [
        {"setting": name, "value": value, "origin": origins.get(name, "default")} for name, value in flatten(values)
    ]
    width = max(len(row["setting"]) for row in rows)
    for row in rows:
        if as_json:
            print_json(row)
        else:
            click.echo(f"{row['setting']:<{width}} {_text(row['value']):<40} {row['origin']}")


@example("millstream config user ada --role admin")
@config.command()
@click.argument("name")
@click.option(
    "--role",
    type=click.Choice([role.value for role in Role]),
    default="viewer",
    show_default=True,
    help="Role of the user.",
)
@click.option("--stdin", "from_stdin", is_flag=True, help="Read the password from standard input, one line.")
def user(name: str, role: str, from_stdin: bool) -> None:
    """Ask for a password, and print the settings that make NAME a user of the console.

    The output has only a hash of the password (scrypt). A viewer can read; an operator can also act on queues, copies
    and held plans; an admin can also change policies.
    """
    if not _USER.fullmatch(name):
        raise click.UsageError(f"invalid user name {name[:80]!r}: use 1 to 64 letters, digits, '_', '.', '@' and '-'")
    if from_stdin:
        password = sys.stdin.readline(_LONGEST).rstrip("\r\n")
    else:
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    click.echo(f'[console.users."{name}"]\npassword = "{hash_password(password)}"\nrole = "{role}"')


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
