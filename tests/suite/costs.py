"""What tests cost: processor time of each test, of each tier and of collection, held to ``tests/budgets.toml``.

The time of a test is that of its process and of all children, servers and Java machines included, from its set-up to
the end of its tear-down; a fixture is paid by the test that is the first to ask for it.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import resource
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from suite import measured
from suite.again import OTHER_FAULT
from suite.sizes import SIZE
from suite.tiers import DEFAULT, tier_of

BUDGETS = Path(__file__).parents[1] / "budgets.toml"
COLLECTION = "collection"
_COST, _TIER = "processor_seconds", "tier"
_TICKS = os.sysconf("SC_CLK_TCK")

MARGIN = 2
"""A run that took more than this many times a budget fails; one above a budget says so.

The same tests take half as long again on a slower processor, or beside busy neighbours, so less would fail by chance.
"""


def processor_seconds() -> float:
    """Seconds that this process and all its children, dead or alive, have had of processors so far."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages) + _of_living_children(os.getpid())


def _of_living_children(pid: int) -> float:
    total = 0.0
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - called twice a test: names are enough
            children = Path(f"/proc/{pid}/task/{task}/children").read_bytes().split()
            total += sum(_of_process(int(child)) + _of_living_children(int(child)) for child in children)
    return total


def _of_process(pid: int) -> float:
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return sum(map(int, fields[11:15])) / _TICKS
    return 0.0


class Costs:
    """What the tests of this run cost; where it has several processes, the one that starts the others adds up."""

    def __init__(self, config: pytest.Config) -> None:
        self._budgets: Mapping[str, Any] = tomllib.loads(BUDGETS.read_text("utf-8"))
        self._record, self._part = bool(config.getoption("record_seconds")), config.getoption("part")
        self._began = self._spent = 0.0
        self._by_tier: defaultdict[str, float] = defaultdict(float)
        self._by_test: dict[str, float] = {}
        self._walls: defaultdict[str, float] = defaultdict(float)
        self._tests: Counter[str] = Counter()
        self._over: list[tuple[float, str]] = []
        """How many times its budget each test or collection took that went over it, and how that reads."""

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        _record_fault(session.config, "the last run did not end")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> Iterator[None]:
        began = time.process_time()
        gc.disable()  # collecting makes a million objects that stay
        try:
            return (yield)
        finally:
            gc.enable()
            gc.freeze()
            spent = time.process_time() - began
            if hasattr(session.config, "workeroutput"):
                session.config.workeroutput[COLLECTION] = spent
            else:
                self._add_collection(spent)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._add_collection(getattr(node, "workeroutput", {}).get(COLLECTION, 0.0))

    def _add_collection(self, spent: float) -> None:
        self._by_tier[COLLECTION] += spent
        if spent > self._budgets[COLLECTION]:
            most = self._budgets[COLLECTION]
            text = f"one process took {spent:.1f} s of processor time to collect; allowed: {most}"
            self._over.append((spent / most, text))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Iterator[None]:
        self._began, self._spent = processor_seconds(), 0.0
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
        report = yield
        # Where a server ends in a tear-down, the time of those of its children that nobody waited for is gone.
        if call.when != "setup":
            self._spent = max(self._spent, processor_seconds() - self._began)
        if call.when == "teardown":
            report.user_properties += [(_COST, self._spent), (_TIER, tier_of(item))]
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._walls[measured.function(report.nodeid)] += report.duration
        said: dict[str, Any] = dict(report.user_properties)
        if report.when != "teardown" or _COST not in said:
            return
        self._tests[said[_TIER]] += 1
        self._by_tier[said[_TIER]] += said[_COST]
        self._by_test[report.nodeid] = said[_COST]
        if SIZE in self._budgets and said[_TIER] == DEFAULT and said[_COST] > self._budgets["single"]:
            most = self._budgets["single"]
            text = f"{report.nodeid} took {said[_COST]:.1f} s; in the default tier: {most}"
            self._over.append((said[_COST] / most, text))

    def over_budget(self, margin: float = 1) -> list[str]:
        """What took more than *margin* times what it may."""
        budgets = self._budgets.get(SIZE, {})
        tiers = [
            (spent / budgets.get(tier, math.inf), f"{tier} took {spent:.0f} s, its budget is {budgets.get(tier)}")
            for tier, spent in self._by_tier.items()
        ]
        return [text for times, text in (*self._over, *tiers) if times > margin]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workerinput"):
            return
        too_much = self.over_budget(MARGIN)
        if session.exitstatus == pytest.ExitCode.OK and too_much:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        ended = session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        early = [] if ended else [f"the last run ended early, with exit code {int(session.exitstatus)}"]
        _record_fault(session.config, "; ".join(early + too_much))
        if self._record:
            measured.record(SIZE, self._part, self._walls)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        budgets, write = self._budgets.get(SIZE, {}), terminalreporter.write_line
        terminalreporter.section(f"tiers, at the size {SIZE}")
        for tier, spent in sorted(self._by_tier.items(), key=lambda row: -row[1]):
            budget = f" of {budgets[tier]}" if tier in budgets else ""
            write(f"{tier:<10} {self._tests[tier]:6,} tests {spent:8.1f}{budget} s of processor time")
        write("the most expensive tests:")
        for test, spent in sorted(self._by_test.items(), key=lambda row: -row[1])[:10]:
            write(f"{spent:8.1f} s {test}")
        too_much = self.over_budget(MARGIN)
        for fault in self.over_budget():
            failed = f", and more than {MARGIN} times is a failure" if fault in too_much else ""
            write(f"over budget (tests/budgets.toml): {fault}{failed}", red=bool(failed), yellow=not failed)


def _record_fault(config: pytest.Config, fault: str) -> None:
    """Record for ``make test-failed`` what is wrong with this run beside failed tests."""
    if not hasattr(config, "workerinput") and hasattr(config, "cache"):
        config.cache.set(OTHER_FAULT, fault)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record-seconds", action="store_true", help="write down what each test took in build/measured")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Costs(config), "suite-costs")
