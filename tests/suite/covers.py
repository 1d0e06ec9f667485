"""Which tests run the code of each mutant: found by running tests in a copy of the tree that has probes."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from suite import covering, hits
from suite.mutants import Mutant, mutated, probed
from suite.sandbox import Sandbox, end_marked, stop


class Cover(msgspec.Struct):
    """Which tests run the code of each mutant, in the order to run them, and the seconds that each test takes."""

    tests: dict[str, list[str]] = {}
    seconds: dict[str, float] = {}


def add_probes(made: Sandbox, mutants: Sequence[Mutant]) -> None:
    """Let the copy mark which mutants' code runs."""
    files: defaultdict[str, dict[int, Mutant]] = defaultdict(dict)
    for number, mutant in enumerate(mutants):
        files[mutant.file][number] = mutant
    for file, probes in files.items():
        source = (made.root / file).read_text("utf-8")
        for mutant in probes.values():
            mutated(source, mutant)  # raises an error where its line has changed
        made.write(file, probed(source, probes, hits.CALL))
    (made.packages / "millstream_hits.py").write_bytes(Path(hits.__file__).read_bytes())
    (made.packages / "millstream-hits.pth").write_text("import millstream_hits; millstream_hits.start()\n")
    made.check()


def measure(
    made: Sandbox, mutants: Sequence[Mutant], size: str, arguments: Sequence[str], earlier: Cover
) -> tuple[int, Cover]:
    """Run pytest with *arguments* in the copy; returns its exit code, and *earlier* with what these tests covered."""
    add_probes(made, mutants)
    with tempfile.TemporaryDirectory(prefix="cover-", ignore_cleanup_errors=True) as folder:
        (Path(folder) / covering.WIDTH).write_text(str(len(mutants)))
        environment = {covering.FOLDER: folder, "MILLSTREAM_TEST_SIZE": size}
        line = ["-m", "pytest", "-p", "suite.covering", "-p", "no:cacheprovider", f"--basetemp={folder}/t", *arguments]
        process = made.start(line, environment)
        try:
            code = process.wait()
        finally:
            stop(process)
            end_marked(covering.FOLDER, folder)
        return code, merged(mutants, *covering.collect(Path(folder)), earlier)


def merged(
    mutants: Sequence[Mutant], reached: Mapping[str, set[int]], took: Mapping[str, float], earlier: Cover
) -> Cover:
    """What tests reached now, and what was known *earlier* of the tests that did not run now."""
    seconds = {**earlier.seconds, **took}
    tests = {}
    for number, mutant in enumerate(mutants):
        kept = {test for test in earlier.tests.get(mutant.id, ()) if test not in reached}
        now = {test for test, found in reached.items() if number in found}
        tests[mutant.id] = in_order(kept | now, seconds, mutant.package)
    needed = sorted({test for found in tests.values() for test in found})
    return Cover(tests, {test: round(seconds[test], 2) for test in needed if test in seconds})


def in_order(tests: Iterable[str], seconds: Mapping[str, float], package: str) -> list[str]:
    """The quickest tests first, by tenfold steps; of one step those of the *package*, and those of a file together."""
    own = f"tests/{package}/"
    return sorted(tests, key=lambda test: (_step(seconds.get(test, 0.0)), not test.startswith(own), test))


def _step(seconds: float) -> int:
    return sum(seconds > limit for limit in (0.1, 1.0, 10.0, 100.0))
