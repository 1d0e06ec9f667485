"""Commands in messages and on pages, as a shell takes them."""

from __future__ import annotations

import shlex


def arguments(*values: str, options: str = "") -> str:
    """*values* as the arguments of a command, and its *options*.

    A name that begins with ``-`` would be read as an option, so ``--`` precedes the arguments then, and the options
    precede both. The value of an option (``--space NAME``) needs :func:`shlex.quote` only.
    """
    quoted = shlex.join(values)
    parts = [options, "--", quoted] if any(value.startswith("-") for value in values) else [quoted, options]
    return " ".join(filter(None, parts))


def check_command(store: str, space: str) -> str:
    """The command that checks *space* of *store*."""
    return f"millstream mill check --store {shlex.quote(store)} --space {shlex.quote(space)}"
