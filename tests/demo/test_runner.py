"""Stages of the demo that begin ahead of their turn."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from millstream.demo.errors import DemoError
from millstream.demo.progress import PlainProgress
from millstream.demo.runner import DemoRun, Stage, StageResult, run_stages
from millstream.demo.stages import copies
from millstream.demo.summary import Summary
from millstream.node import Node
from millstream.settings import Settings
from millstream.stores import all_entries

PATIENCE = 60.0


@pytest.fixture
def demo_run(tmp_path: Path) -> Iterator[DemoRun]:
    settings = Settings(data=str(tmp_path / "data"))
    with (
        Node.open(settings, create=True) as node,
        DemoRun(node, cast(Any, None), tmp_path, PlainProgress()) as demo_run,
    ):
        yield demo_run


def test_a_part_that_needs_no_other_stage_runs_beside_the_stages_before_it(demo_run: DemoRun) -> None:
    reached, ended = threading.Event(), threading.Event()

    def first(_: DemoRun) -> StageResult:
        assert reached.wait(PATIENCE)
        ended.set()
        return StageResult({"files": 1})

    def ahead(_: DemoRun) -> None:
        reached.set()
        assert ended.wait(PATIENCE)

    stages = [Stage("one", "one", first), Stage("two", "two", lambda _: StageResult({"files": 2}), ahead=ahead)]
    figures = run_stages(stages, demo_run, PlainProgress())
    assert [(each.counts["files"], each.seconds >= each.beside) for each in figures] == [(1, True), (2, True)]
    assert figures[0].beside == 0
    summary = Summary("", cast(Any, None), figures, 0, "")
    assert summary.seconds == pytest.approx(figures[0].seconds + figures[1].seconds - figures[1].beside)


def test_a_stage_that_an_earlier_run_recorded_begins_nothing(demo_run: DemoRun) -> None:
    begun: list[str] = []
    stages = [Stage("one", "one", lambda _: StageResult({}), ahead=lambda _: begun.append("one"))]
    run_stages(stages, demo_run, PlainProgress())
    run_stages(stages, demo_run, PlainProgress())
    assert begun == ["one"]


def test_what_fails_ahead_of_a_stage_is_raised_in_its_turn(demo_run: DemoRun) -> None:
    ran: list[str] = []

    def fail(_: DemoRun) -> None:
        raise DemoError("no folder")

    def run(_: DemoRun) -> StageResult:
        ran.append("stage")
        return StageResult({})

    stages = [Stage("one", "one", run), Stage("two", "two", run, ahead=fail)]
    with pytest.raises(DemoError, match="no folder"):
        run_stages(stages, demo_run, PlainProgress())
    assert ran == ["stage"]


def test_a_part_begins_when_the_part_that_it_follows_has_ended(demo_run: DemoRun) -> None:
    order: list[str] = []
    may_end = threading.Event()

    def first(_: DemoRun) -> StageResult:
        may_end.set()
        return StageResult({})

    def ahead(_: DemoRun) -> None:
        assert may_end.wait(PATIENCE)
        order.append("two")

    def run(_: DemoRun) -> StageResult:
        return StageResult({})

    stages = [
        Stage("one", "one", first),
        Stage("two", "two", run, ahead=ahead),
        Stage("three", "three", run, ahead=lambda _: order.append("three"), after=("two",)),
    ]
    figures = run_stages(stages, demo_run, PlainProgress())
    assert order == ["two", "three"]
    assert figures[2].seconds < PATIENCE  # waiting is not its work


def test_a_part_may_begin_with_a_stage_instead_of_the_walk(demo_run: DemoRun) -> None:
    order: list[str] = []
    begun = threading.Event()

    def ahead(_: DemoRun) -> None:
        order.append("ahead of three")
        begun.set()

    def first(_: DemoRun) -> StageResult:
        order.append("one")
        return StageResult({})

    def second(_: DemoRun) -> StageResult:
        assert begun.wait(PATIENCE)
        return StageResult({})

    stages = [
        Stage("one", "one", first),
        Stage("two", "two", second),
        Stage("three", "three", first, ahead=ahead, beside="two"),
    ]
    run_stages(stages, demo_run, PlainProgress())
    assert order == ["one", "ahead of three", "one"]


def test_a_part_never_begins_if_the_part_that_it_follows_fails(demo_run: DemoRun) -> None:
    begun: list[str] = []

    def fail() -> None:
        raise DemoError("no folder")

    demo_run.begin("two", fail)
    demo_run.begin("three", lambda: begun.append("three"), after=("two",))
    for name in ("two", "three"):
        with pytest.raises(DemoError, match="no folder"):
            demo_run.await_lead(name)
    assert begun == []


def test_a_run_that_closes_begins_no_part_that_follows_another(demo_run: DemoRun) -> None:
    begun: list[str] = []

    def put() -> None:
        assert demo_run.closing.wait(PATIENCE)

    demo_run.begin("files", put)
    demo_run.begin("copies", lambda: begun.append("copies"), after=("files",))
    demo_run.close()
    assert begun == []


def test_a_run_that_is_cut_short_does_not_put_the_rest_of_the_files(demo_run: DemoRun) -> None:
    demo_run.closing.set()
    copies.put_files(demo_run)
    assert list(all_entries(demo_run.node.stores.providers[copies.PRIMARY], copies.FILES_SPACE)) == []
