"""Runs the tests that cover a mutant in a copy of the tree, and says whether one of them notices it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from suite.choosing import CHOSEN, FOLDER, OUTCOME, Chosen, Outcome
from suite.covers import Cover
from suite.mutants import Mutant, mutated
from suite.sandbox import Sandbox, end_marked, stop

FAST, ALL = "fast", "all"
SIZES = {FAST: "quick", ALL: "ci"}
FAST_TESTS = "default or smoke"
KILLED, SURVIVED, UNCOVERED, UNFINISHED = "killed", "survived", "uncovered", "unfinished"
_ENDING = 5.0
"""Seconds between two looks at how far pytest is, and about those that it gets to end after a failure."""
_NO_FAILURE = {0, 1, 5}
"""Exit codes of pytest that say no more than the outcome does; 1 also stands for tests that are over their budget."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a mutant in a tier: *by* is the test that killed it, *ignored* are failures that did not count."""

    id: str
    tier: str
    outcome: str
    by: str = ""
    how: str = ""
    tests: int = 0
    seconds: float = 0.0
    ignored: list[str] = []


class Judge:
    """Lets the tests of a tier look for mutants, for at most *bound* seconds each."""

    def __init__(self, made: Sandbox, cover: Cover, tier: str, bound: float, seed: int) -> None:
        self._made, self._cover, self._tier, self._bound, self._seed = made, cover, tier, bound, seed
        self._sound: dict[str, bool] = {}

    def result(self, mutant: Mutant) -> Result:
        """What the tests say of *mutant*. A failure counts if the same test fails again, and passes without it."""
        began, ignored = time.perf_counter(), list[str]()
        tests = self._cover.tests.get(mutant.id, [])
        outcome = self._look_for(mutant, tests, self._bound)
        while outcome.failed and not self._confirms(mutant, outcome.failed):
            ignored.append(outcome.failed)
            left = self._bound - (time.perf_counter() - began)
            outcome = self._look_for(mutant, without(tests, ignored), left)
        return Result(
            id=mutant.id, tier=self._tier, outcome=verdict(outcome), by=outcome.failed or "", how=outcome.how,
            tests=len(tests), seconds=round(time.perf_counter() - began, 1), ignored=ignored,
        )  # fmt: skip

    def _confirms(self, mutant: Mutant, failed: str) -> bool:
        """Whether the test, or the file of tests, that *failed* fails again with the mutant and passes without."""
        tests = named(self._cover.tests[mutant.id], failed)
        if failed not in self._sound:
            clean = self._run(tests, self._bound)
            self._sound[failed] = clean.failed is None and clean.passed > 0
        return self._sound[failed] and self._look_for(mutant, tests, self._bound).failed is not None

    def _look_for(self, mutant: Mutant, tests: Sequence[str], bound: float) -> Outcome:
        if not tests:
            return Outcome(finished=True)
        source = (self._made.root / mutant.file).read_text("utf-8")
        self._made.write(mutant.file, mutated(source, mutant))
        try:
            return self._run(tests, bound)
        finally:
            self._made.write(mutant.file, source)

    def _run(self, tests: Sequence[str], bound: float) -> Outcome:
        """Run *tests* up to the first failure, for at most *bound* seconds."""
        known = self._cover.seconds
        chosen = Chosen(list(tests), {test: known[test] for test in tests if test in known})
        with tempfile.TemporaryDirectory(prefix="run-", ignore_cleanup_errors=True) as folder:
            (Path(folder) / CHOSEN).write_bytes(msgspec.json.encode(chosen))
            environment = {FOLDER: folder, "MILLSTREAM_TEST_SIZE": SIZES[self._tier]}
            arguments = [*self._arguments(tests), f"--basetemp={folder}/t"]
            process = self._made.start(arguments, environment, stdout=sys.stderr)
            try:
                code = _code_of(process, Path(folder), max(bound, 1.0))
                outcome = _outcome(Path(folder))
                return stopped(outcome, chosen, time.perf_counter()) if code is None else ended(outcome, chosen, code)
            finally:
                stop(process)
                end_marked(FOLDER, folder)

    def _arguments(self, tests: Iterable[str]) -> list[str]:
        files = sorted({test.partition("::")[0] for test in tests})
        tier = ["-m", FAST_TESTS] if self._tier == FAST else []
        plain = ["-x", "-q", "--no-header", "--tb=line", "-p", "no:cacheprovider", "-p", "suite.choosing"]
        return ["-m", "pytest", *plain, f"--hypothesis-seed={self._seed}", *tier, *files]


def _code_of(process: subprocess.Popen[bytes], folder: Path, bound: float) -> int | None:
    """The exit code of pytest; None after *bound* seconds, or where threads keep it long after a test has failed."""
    end = time.perf_counter() + bound
    while (left := end - time.perf_counter()) > 0:
        try:
            return process.wait(min(left, _ENDING))
        except subprocess.TimeoutExpired:
            if _outcome(folder).failed:
                end = min(end, time.perf_counter() + _ENDING)
    return None


def _outcome(folder: Path) -> Outcome:
    kept = folder / OUTCOME
    return msgspec.json.decode(kept.read_bytes(), type=Outcome) if kept.exists() else Outcome()


def ended(outcome: Outcome, chosen: Chosen, code: int) -> Outcome:
    """The *outcome* of pytest that ended with *code*: that it died, or could not begin, is a failure as well."""
    if outcome.failed is None and not (outcome.finished and code in _NO_FAILURE):
        outcome.failed, outcome.how = outcome.running or chosen.tests[0], f"pytest ended with {code}"
    return outcome


def stopped(outcome: Outcome, chosen: Chosen, now: float) -> Outcome:
    """The *outcome* of pytest that was out of time *now*: a test that has long exceeded what it takes hangs."""
    if outcome.failed is None and outcome.running and now - outcome.since > chosen.limit(outcome.running):
        outcome.failed, outcome.how = outcome.running, "it hangs"
    return outcome


def verdict(outcome: Outcome) -> str:
    """What is said of a mutant whose tests ended so."""
    if outcome.failed:
        return KILLED
    if not outcome.finished:
        return UNFINISHED
    return SURVIVED if outcome.passed else UNCOVERED


def named(tests: Iterable[str], name: str) -> list[str]:
    """Those of *tests* that *name* names: the test itself, or those of a file."""
    return [test for test in tests if test == name or test.startswith(f"{name}::")]


def without(tests: Iterable[str], names: Iterable[str]) -> list[str]:
    """Those of *tests* that none of *names* names."""
    left = list(tests)
    for name in names:
        out = set(named(left, name))
        left = [test for test in left if test not in out]
    return left
