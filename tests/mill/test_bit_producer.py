"""The looping bit producer: every item of every space, and a report when the checks of a space have ended."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from mill_looping import Bits, fill, numbered, take

from millstream.mill.duplication.source_recorder import record_space
from millstream.mill.integrity_decision import CheckVerdict
from millstream.mill.manifest import CheckResult, ManifestEvent
from millstream.mill.producers.producer_loop import MOST_FAILURES, PATIENCE, LoopOutcome
from millstream.mill.tasks import BitCheck, BitReport, decode_task
from millstream.testing.faulty_store import UnavailableStore


def test_a_space_is_reported_when_its_own_checks_have_ended(world: Any, tmp_path: Path) -> None:
    fill(world, "1", "a", numbered(1100))
    fill(world, "1", "b", ["x"])
    bits = Bits(world, tmp_path)
    started = world.clock.now()
    run = bits.run()
    assert (run.outcome, run.tasks, run.left) == (LoopOutcome.WAITING, 1101, 2)
    assert bits.run().tasks == 0
    leases = bits.queue.lease(10**6, visibility=600)
    spaces = {lease.task_id: decode_task(lease.body).space for lease in leases}  # type: ignore[union-attr]
    bits.queue.ack([lease for lease in leases if spaces[lease.task_id] == "a"])
    run = bits.run()
    assert (run.outcome, run.tasks, run.left) == (LoopOutcome.WAITING, 1, 1)
    assert take(bits.reports) == [BitReport("1", "a", started, 1100)]
    bits.queue.dead_letter(next(lease for lease in leases if spaces[lease.task_id] == "b"), cause="poison")
    run = bits.run()
    assert (run.outcome, run.tasks, run.left) == (LoopOutcome.DONE, 1, 0)
    assert take(bits.reports) == [BitReport("1", "b", started, 1)]


def test_what_only_the_manifest_knows_is_checked_and_system_spaces_are_not(world: Any, tmp_path: Path) -> None:
    fill(world, "1", "s", ["listed"])
    fill(world, "1", "x-quarantine", ["bad"])
    world.manifest.writer.record(
        [ManifestEvent("1", "s", "lost", 1, "a" * 64), ManifestEvent("2", "t", "all lost", 1, "a" * 64)]
    )
    bits = Bits(world, tmp_path)
    bits.run()
    assert take(bits.queue) == [
        BitCheck("1", "s", "listed"), BitCheck("1", "s", "lost"), BitCheck("2", "t", "all lost")
    ]  # fmt: skip


def test_an_empty_space_is_reported_without_a_check(world: Any, tmp_path: Path) -> None:
    world.stores["1"].create_space("s")
    bits = Bits(world, tmp_path)
    assert (bits.run().outcome, take(bits.queue)) == (LoopOutcome.DONE, [])
    assert [(report.space, report.listed) for report in take(bits.reports)] == [("s", 0)]


def test_p9_a_listing_that_breaks_off_ends_in_a_report_that_says_so(world: Any, tmp_path: Path) -> None:
    fill(world, "1", "s", ["a"])
    world.stores["1"] = UnavailableStore(world.stores["1"], when=lambda call: call.method == "entries")
    bits = Bits(world, tmp_path)
    assert [bits.run().outcome for _ in range(MOST_FAILURES)] == [LoopOutcome.FAILED] * MOST_FAILURES
    world.clock.advance(PATIENCE / 1_000_000)
    assert bits.run().outcome == LoopOutcome.DONE
    (report,) = take(bits.reports)
    assert report.note.startswith("the listing stopped before its end: ")


def test_what_was_found_good_lately_is_left_out_and_anything_else_is_not(world: Any, tmp_path: Path) -> None:
    fill(world, "1", "s", ["bad", "changed", "good", "grown", "new", "old"])
    world.clock.advance(1)
    record_space(world.providers, world.manifest, "1", "s")
    found = {name: world.clock.now() for name in ("changed", "good", "grown", "bad")} | {"old": 1}
    world.manifest.writer.apply([checked(world, name, at) for name, at in found.items()])
    world.clock.advance(10)
    fill(world, "1", "s", ["changed"])
    world.stores["1"].put("s", "grown", io.BytesIO(b"longer"))
    world.manifest.writer.record([ManifestEvent("1", "s", "lost", 1, "a" * 64)])
    skip = 60 * 1_000_000
    bits = Bits(world, tmp_path, skip=skip)
    started = world.clock.now()
    bits.run()
    assert [task.content_id for task in take(bits.queue)] == ["bad", "changed", "grown", "lost", "new", "old"]
    assert bits.run().outcome == LoopOutcome.DONE
    assert take(bits.reports) == [BitReport("1", "s", started, 7, good_since=started - skip)]
    everything = Bits(world, tmp_path / "other")
    everything.run()
    assert len(take(everything.queue)) == 7


def checked(world: Any, name: str, at: int) -> CheckResult:
    """A check of the item at *at*, with what is recorded of it as its outcome; the item ``bad`` is sour."""
    row = world.manifest.get("1", "s", name)
    verdict, content = (CheckVerdict.FAILURE, "b" * 64) if name == "bad" else (CheckVerdict.SUCCESS, row.sha256)
    return CheckResult("1", "s", name, verdict, "B1", "kind", "", at, row.size, row.sha256, row.sha256, content)


def test_a_loop_over_many_items_that_are_good_takes_several_turns(
    world: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millstream.mill.producers.bits.LOOKED_AT", 10)
    fill(world, "1", "s", numbered(35))
    world.clock.advance(1)
    record_space(world.providers, world.manifest, "1", "s")
    world.manifest.writer.apply([checked(world, name, world.clock.now()) for name in numbered(34)])
    bits = Bits(world, tmp_path, skip=60 * 1_000_000)
    bits.run()
    assert [task.content_id for task in take(bits.queue)] == ["0034"]
    bits.run()
    assert [report.listed for report in take(bits.reports)] == [35]


def test_a_full_queue_of_checks_ends_the_run(world: Any, tmp_path: Path) -> None:
    fill(world, "1", "s", numbered(2500))
    bits = Bits(world, tmp_path, most=1000)
    names: list[str] = []
    for outcome in (LoopOutcome.QUEUE_FULL, LoopOutcome.QUEUE_FULL, LoopOutcome.WAITING):
        assert bits.run().outcome == outcome
        names += [task.content_id for task in take(bits.queue)]
    assert bits.run().outcome == LoopOutcome.DONE
    assert names == numbered(2500)
    assert [report.listed for report in take(bits.reports)] == [2500]
