"""How tests are spread over processes (pytest-xdist) and over the parts of a long run.

Tests that share costly fixtures stay together: those of one Spark session (except in long runs, where they are too many
for a part), those of one file, and files whose tests use the same costly server. Tests that bring all they need with
them (whole demos, killed processes) go one by one. What takes longest begins first.

This stands in for the groups of pytest-xdist, which releases up to 3.8 lose under pytest 9.2: they rename the node.
"""

from __future__ import annotations

import heapq
import json
import os
import tempfile
from collections import defaultdict
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest

from suite import measured
from suite.sizes import SIZE
from suite.tiers import tier_of

_UNITS = "suite_units"
_units = pytest.StashKey[dict[str, str]]()
_ALONE = {"acceptance", "crash"}
_HEAVY = {*_ALONE, "spark"}

SPARK = "one Spark session"
SPARK_SESSIONS = 2 if SIZE == "ci" else 1
"""How many processes have a Spark session: the tests of one took longer than all others did in the other processes."""
COSTLY_SERVERS = ("swift", "rabbitmq")
"""Fixtures of servers whose start takes several seconds of processor time."""


def unit_of(item: pytest.Item) -> str:
    """What *item* must stay in one process with."""
    if "spark" in getattr(item, "fixturenames", ()) and SIZE != "long":  # there, they take longer than a part may
        return SPARK
    return measured.function(item.nodeid) if tier_of(item) in _ALONE else item.nodeid.partition("::")[0]


def seconds_of(units: Mapping[str, str], heavy: Collection[str] = ()) -> dict[str, float]:
    """What the *units* of tests, by node id, are known to take, by unit; *heavy* tests take long where none of their
    file was ever measured.
    """
    known = measured.read(SIZE)
    files = {name.partition("::")[0] for name in known}
    functions = {measured.function(nodeid): unit for nodeid, unit in units.items()}
    new = {measured.function(nodeid) for nodeid in heavy if nodeid.partition("::")[0] not in files}
    seconds: defaultdict[str, float] = defaultdict(float)
    for name, unit in functions.items():
        seconds[unit] += known.get(name, measured.UNKNOWN_HEAVY if name in new else measured.UNKNOWN)
    return seconds


def divided(units: Mapping[str, str], unit: str, parts: int) -> dict[str, str]:
    """*units*, where the files of *unit* are divided among *parts* of it that take about equally long."""
    files = {nodeid: nodeid.partition("::")[0] for nodeid, name in units.items() if name == unit}
    chosen = part_of(seconds_of(files), parts)
    return {**units, **{nodeid: f"{unit} {chosen[file]}" for nodeid, file in files.items()}}


def joined(units: Mapping[str, str], fixtures: Mapping[str, Collection[str]]) -> dict[str, str]:
    """*units*, where files whose tests use the same costly server are one unit; *fixtures* are those of each test."""
    found = dict(units)
    for server in COSTLY_SERVERS:
        files = {name for nodeid, name in found.items() if server in fixtures[nodeid] and name in nodeid.split("::")}
        found |= {nodeid: f"files with {server}" for nodeid, name in found.items() if name in files}
    return found


def part_of(seconds: dict[str, float], parts: int) -> dict[str, int]:
    """The part, from 1, that each unit falls into: the longest first, each to the part that has least."""
    loads = [(0.0, number) for number in range(1, parts + 1)]
    found = {}
    for unit, took in sorted(seconds.items(), key=lambda row: (-row[1], row[0])):
        load, number = heapq.heappop(loads)
        found[unit] = number
        heapq.heappush(loads, (load + took, number))
    return found


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", default="1/1", metavar="N/M", help="run the Nth of M parts that take equally long")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    number, _, parts = config.getoption("part").partition("/")
    if not (number.isdecimal() and parts.isdecimal() and 1 <= int(number) <= int(parts)):
        raise pytest.UsageError(f"--part {config.getoption('part')}: write N/M, as in --part 2/6")
    units = {item.nodeid: unit_of(item) for item in items}
    if SIZE != "long":  # there, they take longer than a part may
        units = joined(units, {item.nodeid: getattr(item, "fixturenames", ()) for item in items})
    units = config.stash[_units] = divided(units, SPARK, SPARK_SESSIONS)
    seconds = seconds_of(units, {item.nodeid for item in items if tier_of(item) in _HEAVY})
    if int(parts) > 1:
        chosen = part_of(seconds, int(parts))
        left = [item for item in items if chosen[units[item.nodeid]] != int(number)]
        items[:] = [item for item in items if chosen[units[item.nodeid]] == int(number)]
        config.hook.pytest_deselected(items=left)
    items.sort(key=lambda item: (-seconds[units[item.nodeid]], units[item.nodeid]))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Tell the process that spreads the tests what belongs together; it has not collected them itself."""
    workerinput = getattr(session.config, "workerinput", None)
    if workerinput is not None:
        kept = Path(workerinput[_UNITS])
        draft = kept.with_name(f"{kept.name}.{os.getpid()}")
        draft.write_text(json.dumps(session.config.stash[_units]), "utf-8")
        draft.replace(kept)


class Spread:
    """The side of the process that spreads the tests. It is registered only where pytest-xdist is there."""

    def __init__(self, folder: str) -> None:
        self._kept = Path(folder) / "units.json"

    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput[_UNITS] = str(self._kept)

    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        from xdist.scheduler import LoadScopeScheduling

        kept = self._kept

        class UnitScheduling(LoadScopeScheduling):
            """Gives whole units to processes, in the order of collection."""

            def schedule(self) -> None:
                self.units = json.loads(kept.read_text("utf-8"))
                super().schedule()

            def _split_scope(self, nodeid: str) -> str:
                return str(self.units[nodeid])

        config.option.loadscopereorder = False
        return UnitScheduling(config, log)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    if config.pluginmanager.hasplugin("dsession"):
        folder = tempfile.TemporaryDirectory(prefix="millstream-suite-")
        config.add_cleanup(folder.cleanup)
        config.pluginmanager.register(Spread(folder.name), "suite-spread")
