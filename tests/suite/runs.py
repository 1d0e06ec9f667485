"""The record of long runs, ``docs/long-runs.md``: one row a part, and ``make test-long-status``, which reads it."""

from __future__ import annotations

import datetime
import os
import platform
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

RECORD = Path(__file__).parents[2] / "docs" / "long-runs.md"
_COUNTED = ("passed", "failed", "error", "skipped")
_ROW = re.compile(
    r"\| (?P<date>[\d-]+) \| (?P<part>\d+/\d+) \| (?P<commit>\S+) \| .* \| (?P<counts>[^|]*) \| (?P<seconds>[\d,]+) \|"
)


class Run(NamedTuple):
    """A row of the record."""

    date: str
    part: str
    commit: str
    counts: str
    seconds: str


def commit() -> str:
    """The commit that is checked out, with ``+`` where files differ from it; the record itself grows with each part."""
    head = _git("rev-parse", "--short", "HEAD")
    return head + ("+" if _git("status", "--porcelain", "--", ":/", f":(exclude,top)docs/{RECORD.name}") else "")


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=RECORD.parent, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def machine() -> str:
    """What this machine is: cores, memory and Python."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{os.cpu_count()} cores, {memory:.0f} GiB, Python {platform.python_version()}"


def last_runs(text: str) -> dict[str, Run]:
    """The last run of each part that the record *text* tells of, by part."""
    return {row["part"]: Run(**row.groupdict()) for row in _ROW.finditer(text)}


def status(text: str) -> list[str]:
    """A line a part: when it was last run, on which commit, and with which result."""
    runs = sorted(last_runs(text).values(), key=lambda run: [int(number) for number in reversed(run.part.split("/"))])
    known = {run.part for run in runs}
    parts = {int(run.part.partition("/")[2]) for run in runs}
    lines = [f"{run.part:>6}  {run.date}  {run.commit:<10} {run.counts}, {run.seconds} s" for run in runs]
    missing = [f"{n}/{m}" for m in sorted(parts) for n in range(1, m + 1) if f"{n}/{m}" not in known]
    return [*lines, *(f"{part:>6}  never run" for part in missing)] or ["no part was ever run"]


class Recorder:
    """Appends the run of a part to the record when it ends."""

    def __init__(self, part: str) -> None:
        self._part = part
        self._began = time.monotonic()  # noqa: TID251 - the suite is measured by the real clock

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        stats = terminalreporter.stats
        counts = Counter({name: len(stats.get(name, ())) for name in _COUNTED})
        told = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
        seconds = time.monotonic() - self._began  # noqa: TID251
        today = datetime.datetime.now(datetime.UTC).date()
        row = f"| {today} | {self._part} | {commit()} | {machine()} | {told or 'no test'} | {seconds:,.0f} |"
        text = RECORD.read_text("utf-8")
        end = [found.end() for found in _ROW.finditer(text)][-1]  # of the last row of the first table
        RECORD.write_text(f"{text[:end]}\n{row}{text[end:]}", "utf-8")
        terminalreporter.write_line(f"recorded in {RECORD.name}: {row}")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-run", action="store_true", help="append this run to docs/long-runs.md")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("record_run") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder(config.getoption("part")), "suite-recorder")


if __name__ == "__main__":
    sys.stdout.write("\n".join(status(RECORD.read_text("utf-8"))) + "\n")
