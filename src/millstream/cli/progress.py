"""Progress bars of commands on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn

from millstream.cli.common import is_terminal


def progress_bar() -> Progress:
    """A bar of items done."""
    return drawn(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())


def drawn(*columns: ProgressColumn) -> Progress:
    """*columns* (default: Rich's own) on standard error; nothing if that is not a terminal. Removed when its block
    ends."""
    return Progress(*columns, console=Console(stderr=True), disable=not is_terminal(), transient=True)
