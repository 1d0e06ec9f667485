"""Commands that errors, help texts, console pages and documents name exist, and take the options that are written."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import click

from millstream.cli.batch import TOOLS
from millstream.cli.command_group import load_command
from millstream.cli.main import millstream

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`(millstream [a-z][^`]*)`")


def texts(path: Path) -> Iterator[str]:
    """The texts in *path* that may name commands; values that are put in when it runs are ``X``."""
    content = path.read_text("utf-8")
    if "`millstream " not in content and "<code>millstream " not in content:
        return
    if path.suffix != ".py":
        plain = re.sub(r'" ~ [^"]+ ~ "', "X", content)  # values that a template puts in
        yield plain.replace("<code>", "`").replace("</code>", "`")
        return
    tree = ast.parse(content)
    formatted = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    parts = {id(part) for node in formatted for part in node.values}
    for node in formatted:
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            yield node.value


def commands_in(text: str) -> Iterator[list[str]]:
    """The words of each command that *text* names, without ``millstream``, what replaces a part, and redirections."""
    for named in NAMED.findall(re.sub(r"(?<=\w)\{\w+\}", "", text)):
        plain = re.sub(r"\([^)]*\)|[\[\]…]", " ", named.partition(">")[0])
        yield plain.split()[1:]


def fault(words: list[str]) -> str:
    """Why nobody can type *words*; empty if they are a command, or the beginning of one, with its options."""
    command: click.Command = millstream
    context = click.Context(command)
    while words and not words[0].startswith("-"):
        if words[0] == "batch" and words[1:] and words[1] in TOOLS:
            command, words = load_command(TOOLS[words[1]]), words[2:]
            break
        if not isinstance(command, click.Group):
            break
        below = command.get_command(context, words[0])
        if below is None:
            return f"there is no command {words[0]}"
        command, words = below, words[1:]
    if isinstance(command, click.Group):
        return ""
    options = {name: one for one in command.params if isinstance(one, click.Option) for name in one.opts}
    options |= {name: one for one in command.params for name in one.secondary_opts if isinstance(one, click.Option)}
    places = [one.nargs for one in command.params if isinstance(one, click.Argument)]
    given = 0
    while words:
        word, *words = words
        if not word.startswith("-") or word == "-":
            given += 1
        elif word in options:
            words = words if options[word].is_flag else words[options[word].nargs :]
        elif word not in ("--help", "-h"):
            return f"there is no option {word}"
    return "" if -1 in places or given <= sum(places) else f"{given} arguments are too many"


def test_every_command_that_a_text_names_can_be_typed() -> None:
    source, docs = ROOT / "src/millstream", ROOT / "docs"
    paths = [*source.rglob("*.py"), *source.rglob("*.html"), *docs.rglob("*.md"), ROOT / "README.md"]
    named = [(path, words) for path in sorted(paths) for text in texts(path) for words in commands_in(text)]
    assert len(named) > 500
    faults = {
        f"{path.relative_to(ROOT)}: `millstream {' '.join(words)}`: {why}"
        for path, words in named
        if (why := fault(list(words)))
    }
    assert not faults, "\n".join(sorted(faults))


def test_a_command_that_there_is_not_is_found() -> None:
    assert fault(["mill", "check", "second", "photos"]) == "2 arguments are too many"
    assert fault(["log", "cat"]) == "there is no command cat"
    assert fault(["log", "read", "weather", "--consumer", "c"]) == "there is no option --consumer"
    assert list(commands_in("run `millstream mill check{where}`")) == [["mill", "check"]]
