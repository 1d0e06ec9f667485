"""The mutation check: ``python -m suite.mutation plan|cover|run``, with ``PYTHONPATH=tests``, at the root of the tree.

``plan`` chooses the mutants, ``cover`` finds which tests run their code, ``run`` lets those tests look for them.
Sources are only changed in copies of the tree.
"""

from __future__ import annotations

import signal
import sys
import tomllib
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import click
import msgspec

from suite.covers import Cover, measure
from suite.judging import ALL, FAST, KILLED, SIZES, Judge, Result
from suite.mutants import PACKAGES, Choice, Mutant, Plan, mutated, plan
from suite.sandbox import ROOT, sandbox

T = TypeVar("T")

CHOICE = ROOT / "tests" / "mutants.toml"
BUILD = ROOT / "build" / "mutation"
GOALS = {FAST: 85, ALL: 95}
"""Per cent of the mutants that are to be killed."""
_BOUND = 600.0
_FILE = click.Path(dir_okay=False, path_type=Path)

Results = dict[tuple[str, str], Result]
"""The last result by id and tier."""


def choice() -> Choice:
    """What ``tests/mutants.toml`` says."""
    return msgspec.convert(tomllib.loads(CHOICE.read_text("utf-8")), Choice)


def read(path: Path, kind: type[T]) -> T:
    """The JSON file *path* as *kind*."""
    return msgspec.json.decode(path.read_bytes(), type=kind)


def write(path: Path, said: object) -> None:
    """Write *said* to the JSON file *path*."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(said), indent=1) + b"\n")


def results(path: Path) -> Results:
    """The results in *path*, a JSON object a line."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    found = (msgspec.json.decode(line, type=Result) for line in lines)
    return {(result.id, result.tier): result for result in found}


def append(path: Path, result: Result) -> None:
    """Append *result* to *path*; several processes may do so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab", buffering=0) as file:
        file.write(msgspec.json.encode(result) + b"\n")


def due(mutants: Iterable[Mutant], known: Results, tier: str, only: Collection[str]) -> list[Mutant]:
    """The mutants that *tier* has to look for: without result, or named by *only*; what fast tests kill is killed."""
    if only:
        return [mutant for mutant in mutants if mutant.id in only or mutant.package in only]
    return [mutant for mutant in mutants if (mutant.id, tier) not in known and not _is_killed(mutant, known, FAST)]


def _is_killed(mutant: Mutant, known: Results, tier: str) -> bool:
    tiers = [FAST] if tier == FAST else [FAST, ALL]
    return any((found := known.get((mutant.id, tier))) and found.outcome == KILLED for tier in tiers)


def check_lines(mutants: Iterable[Mutant]) -> None:
    """Raise :class:`suite.mutants.SourceChangedError` where a mutant's line is another by now."""
    for mutant in mutants:
        mutated((ROOT / mutant.file).read_text("utf-8"), mutant)


def check_covered(mutants: Iterable[Mutant], cover: Cover) -> None:
    """Raise ``click.UsageError`` where it was not measured which tests run a mutant's code."""
    unknown = [mutant.id for mutant in mutants if mutant.id not in cover.tests]
    if unknown:
        raise click.UsageError(f"run `cover` again, it does not know {', '.join(unknown)}")


def table(planned: Plan, known: Results, cover: Cover) -> list[str]:
    """The results in Markdown."""
    rows = [_row(mutant, known, len(cover.tests.get(mutant.id, ()))) for mutant in planned.mutants]
    packages = ["package", "mutants", "found by fast tests", "%", "found by all tests", "%"]
    return [
        *_markdown(["mutant", "line", "kind", "change", "tests", "fast", "all", "s"], rows),
        "", *_markdown(packages, list(_totals(planned, known))),
        "", f"Seed {planned.seed}. Goals: {GOALS[FAST]} % by fast tests, {GOALS[ALL]} % by all tests.",
        *_equivalents(planned),
    ]  # fmt: skip


def _row(mutant: Mutant, known: Results, tests: int) -> list[str]:
    found = {tier: known.get((mutant.id, tier)) for tier in GOALS}
    seconds = sum(result.seconds for result in found.values() if result)
    said = [_said(result) for result in found.values()]
    return [mutant.id, _place(mutant), mutant.kind, _change(mutant), str(tests), *said, f"{seconds:.0f}"]


def _place(mutant: Mutant) -> str:
    return f"{mutant.file.removeprefix('src/millstream/')}:{mutant.line}"


def _change(mutant: Mutant) -> str:
    change = f"`{mutant.old}` → `{mutant.new}`"
    return change if mutant.old == mutant.before else f"{change} in `{mutant.before}`"


def _said(result: Result | None) -> str:
    if result is None:
        return ""
    return f"{result.outcome} by `{result.by}`" if result.outcome == KILLED else result.outcome


