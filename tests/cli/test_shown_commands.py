"""Commands in messages can be typed as they are shown, whatever the names in them are."""

from __future__ import annotations

import ast
import io
import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from millstream.cli.batch import TOOLS
from millstream.cli.command_group import load_command
from millstream.cli.main import millstream, run
from millstream.core.shown_commands import arguments
from millstream.status.verdict.issues import make_issue
from millstream.status.verdict.kinds import KINDS
from millstream.stores import LocalStore

ROOT = Path(__file__).parents[2] / "src" / "millstream"
NAMES = ["-x", "--vanished", "--help", "--", "-", "two words", "it's", "$HOME", "plain"]


def parsed(shown: str) -> dict[str, Any]:
    """The values that the command line takes from the command *shown*."""
    program, *words = shlex.split(shown)
    assert program == "millstream"
    command: click.Command = millstream
    if words[0] == "batch" and words[1] in TOOLS:
        command, words = load_command(TOOLS[words[1]]), words[2:]
    while isinstance(command, click.Group):
        found = command.get_command(click.Context(command), words.pop(0))
        assert found is not None, shown
        command = found
    values, rest, _ = command.make_parser(click.Context(command)).parse_args(words)
    assert not rest
    return values


@pytest.mark.parametrize("name", NAMES)
def test_a_shown_command_means_its_names(name: str) -> None:
    shown = parsed(f"millstream mill forget {arguments('disk', name, options='--vanished')}")
    assert (shown["store"], shown["space"], shown["vanished"]) == ("disk", name, True)
    shown = parsed(f"millstream mill forget {arguments('disk', name)} ID")
    assert (shown["space"], list(shown["content_ids"])) == (name, ["ID"]) and not shown.get("vanished")
    shown = parsed(f"millstream restore {arguments(name, options='--to FOLDER')}")
    assert (shown["space"], shown["to"]) == (name, "FOLDER")
    shown = parsed(f"millstream mill check --store one --space {shlex.quote(name)}")
    assert (shown["only_store"], shown["only_space"]) == ("one", name)


def test_names_are_shown_before_the_options_where_that_is_right() -> None:
    assert arguments("disk", "photos", options="--vanished") == "disk photos --vanished"
    assert arguments("disk", "-x", options="--vanished") == "--vanished -- disk -x"


def test_the_commands_in_errors_about_such_a_space_can_be_typed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "one").mkdir()
    store, data = LocalStore(tmp_path / "one"), tmp_path / "node"
    data.mkdir()
    (data / "millstream.toml").write_text(f'[stores.one]\nurl = "file://{tmp_path / "one"}"\n')
    store.create_space("-x")
    store.put("-x", "item", io.BytesIO(b"x"))
    for command, item in (("accept", "absent"), ("forget", "item")):
        assert run(["mill", command, "--data", str(data), "--", "one", "-x", item]) != 0
        told = capsys.readouterr().err
        (shown,) = re.findall("`(millstream [^`]+)`", told) or [told]
        assert {"one", "-x"} <= set(parsed(shown).values()), shown


@pytest.mark.parametrize("name", ["my disk", "-x", "--store", "{where}"])
def test_the_commands_of_the_verdict_can_be_typed_whatever_the_store_is_called(name: str) -> None:
    todos = [
        make_issue(kind, name, "", "/", where="OUT").todo
        for kind, known in KINDS.items()
        if re.search("{(subject|argument)}", known.todo)
    ]
    commands = [command for todo in todos for command in re.findall("`(millstream [^`]+)`", todo)]
    shown = [command for command in commands if shlex.quote(name) in shlex.split(command) or name in command]
    assert len(shown) > 5 and all(name in _flat(parsed(command)) for command in shown)


def _flat(values: dict[str, Any]) -> list[Any]:
    """*values*, with those of arguments that may be repeated one by one."""
    return [one for value in values.values() for one in (value if isinstance(value, list | tuple) else [value])]


def quoted_arguments(path: Path) -> Iterator[str]:
    """The texts in *path* that quote an argument of a command, and not the value of an option."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        parts = node.values if isinstance(node, ast.JoinedStr) else ()
        for before, part in itertools.pairwise(parts):
            if isinstance(part, ast.FormattedValue) and ast.unparse(part.value).startswith("shlex."):
                text = str(before.value) if isinstance(before, ast.Constant) else ""
                if not re.search(r"--[a-z-]+ $", text):
                    yield f"{path.relative_to(ROOT)}: {text}"


def test_arguments_in_commands_are_quoted_by_the_one_function() -> None:
    assert not [text for path in sorted(ROOT.rglob("*.py")) for text in quoted_arguments(path)]
