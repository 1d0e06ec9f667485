"""``millstream completion``: print the completion script of a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from millstream.cli.examples import example


@example("millstream completion bash > ~/.local/share/bash-completion/completions/millstream")
@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the lines that let the shell complete commands and options. Save them where the shell finds them:

    \b
    bash   millstream completion bash > ~/.local/share/bash-completion/completions/millstream
    zsh    millstream completion zsh > "${fpath[1]}/_millstream"
    fish   millstream completion fish > ~/.config/fish/completions/millstream.fish
    """
    from millstream.cli.main import COMPLETE, millstream

    found = get_completion_class(shell)
    assert found is not None
    click.echo(found(millstream, {}, "millstream", COMPLETE).source())