def _totals(planned: Plan, known: Results) -> Iterator[list[str]]:
    for name in (*PACKAGES, "total"):
        mutants = [mutant for mutant in planned.mutants if name in (mutant.package, "total")]
        killed = [sum(_is_killed(mutant, known, tier) for mutant in mutants) for tier in GOALS]
        shares = [f"{100 * count / len(mutants):.0f}" if mutants else "" for count in killed]
        yield [name, str(len(mutants)), str(killed[0]), shares[0], str(killed[1]), shares[1]]


def _equivalents(planned: Plan) -> list[str]:
    rows = [[left.mutant.id, _place(left.mutant), _change(left.mutant), left.reason] for left in planned.equivalents]
    return ["", *_markdown(["mutant", "line", "change", "why it is equivalent"], rows)] if rows else []


def _markdown(names: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [names, ["---"] * len(names), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines]


@click.group()
def main() -> None:
    """Make single lines wrong on purpose, and see which tests notice."""
    # Also in the background of a shell, which lets programs ignore Ctrl-C: tests are stopped by it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


@main.command("plan")
@click.option("--seed", type=int, help="Which mutants are chosen; otherwise as in tests/mutants.toml.")
@click.option("--each", type=click.IntRange(1), help="Mutants per package; otherwise as in tests/mutants.toml.")
@click.option("--out", type=_FILE, default=BUILD / "plan.json", show_default=True)
def _plan(seed: int | None, each: int | None, out: Path) -> None:
    """Choose the mutants."""
    said = choice()
    changed = {name: value for name, value in {"seed": seed, "each": each}.items() if value is not None}
    planned = plan(ROOT, msgspec.structs.replace(said, **changed))
    write(out, planned)
    for mutant in planned.mutants:
        click.echo(f"{mutant.id:<17} {mutant.kind:<8} {_place(mutant)}  {mutant.before}  →  {mutant.after}")
    _warn_of_unknown(planned, said)


def _warn_of_unknown(planned: Plan, said: Choice) -> None:
    met = {left.mutant.id for left in planned.equivalents}
    for name in sorted(said.equivalent.keys() - met):
        click.echo(f"tests/mutants.toml: {name} is not among the mutants that the seed chooses", err=True)


@main.command("cover", context_settings={"ignore_unknown_options": True})
@click.option("--plan", "plan_file", type=_FILE, default=BUILD / "plan.json", show_default=True)
@click.option("--size", type=click.Choice(list(SIZES.values())), default="ci", show_default=True)
@click.option("--out", type=_FILE, default=BUILD / "cover.json", show_default=True)
@click.option("--add", is_flag=True, help="Keep what OUT says of other tests.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def _cover(plan_file: Path, size: str, out: Path, add: bool, arguments: tuple[str, ...]) -> None:
    """Run pytest with ARGUMENTS and find which tests run the code of each mutant."""
    planned = read(plan_file, Plan)
    check_lines(planned.all)
    earlier = read(out, Cover) if add and out.exists() else Cover()
    with sandbox() as made:
        code, cover = measure(made, planned.all, size, arguments, earlier)
    write(out, cover)
    for mutant in planned.all:
        click.echo(f"{mutant.id:<17} {len(cover.tests[mutant.id]):5} tests  {_place(mutant)}")
    sys.exit(code)


@main.command("run")
@click.option("--plan", "plan_file", type=_FILE, default=BUILD / "plan.json", show_default=True)
@click.option("--cover", "cover_file", type=_FILE, default=BUILD / "cover.json", show_default=True)
@click.option("--results", "results_file", type=_FILE, default=BUILD / "results.jsonl", show_default=True)
@click.option("--tier", type=click.Choice(list(GOALS)), default=FAST, show_default=True)
@click.option("--only", default="", metavar="ID,…", help="These mutants, or packages, also where there is a result.")
@click.option("--bound", type=float, default=_BOUND, show_default=True, help="Seconds for a mutant.")
def _run(plan_file: Path, cover_file: Path, results_file: Path, tier: str, only: str, bound: float) -> None:
    """Let the tests of a tier look for the mutants that have no result yet, and print all results."""
    planned, cover = read(plan_file, Plan), read(cover_file, Cover)
    todo = due(planned.mutants, results(results_file), tier, [name for name in only.split(",") if name])
    check_lines(todo)
    check_covered(todo, cover)
    if todo:
        _look(todo, planned, cover, tier, bound, results_file)
    click.echo("\n".join(table(planned, results(results_file), cover)))


def _look(todo: Sequence[Mutant], planned: Plan, cover: Cover, tier: str, bound: float, kept: Path) -> None:
    with sandbox() as made:
        judge = Judge(made, cover, tier, bound, planned.seed)
        for number, mutant in enumerate(todo, 1):
            click.echo(f"\n{number}/{len(todo)} {mutant.id} {_place(mutant)} {_change(mutant)}", err=True)
            result = judge.result(mutant)
            append(kept, result)
            click.echo(f"{mutant.id}: {_said(result)}", err=True)


if __name__ == "__main__":
    main()
