"""Progress bars of commands on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn

from millstream.cli.common import is_terminal


def progress_bar() -> Progress:
    """A bar of items done."""
    return drawn(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())


def drawn(*columns: ProgressColumn) -> Progress:
    """*columns* (Rich's own, without any) on standard error, since results may go elsewhere; nothing where nobody
    watches, and nothing is left of it when its block is left."""
    return Progress(*columns, console=Console(stderr=True), disable=not is_terminal(), transient=True)
