"""The frame of all benchmarks: paired runs (A B A B …), medians, ratios, the machine they ran on."""

from __future__ import annotations

import importlib
import inspect
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol, cast

import msgspec

from millstream.bench import BENCHMARKS
from millstream.bench.machine import Machine, this_machine
from millstream.bench.peers import ABSENT, BENCHMARKS_WITH_PEERS, peers_folder
from millstream.core.clock import Clock
from millstream.core.errors import InputError

Size = Literal["quick", "small", "full"]
"""How much work: ``quick`` only shows that a benchmark works."""

Show = Callable[[str], None]


class Measurement(msgspec.Struct, frozen=True):
    """What one run of one contender gave: the measured value, and further figures by name (with their unit)."""

    value: float
    figures: Mapping[str, float] = {}


class Contender(msgspec.Struct, frozen=True):
    """One side of a comparison. ``run`` does the whole work once, checks its result, and returns the sample."""

    name: str
    run: Callable[[], Measurement]


class PeerContenders(msgspec.Struct, frozen=True):
    """The peers in one comparison, and what a reader has to know of them."""

    contenders: Sequence[Contender] = ()
    conditions: str = ""


class Comparison(msgspec.Struct, frozen=True):
    """Contenders that do the same work. The first is the one that the others are measured against.

    ``unit`` says what the value is (``messages/s``, ``ms``); ``conditions`` what a reader has to know: payload,
    durability, kind of senders. Ratios are formed within each round, contender over first. What takes minutes is run
    ``once``, however many rounds the others have.
    """

    title: str
    unit: str
    conditions: str
    contenders: Sequence[Contender]
    once: bool = False


class ContenderResult(msgspec.Struct, frozen=True):
    """The result of one contender: its values round by round, their median, and the median ratio to the first.

    Figures that are rates (``…/s``) have such a ratio beside them.
    """

    contender: str
    values: tuple[float, ...]
    median: float
    ratio: float
    figures: Mapping[str, float]


class ComparisonResult(msgspec.Struct, frozen=True):
    """The result of one comparison."""

    title: str
    unit: str
    conditions: str
    rows: tuple[ContenderResult, ...]


class BenchmarkReport(msgspec.Struct, frozen=True, kw_only=True):
    """All results of one benchmark.

    ``parts`` are the options that chose what of it was run, ``seconds`` is how long it took, ``measured_at`` are
    microseconds since the epoch.
    """

    benchmark: str
    purpose: str
    size: Size
    parts: Mapping[str, str]
    runs: int
    measured_at: int
    seconds: float
    machine: Machine
    results: tuple[ComparisonResult, ...]


class BenchmarkModule(Protocol):
    """What a module named in :data:`millstream.bench.BENCHMARKS` offers; ``ROUNDS``, if it is there, limits them."""

    __doc__: str | None

    def comparisons(self, size: Size, folder: Path, **parts: str) -> Iterator[Comparison]:
        """The comparisons, one after the other; *folder* is empty and removed afterwards.

        Those that can be run in parts say which options they take.
        """
        ...


def run_benchmark(
    name: str,
    *,
    size: Size,
    runs: int,
    clock: Clock,
    show: Show,
    each: Callable[[ComparisonResult], None] = lambda _: None,
    folder: Path | None = None,
    parts: Mapping[str, str] | None = None,
) -> BenchmarkReport:
    """Run the benchmark *name* for *runs* rounds and report; *show* gets a line now and then, *each* every result.

    Its files lie in a new folder under *folder* (the system's temporary folder without it); *parts* choose what of it
    is run. Raises :class:`InputError` for an unknown name or part.
    """
    module, parts = load_benchmark(name), parts or {}
    _check_parts(name, module, parts)
    if name in BENCHMARKS_WITH_PEERS and peers_folder() is None:
        show(f"{ABSENT}: only Millstream's own parts are measured")
    runs = min(runs, getattr(module, "ROUNDS", runs))
    measured_at, begin, machine = clock.now(), clock.monotonic(), this_machine()
    with tempfile.TemporaryDirectory(prefix="millstream-bench-", dir=folder, ignore_cleanup_errors=True) as work:
        results: list[ComparisonResult] = []
        for comparison in module.comparisons(size, Path(work), **parts):
            results.append(measure(comparison, runs, show))
            each(results[-1])
        seconds = clock.monotonic() - begin  # without the removal of the files
    purpose = (module.__doc__ or "").strip().splitlines()[0]
    return BenchmarkReport(
        benchmark=name,
        purpose=purpose,
        size=size,
        parts=parts,
        runs=runs,
        measured_at=measured_at,
        seconds=seconds,
        machine=machine,
        results=tuple(results),
    )


def load_benchmark(name: str) -> BenchmarkModule:
    """The module of the benchmark *name*. Raises :class:`InputError`."""
    if name not in BENCHMARKS:
        raise InputError(f"unknown benchmark {name!r}: choose from {', '.join(BENCHMARKS)}")
    return cast(BenchmarkModule, importlib.import_module(BENCHMARKS[name]))


def _check_parts(name: str, module: BenchmarkModule, parts: Mapping[str, str]) -> None:
    known = [part for part in inspect.signature(module.comparisons).parameters if part not in {"size", "folder"}]
    unknown = set(parts) - set(known)
    if unknown:
        options = ", ".join(known) or "nothing"
        raise InputError(f"benchmark {name!r} has no option {', '.join(sorted(unknown))}: use {options}")


def measure(comparison: Comparison, runs: int, show: Show) -> ComparisonResult:
    """Run all contenders turn by turn, *runs* rounds, so that a busy neighbour slows them alike."""
    samples: list[list[Measurement]] = [[] for _ in comparison.contenders]
    runs = 1 if comparison.once else runs
    for number in range(runs):
        show(f"{comparison.title}: round {number + 1} of {runs}")
        for taken, contender in zip(samples, comparison.contenders, strict=True):
            try:
                taken.append(contender.run())
            except AssertionError as error:
                raise AssertionError(f"{comparison.title}, {contender.name}: {error}") from error
    rows = tuple(
        _row(contender.name, taken, samples[0]) for contender, taken in zip(comparison.contenders, samples, strict=True)
    )
    return ComparisonResult(comparison.title, comparison.unit, comparison.conditions, rows)


def _row(name: str, samples: list[Measurement], first: list[Measurement]) -> ContenderResult:
    values = tuple(sample.value for sample in samples)
    ratios = [mine.value / other.value for mine, other in zip(samples, first, strict=True)]
    figures = {key: statistics.median(sample.figures[key] for sample in samples) for key in samples[0].figures}
    for key in [key for key in figures if key.endswith("/s") and key in first[0].figures]:
        pairs = zip(samples, first, strict=True)
        figures[f"{key}, ratio"] = statistics.median(mine.figures[key] / other.figures[key] for mine, other in pairs)
    return ContenderResult(name, values, statistics.median(values), statistics.median(ratios), figures)
