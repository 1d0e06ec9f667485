"""The frame of the benchmarks: pairing, medians, ratios, and the document they are written into."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from millstream.bench import BENCHMARKS
from millstream.bench.machine import this_machine
from millstream.bench.markdown import number, put_section
from millstream.bench.runner import (
    BenchmarkReport,
    Comparison,
    Contender,
    Measurement,
    load_benchmark,
    measure,
    run_benchmark,
)
from millstream.cli.bench import bench
from millstream.core.clock import VirtualClock
from millstream.core.errors import InputError


def contender(name: str, values: list[float], turns: list[str]) -> Contender:
    left = iter(values)

    def run() -> Measurement:
        turns.append(name)
        return Measurement(next(left), {"p99 ms": 2.0})

    return Contender(name, run)


def comparison(turns: list[str]) -> Comparison:
    contenders = [contender("theirs", [10, 20, 40], turns), contender("ours", [30, 40, 400], turns)]
    return Comparison("Writing", "messages/s", "Durable.", contenders)


def test_contenders_run_turn_by_turn_and_ratios_are_formed_within_a_round() -> None:
    turns: list[str] = []
    result = measure(comparison(turns), 3, lambda _: None)
    assert turns == ["theirs", "ours"] * 3
    theirs, ours = result.rows
    assert (theirs.median, theirs.ratio) == (20, 1)
    assert (ours.median, ours.ratio) == (40, 3), "the median of 3, 2 and 10, not the ratio of the medians"
    assert ours.figures == {"p99 ms": 2.0}


def test_what_takes_minutes_has_one_round_and_the_table_says_so() -> None:
    turns: list[str] = []
    long = measure(msgspec.structs.replace(comparison(turns), title="Long", once=True), 3, lambda _: None)
    assert turns == ["theirs", "ours"]
    both = msgspec.structs.replace(report(1), results=(long, *report(1).results))
    assert put_section("", both).count("Durable. There was one round.\n") == 1
    assert "| ours | 30 | 3.00× | 2 |" in put_section("", both), "one round has no range"


def test_every_benchmark_has_a_purpose_and_comparisons() -> None:
    for name in BENCHMARKS:
        module = load_benchmark(name)
        assert module.__doc__
        assert callable(module.comparisons)


def test_an_unknown_benchmark_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(InputError, match=r"log, .*batching"):
        run_benchmark("speed", size="small", runs=1, clock=VirtualClock(), show=lambda _: None)


def report(median: float) -> BenchmarkReport:
    turns: list[str] = []
    result = measure(comparison(turns), 2, lambda _: None)
    return BenchmarkReport(
        benchmark="log",
        purpose="Purpose.",
        size="small",
        parts={},
        runs=2,
        measured_at=0,
        seconds=median,
        machine=this_machine(),
        results=(result,),
    )


def test_a_section_replaces_its_predecessor_and_leaves_the_others_alone() -> None:
    document = put_section("# Mine\n\nText.\n", report(1))
    other = document.replace("benchmark log", "benchmark other").replace("end log", "end other")
    both = put_section(other, report(1))
    again = put_section(both, report(99))
    assert again.count("<!-- benchmark log -->") == 1
    assert "The benchmark took 99 s for " in again
    assert again.startswith("# Mine")
    assert "<!-- end other -->" in again
    assert "| ours | 35 | 30–40 | 2.50× | 2 |" in again, "the median of two rounds, the lowest and the highest"


@pytest.mark.parametrize(
    ("value", "text"), [(1_234_567.0, "1,235,000"), (123.4, "123"), (12.34, "12.3"), (0.0456, "0.0456"), (0, "0")]
)
def test_numbers_show_the_digits_that_mean_something(value: float, text: str) -> None:
    assert number(value) == text


def test_the_command_writes_json_and_markdown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[str] = []
    monkeypatch.setattr("millstream.bench.log.comparisons", lambda size, folder: iter([comparison(turns)]))
    files = ["--json", str(tmp_path / "r.json"), "--markdown", str(tmp_path / "r.md")]
    done = CliRunner().invoke(bench, ["log", "--runs", "2", *files], catch_exceptions=False)
    assert done.exit_code == 0
    assert json.loads((tmp_path / "r.json").read_bytes())["results"][0]["rows"][1]["contender"] == "ours"
    assert "| ours | 35 | 30–40 | 2.50× | 2 |" in (tmp_path / "r.md").read_text("utf-8")
    assert "Writing" in done.stdout


@pytest.mark.parametrize(("width", "first"), [("120", ["ours", "35"]), ("36", ["messages/s", "15", "35"])])
def test_a_table_is_turned_where_its_figures_do_not_fit_beside_each_other(
    width: str, first: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.bench.log.comparisons", lambda size, folder: iter([comparison([])]))
    monkeypatch.setattr("millstream.cli.bench.is_terminal", lambda: True)
    done = CliRunner().invoke(bench, ["log", "--runs", "2"], env={"COLUMNS": width}, catch_exceptions=False)
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in done.stdout.splitlines() if "│" in line]
    assert first in [row[: len(first)] for row in rows]
    assert "…" not in done.stdout
