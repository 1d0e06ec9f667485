"""The mutation check: what is mutated, which mutants are chosen, and what their tests' outcomes mean."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from suite import covering, hits, judging
from suite.choosing import LEAST_LIMIT, Chosen, Outcome
from suite.covers import Cover, in_order, merged
from suite.judging import ALL, FAST, KILLED, SURVIVED, UNCOVERED, UNFINISHED, Result, verdict
from suite.mutants import (
    BOUNDARY,
    COMPARE,
    DROP,
    GENERATED,
    KINDS,
    PACKAGES,
    SOURCE,
    Choice,
    Mutant,
    Plan,
    SourceChangedError,
    candidates,
    compiles,
    mutated,
    plan,
    probed,
)
from suite.mutation import append, check_covered, choice, due, results, table
from suite.sandbox import ROOT

EVERYTHING = '''"""A module: 1 < 2."""
import logging
from typing import TYPE_CHECKING
log = logging.getLogger(__name__)
LIMIT = 3 if 1 < 2 else 4
if TYPE_CHECKING:
    def unseen(a: int) -> bool:
        return a < 1


class Writer:
    """Has a lease."""

    size: int = 3

    def write(self, rows: list[int], most: int = 5 - 1) -> "list[int]":
        """Write them: 1 < 2."""
        taken: int = len(rows) + 1
        if (taken) >= most and rows[0] not in {7, 8} or rows is not None:
            self.fsync()
        if not self.lease_is_ours():
            raise ValueError(f"{taken < most}")
        assert taken > 0
        log.warning("%s", taken == 0)
        for each in range(2, taken):
            taken -= 1; self._lease.renew(each)
        self._lock.release()
        ä = lambda a, b: a == b  # <
        return rows[1:-1] if "ü" != rows or ä(0, 0) < taken < 99 else [self.flush("<", each == 1)]

    async def close(self) -> None:
        await self.commit(
            1)
        await self.sync()

    def __repr__(self) -> str:
        return "a" if self.size < 1 else "b"
'''

FILE = f"{SOURCE}/log/everything.py"


@pytest.fixture(scope="module")
def found() -> list[Mutant]:
    return candidates("log", FILE, EVERYTHING)


def told(found: list[Mutant], kind: str) -> list[tuple[str, str]]:
    return [(mutant.old, mutant.new) for mutant in found if mutant.kind == kind]


def test_comparisons_are_turned_round(found: list[Mutant]) -> None:
    assert told(found, COMPARE) == [
        (">=", "<"), ("not in", "in"), ("is not", "is"), ("==", "!="), ("!=", "=="), ("<", ">="), ("<", ">="),
        ("==", "!="),
    ]  # fmt: skip


def test_boundaries_move_by_one(found: list[Mutant]) -> None:
    assert told(found, BOUNDARY) == [
        ("1", "0"), ("1", "2"), (">=", ">"), ("2", "1"), ("2", "3"), ("1", "0"), ("1", "2"),
        ("1", "0"), ("1", "2"), ("1", "0"), ("1", "2"), ("<", "<="), ("<", "<="), ("99", "100"), ("99", "98"),
        ("1", "0"), ("1", "2"),
    ]  # fmt: skip


def test_checks_of_one_line_are_dropped(found: list[Mutant]) -> None:
    assert told(found, DROP) == [
        ("self.fsync()", "pass"), ('raise ValueError(f"{taken < most}")', "pass"), ("self._lease.renew(each)", "pass"),
        ("await self.sync()", "pass"),
    ]  # fmt: skip


def test_a_mutant_changes_one_line_and_compiles(found: list[Mutant]) -> None:
    lines = EVERYTHING.splitlines()
    for mutant in found:
        changed = mutated(EVERYTHING, mutant).splitlines()
        others = [number for number, (one, other) in enumerate(zip(lines, changed, strict=True), 1) if one != other]
        assert others == [mutant.line]
        assert (lines[mutant.line - 1].strip(), changed[mutant.line - 1].strip()) == (mutant.before, mutant.after)
        assert compiles("\n".join(changed))


def test_a_line_that_has_changed_is_refused(found: list[Mutant]) -> None:
    with pytest.raises(SourceChangedError, match=r"everything.py:\d+ is no longer .* make the plan anew"):
        mutated("\n" + EVERYTHING, found[0])


def test_probes_keep_the_lines_and_what_the_code_does(found: list[Mutant]) -> None:
    text = probed(EVERYTHING, dict(enumerate(found)), "hit")
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call) and _name(node) == "hit"]
    assert len(calls) == len(found) and text.count("\n") == EVERYTHING.count("\n")

    source = "def f(a, b):\n    if a < 1 < b:\n        check(a)\n    return [0, 1, 2][1:]\n"
    probes = dict(enumerate(candidates("log", FILE, source)))
    seen: set[int] = set()
    checked: list[int] = []
    names: dict[str, Any] = {"hit": seen.add, "check": checked.append}
    exec(probed(source, probes, "hit"), names)
    assert names["f"](1, 2) == [1, 2] and checked == []
    dropped = {number for number, mutant in probes.items() if mutant.kind == DROP}
    assert seen == probes.keys() - dropped
    assert names["f"](0, 2) == [1, 2] and checked == [0]
    assert seen == probes.keys()


def _name(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else ""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for package in PACKAGES:
        folder = tmp_path / SOURCE / package
        folder.mkdir(parents=True)
        for name in ("one", "two", "three", "four"):
            lines = "".join(
                f"    if a < {n} {name}:\n        check_{n}()\n".replace(f" {name}", "") for n in range(2, 6)
            )
            (folder / f"{name}.py").write_text(f"def {name}(a):\n{lines}", "utf-8")
    for name in GENERATED:
        path = tmp_path / SOURCE / name
        path = path / "v2.py" if name.endswith("/") else path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("def f(a):\n    return a < 1\n", "utf-8")
    return tmp_path


def test_a_plan_is_its_seeds(tree: Path) -> None:
    made = plan(tree, Choice(15, 6))
    assert plan(tree, Choice(15, 6)) == made != plan(tree, Choice(16, 6))
    for package in PACKAGES:
        mine = [mutant for mutant in made.mutants if mutant.package == package]
        assert [mutant.kind for mutant in mine] == [*KINDS, *KINDS]
        assert len({mutant.file for mutant in mine}) == 4
        assert len({(mutant.file, mutant.line) for mutant in mine}) == 6
    assert len(made.spares) == len(made.mutants)
    assert not any(GENERATED[0] in mutant.file or GENERATED[1] in mutant.file for mutant in made.all)


def test_a_change_elsewhere_keeps_the_mutants(tree: Path) -> None:
    before = plan(tree, Choice(15, 2))
    changed = tree / before.mutants[0].file
    changed.write_text("# a comment\n" + changed.read_text("utf-8"), "utf-8")
    after = plan(tree, Choice(15, 2))
    assert [mutant.id for mutant in after.all] == [mutant.id for mutant in before.all]
    assert after.mutants[0].line == before.mutants[0].line + 1


def test_an_equivalent_mutant_is_listed_and_replaced_by_one_of_its_kind(tree: Path) -> None:
    before = plan(tree, Choice(15, 6))
    equivalent, *_ = (spare for spare in before.spares if spare.kind == before.mutants[1].kind)
    why = {before.mutants[1].id: "the same", equivalent.id: "the same too"}
    after = plan(tree, Choice(15, 6, why))
    changed = [(old, new) for old, new in zip(before.mutants, after.mutants, strict=True) if old != new]
    assert [old.id for old, _ in changed] == [before.mutants[1].id]
    assert changed[0][1].kind == changed[0][0].kind and changed[0][1] not in before.mutants
    assert {left.mutant.id: left.reason for left in after.equivalents} == why


def test_the_seed_of_this_tree_gives_each_package_its_mutants() -> None:
    made = plan(ROOT, choice())
    for package in PACKAGES:
        mine = [mutant for mutant in made.mutants if mutant.package == package]
        assert len(mine) >= 5 and {mutant.kind for mutant in mine} == set(KINDS)


@pytest.fixture
def marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv(hits.ENVIRONMENT, "")
    monkeypatch.setattr(hits, "_head", None)
    monkeypatch.setattr(hits, "_marks", None)
    monkeypatch.setattr(builtins, hits.CALL, None, raising=False)
    yield tmp_path / "1.hits"


def test_hits_count_for_the_test_that_runs(marks: Path) -> None:
    hits.hit(0)  # no table yet
    with pytest.raises(RuntimeError, match="no table"):
        hits.enter(1)
    hits.create(marks, 3)
    hits.attach(str(marks))
    hits.start()
    for row, number in ((1, 2), (2, 0), (2, 1), (0, 0)):
        hits.enter(row)
        getattr(builtins, hits.CALL)(number)
    assert [hits.read(marks, row) for row in range(4)] == [[0], [2], [0, 1], []]
    marks.with_suffix(".tests").write_text('"a"\n1.5\n"b"\n', "utf-8")
    assert covering.collect(marks.parent) == ({"a": {2}, "b": {0, 1}}, {"a": 1.5})


def test_a_second_measurement_replaces_what_its_tests_covered(found: list[Mutant]) -> None:
    mutants = found[:2]
    first = merged(mutants, {"tests/a.py::a": {0}, "tests/a.py::b": {0, 1}}, {"tests/a.py::a": 2.0}, Cover())
    second = merged(mutants, {"tests/a.py::b": {1}, "tests/a.py::c": {0}}, {"tests/a.py::c": 0.01}, first)
    assert list(second.tests.values()) == [["tests/a.py::c", "tests/a.py::a"], ["tests/a.py::b"]]
    assert second.seconds == {"tests/a.py::a": 2.0, "tests/a.py::c": 0.01}


def test_quick_tests_come_first_then_those_of_the_package() -> None:
    seconds = {"tests/mill/a.py::a": 0.01, "tests/log/b.py::b": 0.02, "tests/log/c.py::c": 0.2}
    assert in_order(seconds, seconds, "log") == ["tests/log/b.py::b", "tests/mill/a.py::a", "tests/log/c.py::c"]


@pytest.mark.parametrize(
    ("outcome", "code", "failed", "said"),
    [
        (Outcome(finished=True, passed=2), 0, None, SURVIVED),
        (Outcome(finished=True, passed=2), 1, None, SURVIVED),  # over a budget
        (Outcome(finished=True), 5, None, UNCOVERED),
        (Outcome(finished=True, failed="b", passed=1), 1, "b", KILLED),
        (Outcome(running="b", passed=1), -9, "b", KILLED),
        (Outcome(finished=True), 4, "a", KILLED),
    ],
)
def test_how_pytest_ended_says_whether_a_mutant_was_killed(
    outcome: Outcome, code: int, failed: str | None, said: str
) -> None:
    end = judging.ended(outcome, Chosen(["a", "b"]), code)
    assert (end.failed, verdict(end)) == (failed, said)


@pytest.mark.parametrize(("now", "said"), [(LEAST_LIMIT + 5, UNFINISHED), (LEAST_LIMIT + 25, KILLED)])
def test_out_of_time_is_a_kill_only_where_a_test_hangs(now: float, said: str) -> None:
    outcome = judging.stopped(Outcome(running="a", since=0.0), Chosen(["a"], {"a": 2.0}), now)
    assert verdict(outcome) == said


def test_a_failure_names_a_test_or_the_tests_of_a_file() -> None:
    tests = ["t/a.py::x[1]", "t/a.py::y", "t/ab.py::x"]
    assert judging.named(tests, "t/a.py") == tests[:2]
    assert judging.without(tests, ["t/a.py::y", "t/ab.py"]) == tests[:1]


def test_results_are_kept_and_what_fast_tests_kill_is_killed(tree: Path) -> None:
    made, kept = plan(tree, Choice(15, 1)), tree / "results.jsonl"
    first, second, third, *_ = made.mutants
    for mutant, tier, said in ((first, FAST, SURVIVED), (first, FAST, KILLED), (second, FAST, SURVIVED)):
        append(kept, Result(id=mutant.id, tier=tier, outcome=said, by="t/a.py::x[a|b]" if said == KILLED else ""))
    known = results(kept)
    assert due(made.mutants, known, FAST, []) == made.mutants[2:]
    assert due(made.mutants, known, ALL, []) == made.mutants[1:]
    assert due(made.mutants, known, FAST, [first.id, third.package]) == [first, third]
    lines = table(made, known, Cover())
    assert any(first.id in line and "killed by `t/a.py::x[a\\|b]`" in line for line in lines)
    assert f"| total | {len(PACKAGES)} | 1 | 12 | 1 | 12 |" in lines


def test_a_mutant_that_was_not_measured_is_refused(found: list[Mutant]) -> None:
    check_covered(found[:1], Cover({found[0].id: []}))
    with pytest.raises(click.UsageError, match=f"it does not know {found[1].id}"):
        check_covered(found[:2], Cover({found[0].id: []}))


def test_equivalents_are_published_with_their_reasons(tree: Path) -> None:
    mutant = plan(tree, Choice(15, 1)).mutants[0]
    made: Plan = plan(tree, Choice(15, 1, {mutant.id: "both end alike"}))
    assert any(mutant.id in line and "both end alike" in line for line in table(made, {}, Cover()))
