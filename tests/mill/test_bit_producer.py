"""The looping bit producer: every item of every space, and a report when the checks of a space have ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mill_looping import Bits, fill, numbered, take

from millstream.mill.looping.loop import MOST_FAILURES, Outcome
from millstream.mill.manifest import Event
from millstream.mill.tasks import BitCheck, BitReport, decode_task
from millstream.testing.faulty_store import UnavailableStore


def test_a_space_is_reported_when_its_own_checks_have_ended(world: Any, tmp_path: Path) -> None:
    fill(world, "1", "a", numbered(1100))
    fill(world, "1", "b", ["x"])
    bits = Bits(world, tmp_path)
    started = world.clock.now()
    run = bits.run()
    assert (run.outcome, run.tasks, run.left) == (Outcome.WAITING, 1101, 2)
    assert bits.run().tasks == 0
    leases = bits.queue.lease(10**6, visibility=600)
    spaces = {lease.task_id: decode_task(lease.body).space for lease in leases}  # type: ignore[union-attr]
    bits.queue.ack([lease for lease in leases if spaces[lease.task_id] == "a"])
    run = bits.run()
    assert (run.outcome, run.tasks, run.left) == (Outcome.WAITING, 1, 1)
    assert take(bits.reports) == [BitReport("1", "a", started, 1100)]
    bits.queue.dead_letter(next(lease for lease in leases if spaces[lease.task_id] == "b"), cause="poison")
    run = bits.run()
    assert (run.outcome, run.tasks, run.left) == (Outcome.DONE, 1, 0)
    assert take(bits.reports) == [BitReport("1", "b", started, 1)]


def test_what_only_the_manifest_knows_is_checked_and_system_spaces_are_not(world: Any, tmp_path: Path) -> None:
    fill(world, "1", "s", ["listed"])
    fill(world, "1", "x-quarantine", ["bad"])
    world.manifest.writer.record([Event("1", "s", "lost", 1, "a" * 64), Event("2", "t", "all lost", 1, "a" * 64)])
    bits = Bits(world, tmp_path)
    bits.run()
    assert take(bits.queue) == [
        BitCheck("1", "s", "listed"), BitCheck("1", "s", "lost"), BitCheck("2", "t", "all lost")
    ]  # fmt: skip


def test_an_empty_space_is_reported_without_a_check(world: Any, tmp_path: Path) -> None:
    world.stores["1"].create_space("s")
    bits = Bits(world, tmp_path)
    assert (bits.run().outcome, take(bits.queue)) == (Outcome.DONE, [])
    assert [(report.space, report.listed) for report in take(bits.reports)] == [("s", 0)]


def test_p9_a_listing_that_breaks_off_ends_in_a_report_that_says_so(world: Any, tmp_path: Path) -> None:
    fill(world, "1", "s", ["a"])
    world.stores["1"] = UnavailableStore(world.stores["1"], when=lambda call: call.method == "entries")
    bits = Bits(world, tmp_path)
    outcomes = [bits.run().outcome for _ in range(MOST_FAILURES)]
    assert outcomes == [Outcome.FAILED, Outcome.FAILED, Outcome.DONE]
    (report,) = take(bits.reports)
    assert report.note.startswith("the listing broke off: ")


def test_a_full_queue_of_checks_ends_the_run(world: Any, tmp_path: Path) -> None:
    fill(world, "1", "s", numbered(2500))
    bits = Bits(world, tmp_path, most=1000)
    names: list[str] = []
    for outcome in (Outcome.QUEUE_FULL, Outcome.QUEUE_FULL, Outcome.WAITING):
        assert bits.run().outcome == outcome
        names += [task.content_id for task in take(bits.queue)]
    assert bits.run().outcome == Outcome.DONE
    assert names == numbered(2500)
    assert [report.listed for report in take(bits.reports)] == [2500]
