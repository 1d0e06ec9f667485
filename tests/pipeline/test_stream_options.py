"""Options that a command would pass over are refused, before a Java machine is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.commands import run_command

STREAM = [["--shards", "8"], ["--per-trigger", "9"], ["--no-ticks"], ["--available-now"], ["--output", "out"]]
HISTORY = [["--to", "5"], ["--flush"], ["--rules-of", "out"]]


@pytest.mark.parametrize("command", ["batch", "anchor"])
@pytest.mark.parametrize(
    ("options", "why"),
    [(given, "can only be used with --stream") for given in STREAM]
    + [([*given, "--stream", "--output", "out"], "cannot be combined with --stream") for given in HISTORY]
    + [(["--stream"], "--stream requires --output LOG")],
    ids=str,
)
def test_options_of_the_other_way_are_refused(command: str, options: list[str], why: str, tmp_path: Path) -> None:
    answer = run_command("pipeline", command, "events", *options, "--data", str(tmp_path))
    assert answer.code == 2
    assert why in answer.err
    assert options[0] in answer.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "options", "why"),
    [
        ("batch", ["--metrics", "m.prom"], "can only be used with --stream"),
        ("batch", ["--hand-over", "out", "--stream", "--output", "out"], "cannot be combined with --stream"),
        ("batch", ["--rules-of", "out", "--hand-over", "new"], "--hand-over cannot be combined"),
        ("anchor", ["--every", "1m"], "can only be used with --stream"),
    ],
)
def test_so_are_those_that_one_command_has_alone(command: str, options: list[str], why: str, tmp_path: Path) -> None:
    answer = run_command("pipeline", command, "events", *options, "--data", str(tmp_path))
    assert (answer.code, why in answer.err, options[0] in answer.err) == (2, True, True)
