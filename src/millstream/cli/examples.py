"""The example at the end of each command's help."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import click

Command = TypeVar("Command", bound=click.Command)


def example(line: str) -> Callable[[Command], Command]:
    """Show *line*, as a user types it, at the end of the command's help. Tests parse each line with its command."""

    def with_example(command: Command) -> Command:
        command.epilog = "\n\n".join(filter(None, (command.epilog, f"\b\nExample:\n  {line}")))
        return command

    return with_example
