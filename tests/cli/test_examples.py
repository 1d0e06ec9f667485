"""Every command says what it is for and shows an example that it takes itself; shells complete; errors are short."""

from __future__ import annotations

import importlib
import pkgutil
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from millstream import cli
from millstream.cli.batch import TOOLS
from millstream.cli.command_group import load_command
from millstream.cli.main import COMPLETE, millstream, run
from support.command_examples import example_lines
from support.commands import run_command

DOCS = Path(__file__).parents[2] / "docs"


def commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """Every command that does something itself, by what one types."""
    context = click.Context(command)
    if not isinstance(command, click.Group):
        yield path, command
        return
    for name in command.list_commands(context):
        below = command.get_command(context, name)
        assert below is not None
        yield from commands(below, f"{path} {name}")


def reachable(command: click.Command) -> Iterator[click.Command]:
    """*command* and all below it."""
    yield command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for below in filter(None, (command.get_command(context, name) for name in command.list_commands(context))):
            yield from reachable(below)


ALL = dict(commands(millstream, "millstream"))
PATHS = [*ALL, *[f"millstream batch {tool}" for tool in TOOLS]]


def test_every_command_has_an_example_and_every_example_a_command() -> None:
    assert len(PATHS) > 90
    unused, missing = example_lines(), []
    for path in PATHS:
        own = next((line for line in unused if f"{line} ".startswith(f"{path} ")), None)
        if own is None:
            missing.append(path)
        else:
            unused.remove(own)
    assert not missing, f"decorate the commands {missing} with @example (cli/examples.py)"
    assert not unused, "each example stands at its own command"


def test_every_command_that_a_module_defines_can_be_called() -> None:
    known = {id(command) for command in reachable(millstream)}
    known |= {id(load_command(tool)) for tool in TOOLS.values()}
    for module in pkgutil.walk_packages(cli.__path__, f"{cli.__name__}."):
        for name, value in vars(importlib.import_module(module.name)).items():
            is_command = isinstance(value, click.Command) and value is not millstream
            assert not is_command or id(value) in known, (
                f"register {module.name}.{name} in cli/main.py, or in the module or package of its group"
            )


@pytest.mark.parametrize("line", example_lines())
def test_the_command_takes_its_example(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = shlex.split(line.partition(">")[0])
    for word in words:
        if re.search(r"\.(jsonl?|html|zip|jpg)$", word) and "/" not in word:
            Path(word).write_text("{}", "utf-8")
        elif word.endswith("/") or "*" in word:
            Path(word.partition("*")[0]).mkdir(exist_ok=True)
    Path("readings").mkdir(exist_ok=True)
    context, arguments = click.Context(millstream, info_name="millstream"), words[1:]
    command: click.Command = millstream
    while isinstance(command, click.Group):
        found = command.get_command(context, arguments[0])
        assert found is not None, arguments
        command, arguments = found, arguments[1:]
    with command.make_context(" ".join(words[:2]), arguments, parent=context):
        pass


@pytest.mark.parametrize("path", PATHS)
def test_help_says_what_a_command_is_for_and_shows_the_example(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*path.split()[1:], "--help"]) == 0
    told = capsys.readouterr().out
    assert re.search(r"\n  [A-Z][^\n]+", told), "a sentence on what it is for"
    assert "Example:" in told and path.rsplit(maxsplit=1)[-1] in told.partition("Example:")[2]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_get_lines_that_they_understand(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert COMPLETE in script
    if found := shutil.which(shell):
        subprocess.run([found, "-n"], input=script, text=True, check=True)


def test_a_shell_that_asks_is_told_commands_and_options() -> None:
    def asked(line: str) -> list[str]:
        words = {COMPLETE: "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
        return [each.partition(",")[2] for each in run_command(environment=words).out.splitlines()]

    assert asked("millstream que") == ["queue"]
    assert asked("millstream queue re") == ["redrive"]
    assert asked("millstream queue redrive --per") == ["--per-second"]


def test_an_error_is_one_line_and_debug_shows_where(tmp_path: Path) -> None:
    arguments = ["log", "describe", "absent", "--data", str(tmp_path)]
    plain = run_command(*arguments)
    assert plain.code == 3 and plain.err.count("\n") == 1 and "Traceback" not in plain.err
    debug = run_command("--debug", *arguments)
    assert "Traceback" in debug.err and debug.code != 0


def test_the_table_of_exit_codes_has_every_code_that_an_error_has() -> None:
    import importlib
    import pkgutil

    import millstream as package
    from millstream.core.errors import MillstreamError

    for module in pkgutil.walk_packages(package.__path__, "millstream."):
        if module.name.endswith(".errors"):
            importlib.import_module(module.name)

    def below(kind: type[MillstreamError]) -> Iterator[type[MillstreamError]]:
        yield kind
        for each in kind.__subclasses__():
            yield from below(each)

    table = (DOCS / "reference" / "exit-codes.md").read_text("utf-8")
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", table, re.MULTILINE)}
    assert {kind.exit_code for kind in below(MillstreamError)} <= listed
