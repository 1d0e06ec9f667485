"""The command line: help without loading everything, errors without tracebacks, exit codes as documented."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest

from millstream.cli.command_group import CommandGroup
from millstream.cli.main import GROUPS, millstream, run

COMMANDS = millstream.list_commands(click.Context(millstream))


def test_every_command_can_be_loaded_and_has_help() -> None:
    context = millstream.make_context("millstream", ["log", "--help"], resilient_parsing=True)
    for name in COMMANDS:
        command = millstream.get_command(context, name)  # type: ignore[attr-defined]
        assert command is not None
        assert command.help


def groups_with_tables() -> list[CommandGroup]:
    context = click.Context(millstream)
    below = [millstream.get_command(context, name) for name in COMMANDS]
    return [group for group in (millstream, *below) if isinstance(group, CommandGroup)]


@pytest.mark.parametrize("group", groups_with_tables(), ids=lambda group: group.name)
def test_help_of_a_group_names_every_command_without_loading_any(group: CommandGroup) -> None:
    arguments = ["--help"] if group is millstream else [group.name, "--help"]
    program = (
        f"import sys; from millstream.cli.main import run; run({arguments!r}); "
        "sys.exit('pyarrow' in sys.modules or 'numpy' in sys.modules or 'sqlalchemy' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 0
    assert all(f"\n  {name} " in result.stdout for name in group.list_commands(click.Context(group)))


def test_listing_logs_loads_neither_numpy_nor_arrow(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/log.db"
    assert run(["log", "create", "weather", "--store", store]) == 0
    program = (
        f"import sys; from millstream.cli.main import run; run(['log', 'list', '--store', {store!r}]); "
        "sys.exit(bool({'numpy', 'pyarrow', 'crc32c', 'sqlalchemy'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout.split()[-1]) == (0, "weather")


@pytest.mark.parametrize("group", groups_with_tables()[1:], ids=lambda group: group.name)
def test_help_of_a_group_says_of_each_command_what_its_own_help_says_first(group: CommandGroup) -> None:
    context = click.Context(group)
    for table in group.tables.values():
        for name, (_, purpose) in table.items():
            command = group.get_command(context, name)
            assert command is not None
            assert command.get_short_help_str(120) == purpose, f"{group.name} {name}"


def test_help_shows_each_command_once_under_what_people_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    sections = capsys.readouterr().out.partition("\n\nStart here:\n")[2].split("\n\n")
    assert len(sections) == len(GROUPS)
    assert [line.split()[0] for part in sections for line in part.splitlines() if line.startswith("  ")] == [*COMMANDS]


@pytest.mark.parametrize("name", COMMANDS)
def test_the_program_starts_with_every_command(name: str) -> None:
    command = [sys.executable, "-m", "millstream", name, "--help"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith(f"Usage: millstream {name} ")


def test_the_installed_program_starts() -> None:
    command = [Path(sys.executable).with_name("millstream"), "--version"]
    assert subprocess.run(command, capture_output=True, check=True).stdout.startswith(b"millstream")


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    event = '{{"id":{0},"key":"k","event_time":{0},"received_at":{0}}}\n'
    lines = "".join(event.format(n) for n in range(20_000)).encode()
    command = f"{sys.executable} -m millstream batch --window 0 --max-delay 0"
    with subprocess.Popen(
        command.split(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        assert child.stdin and child.stdout and child.stderr
        child.stdin.write(lines)
        child.stdin.close()
        assert child.stdout.readline()
        child.stdout.close()
        assert child.stderr.read() == b""
    assert child.returncode == 0


def test_an_unknown_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["nonsense"]) == 2
    assert "nonsense" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["log", "describe", "absent"], 3, "no log store"),
        (["verify", "absent.json"], 2, "absent.json"),
        (["config", "show", "--config", "absent.toml"], 2, "absent.toml"),
    ],
)
def test_an_error_is_one_line_with_its_exit_code(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(arguments) == code
    err = capsys.readouterr().err
    assert words in err
    assert "Traceback" not in err


def test_config_show_writes_overrides_of_batching_as_json(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "millstream.toml").write_text('[[batching.override]]\nsource = "p"\nwindow = "5s"\n')
    assert run(["config", "show", "--data", str(tmp_path)]) == 0
    assert '[{"source":"p","window":"5 s"}]' in capfd.readouterr().out


LENGTHS = """\
[batching]
window = "21ms"
[[batching.override]]
source = "p"
max_delay = "2h"
[[log.rules]]
log = "*"
max_age = "7d"
[broker]
backoff = ["1s", "1m"]
[registry]
batch_writer_timeout = "46m"
[mill.change_guard]
window = 5400
[serve.ingest.weather]
url = "mqtt://localhost"
topics = ["#"]
expiry = "1h"
[serve.relay.orders]
url = "sqlite:///shop.db"
poll = "250ms"
"""


def test_config_show_writes_lengths_of_time_with_units_in_every_section(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "millstream.toml").write_text(LENGTHS)
    assert run(["config", "show", "--data", str(tmp_path)]) == 0
    shown = dict(line.split(None, 1) for line in capfd.readouterr().out.splitlines())
    values = {name: text.removesuffix(str(tmp_path / "millstream.toml")).strip() for name, text in shown.items()}
    assert values["batching.window"] == "21 ms"
    assert values["batching.override"] == '[{"source":"p","max_delay":"2 h"}]'
    assert '"max_age":"7 d"' in values["log.rules"]
    assert values["broker.backoff"] == "1 s, 1 min"
    assert values["registry.batch_writer_timeout"] == "46 min"
    assert values["mill.change_guard.window"] == "90 min"
    assert values["serve.ingest.weather.expiry"] == "1 h"
    assert values["serve.relay.orders.poll"] == "250 ms"
    assert values["mill.produce.duplication_frequency"].split() == ["30", "d", "default"]


def test_config_show_keeps_lengths_of_time_as_numbers_for_programs(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    (tmp_path / "millstream.toml").write_text(LENGTHS)
    assert run(["config", "show", "--json", "--data", str(tmp_path)]) == 0
    rows = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    values = {row["setting"]: row["value"] for row in rows}
    assert (values["batching.window"], values["broker.backoff"]) == (21_000, [1_000_000, 60_000_000])
    assert values["serve.relay.orders.poll"] == 250_000


def test_config_show_writes_columns_that_line_up(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "show", "--data", str(tmp_path)]) == 0
    lines = [line for line in capfd.readouterr().out.splitlines() if line.endswith(" default")]
    starts = {line.index(line.split()[1]) for line in lines if len(line.split()) > 2 and "[" not in line}
    assert len(starts) == 1


def test_config_show_tells_where_a_setting_comes_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setenv("MILLSTREAM_MILL__WORKERS", "3")
    assert run(["config", "show", "--json", "--data", str(tmp_path)]) == 0
    rows = [json.loads(line) for line in capfdbinary.readouterr().out.splitlines()]
    assert {"setting": "mill.workers", "value": 3, "origin": "environment"} in rows
    assert {"setting": "data", "value": str(tmp_path), "origin": "flag"} in rows


@pytest.mark.parametrize(
    "arguments",
    [["prove", "weather", "1"], ["anchor", "ledger"], ["anchor", "replay"], ["mill", "check"], ["mill", "duplicate"]],
)
def test_a_mistyped_folder_is_no_node_and_nothing_is_made_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert run([*arguments, "--data", str(tmp_path / "typo")]) == 3
    assert "no node" in capsys.readouterr().err
    assert not (tmp_path / "typo").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["demo", "--data", ""], "empty"),
        (["log", "create", "a", "--store", "memory://"], "memory"),
        (["prove", "weather", "99999999999999999999999"], "99999999999999999999999"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(arguments) == 2
    assert words in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_a_nodes_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert run(["demo", "--limit", "3", "--data", str(tmp_path / "file")]) == 2
    assert "as the node's folder" in capsys.readouterr().err


def test_an_error_nobody_foresaw_is_one_line_that_says_how_to_see_more(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("first line\nsecond line")

    monkeypatch.setattr("millstream.cli.config.load_settings", fail)
    assert run(["config", "show"]) == 1
    err = capsys.readouterr().err
    assert err == "millstream: unexpected RuntimeError: first line (`millstream --debug …` shows where)\n"
    with pytest.raises(RuntimeError):
        run(["--debug", "config", "show"])


def test_a_full_disk_behind_the_output_is_told_in_one_line() -> None:
    command = [sys.executable, "-m", "millstream", "config", "show"]
    with Path("/dev/full").open("wb") as full:
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False)
    assert result.returncode == 1
    assert b"No space left" in result.stderr
    assert b"Traceback" not in result.stderr
