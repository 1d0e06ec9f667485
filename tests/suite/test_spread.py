"""How the suite is split into parts, and what its record of long runs says."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from suite import measured, runs, tiers
from suite.sizes import LEAST_EXAMPLES, LEAST_STEPS, machine
from suite.spread import divided, joined, part_of, seconds_of

RECORD = """
| date | part | commit | machine | tests | seconds |
|---|---|---|---|---|---|
| 2026-01-01 | 1/2 | aaaaaaa | 2 cores, 24 GiB, Python 3.11.7 | 5 passed, 1 failed | 3,000 |
| 2026-01-02 | 1/2 | bbbbbbb | 2 cores, 24 GiB, Python 3.11.7 | 6 passed | 2,900 |
"""


def test_parts_hold_every_unit_once_and_take_about_equally_long() -> None:
    draw = random.Random(1)
    seconds = {f"unit {n}": draw.expovariate(1 / 30) for n in range(500)}
    parts = part_of(seconds, 6)
    assert parts.keys() == seconds.keys()
    loads = [sum(seconds[unit] for unit, part in parts.items() if part == number) for number in range(1, 7)]
    assert max(loads) - min(loads) <= max(seconds.values())


def test_the_split_does_not_depend_on_the_order_of_collection() -> None:
    seconds = {f"unit {n}": float(n % 7) for n in range(50)}
    assert part_of(dict(reversed(seconds.items())), 4) == part_of(seconds, 4)


def test_the_files_of_a_unit_are_divided_and_each_stays_whole() -> None:
    units = {f"tests/{file}.py::test_{n}[{n}]": "session" for file in "abcd" for n in range(5)}
    found = divided({**units, "tests/e.py::test": "tests/e.py"}, "session", 2)
    assert found.pop("tests/e.py::test") == "tests/e.py"
    by_file = {nodeid.partition("::")[0]: unit for nodeid, unit in found.items()}
    assert sorted(by_file.values()) == ["session 1"] * 2 + ["session 2"] * 2
    assert found == {nodeid: by_file[nodeid.partition("::")[0]] for nodeid in units}


def test_a_heavy_test_of_a_new_file_begins_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "read", lambda _: {"a.py::test_long": 50.0})
    units = {name: name for name in ("a.py::test_long", "a.py::test_short", "b.py::test[1]", "c.py::test")}
    found = seconds_of(units, {"a.py::test_short", "b.py::test[1]"})
    assert sorted(found, key=lambda unit: -found[unit])[:2] == ["a.py::test_long", "b.py::test[1]"]
    assert found["a.py::test_short"] == found["c.py::test"] == measured.UNKNOWN


def test_files_that_use_one_costly_server_are_one_unit() -> None:
    fixtures = {
        "a.py::test_one": ["swift"], "a.py::test_two": [], "b.py::test": ["swift", "moto"], "c.py::test": ["moto"],
        "d.py::test": ["rabbitmq"], "e.py::test_alone": ["swift"], "f.py::test": ["swift", "spark"],
    }  # fmt: skip
    units = {nodeid: nodeid.partition("::")[0] for nodeid in fixtures}
    units |= {"e.py::test_alone": "e.py::test_alone", "f.py::test": "session"}
    assert joined(units, fixtures) == {
        **units,
        **dict.fromkeys(("a.py::test_one", "a.py::test_two", "b.py::test"), "files with swift"),
        "d.py::test": "files with rabbitmq",
    }


def test_what_parts_measured_is_taken_together_and_the_rest_stays(tmp_path: Path) -> None:
    kept, parts = tmp_path / "measured.json", tmp_path / "parts"
    kept.write_text(json.dumps({"ci": {"a": 2.0}, "long": {"a": 9.0, "b": 7.0, "c": 5.0}}), "utf-8")
    parts.mkdir()
    (parts / "long-1-of-2.json").write_text(json.dumps({"long": {"a": 8.04, "c": 0.5}}), "utf-8")
    (parts / "long-2-of-2.json").write_text(json.dumps({"long": {"d": 3.0}}), "utf-8")
    measured.take(parts, kept)
    assert json.loads(kept.read_text("utf-8")) == {"ci": {"a": 2.0}, "long": {"a": 8.0, "b": 7.0, "d": 3.0}}
    assert list(parts.iterdir()) == []


def test_the_status_shows_the_last_run_of_each_part_and_those_that_were_never_run() -> None:
    assert runs.status(RECORD) == ["   1/2  2026-01-02  bbbbbbb    6 passed, 2,900 s", "   2/2  never run"]
    assert runs.status("") == ["no part was ever run"]


def test_the_options_of_the_makefile_are_known(request: pytest.FixtureRequest) -> None:
    known = [request.config.getoption(name) for name in ("part", "record_run", "record_seconds")]
    assert all(value is not None for value in known)


def test_a_state_machine_keeps_its_least_examples_and_steps_at_every_size() -> None:
    settings = machine(ci=2, long=3, steps=4)
    assert settings.max_examples == LEAST_EXAMPLES
    assert settings.stateful_step_count == LEAST_STEPS


def test_a_server_that_a_test_of_the_default_tier_starts_is_named_with_its_tier(request: pytest.FixtureRequest) -> None:
    with pytest.raises(pytest.fail.Exception, match="starts mariadbd: mark it served"):
        tiers.check_program(request.node, ["/usr/sbin/mariadbd", "--port=1"])
    tiers.check_program(request.node, ["/bin/true"])
