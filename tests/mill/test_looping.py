"""The looping duplication producer: nothing is left out, nothing is put too early."""

from __future__ import annotations

import io
import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from mill_looping import MONTH, TO_2, TO_3, Producer, fill, numbered, one_policy, stale

from millstream.mill.duplication.change_guard import ChangeGuard
from millstream.mill.duplication.duplicator import DuplicationProcessor
from millstream.mill.duplication.planning import GROUP
from millstream.mill.errors import ProducerBusyError, ProducerStateError
from millstream.mill.policies.policy import Pair, Policy
from millstream.mill.producers.duplication import DuplicationMorsel
from millstream.mill.producers.producer_loop import MOST_FAILURES, PATIENCE, LoopOutcome
from millstream.mill.producers.state import LoopState, Start, decide_start
from millstream.mill.task_processor import ProcessorRegistry
from millstream.mill.tasks import Duplicate
from millstream.mill.workers.manager import WorkerManager
from millstream.mill.workers.result_sink import ResultSink
from millstream.testing.faulty_store import UnavailableStore


@pytest.mark.parametrize(
    ("under_way", "next_at", "frequency", "start"),
    [
        (False, None, MONTH, Start.BEGIN),
        (False, None, 0, Start.OFF),
        (False, 99, MONTH, Start.BEGIN),
        (False, 100, MONTH, Start.BEGIN),
        (False, 101, MONTH, Start.NOT_DUE),
        (False, 99, 0, Start.OFF),
        (False, 101, 0, Start.OFF),
        (True, None, MONTH, Start.GO_ON),
        (True, None, 0, Start.GO_ON),
        (True, 101, MONTH, Start.GO_ON),
    ],
)
def test_a_loop_begins_when_it_is_due_and_one_under_way_is_always_gone_on_with(
    under_way: bool, next_at: int | None, frequency: int, start: Start
) -> None:
    state = LoopState[DuplicationMorsel]([], 50 if under_way else None, next_at)
    assert decide_start(state, 100, frequency) == start


def test_a_loop_puts_every_item_and_every_recorded_delete_on_the_queue_once(world: Any, tmp_path: Path) -> None:
    for space in ("a", "b"):
        fill(world, "1", space, numbered(2000))
        stale(world, space, 100)
    producer = Producer(world, tmp_path, one_policy())
    run = producer.run()
    assert (run.outcome, run.tasks, run.left) == (LoopOutcome.DONE, 4200, 0)
    tasks = Counter((task.space, task.content_id) for task in producer.taken())
    assert (len(tasks), set(tasks.values())) == (4200, {1})


def test_deletes_come_first_and_then_a_thousand_copies_of_each_policy_in_turn(world: Any, tmp_path: Path) -> None:
    fill(world, "1", "s", numbered(2500))
    for store in ("2", "3"):
        stale(world, "s", 10, store)
    producer = Producer(world, tmp_path, one_policy(TO_2, TO_3))
    producer.run()
    tasks = producer.taken()
    kinds = [(task.destination, "delete" if task.content_id.startswith("stale") else "copy") for task in tasks]
    assert [(kind, len(list(group))) for kind, group in itertools.groupby(kinds)] == [
        (("2", "delete"), 10), (("2", "copy"), 1000), (("3", "delete"), 10), (("3", "copy"), 1000),
        (("2", "copy"), 1000), (("3", "copy"), 1000), (("2", "copy"), 500), (("3", "copy"), 500),
    ]  # fmt: skip


def test_no_account_has_to_wait_for_a_large_space_of_another(world: Any, tmp_path: Path) -> None:
    fill(world, "1", "huge", numbered(2500))
    fill(world, "1", "small", ["x"])
    for space in ("huge", "small"):
        fill(world, "2", space, [])
    policies = {"a": Policy("a", {"huge": (TO_2,)}), "b": Policy("b", {"small": (TO_2,)})}
    producer = Producer(world, tmp_path, policies, most=GROUP + 1)
    assert producer.run().outcome == LoopOutcome.QUEUE_FULL
    assert Counter(task.space for task in producer.taken()) == {"huge": GROUP, "small": 1}


@pytest.mark.parametrize("deletes", [0, 100])
def test_a_full_queue_ends_the_run_and_the_next_one_goes_on_behind_it(world: Any, tmp_path: Path, deletes: int) -> None:
    fill(world, "1", "s", numbered(1500))
    gone = stale(world, "s", deletes)
    producer = Producer(world, tmp_path, one_policy(), most=1000)
    first = producer.run()
    assert (first.outcome, first.left) == (LoopOutcome.QUEUE_FULL, 1)
    assert producer.run().tasks == 0
    tasks = producer.taken()
    assert len(tasks) == 1000 + deletes
    last = producer.run()
    assert (last.outcome, last.tasks, last.left) == (LoopOutcome.DONE, 500, 0)
    assert sorted(task.content_id for task in tasks + producer.taken()) == sorted(numbered(1500) + gone)


def test_the_next_loop_is_due_a_frequency_after_the_start_of_the_last(world: Any, tmp_path: Path) -> None:
    fill(world, "1", "s", ["a"])
    producer = Producer(world, tmp_path, one_policy())
    started = world.clock.now()
    assert producer.run().next_at == started + MONTH
    world.clock.advance(MONTH / 1_000_000 - 1)
    run = producer.run()
    assert (run.outcome, run.tasks, run.next_at) == (LoopOutcome.NOT_DUE, 0, started + MONTH)
    world.clock.advance(2)
    assert producer.run().outcome == LoopOutcome.DONE
    assert len(producer.taken()) == 4  # the item, and the space that the destination has not got, twice


def test_a_frequency_of_nothing_begins_no_loop(world: Any, tmp_path: Path) -> None:
    fill(world, "1", "s", ["a"])
    producer = Producer(world, tmp_path, one_policy(), frequency=0)
    run = producer.run()
    assert (run.outcome, run.next_at, producer.taken()) == (LoopOutcome.NOT_DUE, None, [])


def test_a_space_that_left_the_source_gets_one_task_of_its_own(world: Any, tmp_path: Path) -> None:
    fill(world, "2", "s", ["kept"])
    producer = Producer(world, tmp_path, one_policy())
    assert producer.run().tasks == 1
    assert producer.taken() == [Duplicate("1", "2", "s")]
    assert [plan.held for plan in producer.producer.held] == [1]


def test_with_only_differences_a_loop_without_changes_puts_nothing_on_the_queue(world: Any, tmp_path: Path) -> None:
    fill(world, "1", "s", numbered(1200))
    producer = Producer(world, tmp_path, one_policy(), frequency=1, only_differences=True)
    assert producer.run().tasks == 1201
    registry = ProcessorRegistry({Duplicate: DuplicationProcessor(world.providers, world.manifest)})
    WorkerManager([producer.queue], registry, ResultSink(world.manifest, {}), world.clock).run_until_drained()
    world.clock.advance(5)
    assert producer.run().tasks == 0
    fill(world, "1", "s", ["0700"])
    world.clock.advance(5)
    producer.run()
    assert [task.content_id for task in producer.taken()] == []  # the same bytes again
    world.stores["1"].put("s", "0700", io.BytesIO(b"other bytes"))
    world.clock.advance(5)
    producer.run()
    assert [task.content_id for task in producer.taken()] == ["0700"]


def test_p8_a_space_that_the_change_guard_holds_is_left_out_and_the_others_are_not(world: Any, tmp_path: Path) -> None:
    fill(world, "1", "good", ["a"])
    fill(world, "2", "emptied", numbered(200))
    world.stores["1"].create_space("emptied")
    change_guard = ChangeGuard(world.engine, world.clock, world.manifest.count)
    producer = Producer(world, tmp_path, one_policy(), frequency=1, change_guard=change_guard)
    assert producer.run().outcome == LoopOutcome.DONE
    assert {task.space for task in producer.taken()} == {"good"}
    (held,) = producer.producer.held
    assert (held.space, held.held) == ("emptied", 200)
    assert "the source lists nothing" in change_guard.pending()[0].reason
    change_guard.approve([held.hold or 0])
    world.clock.advance(1)
    producer.run()
    assert producer.producer.held[0].hold is None


def test_a_pair_of_a_store_that_is_not_configured_is_skipped_and_told(world: Any, tmp_path: Path) -> None:
    fill(world, "1", "s", ["a"])
    producer = Producer(world, tmp_path, one_policy(Pair("1", "9"), TO_2))
    assert producer.run().outcome == LoopOutcome.DONE
    assert producer.producer.skipped == [Pair("1", "9")]
    assert {task.destination for task in producer.taken()} == {"2"}


def test_a_space_that_cannot_be_listed_holds_no_other_up_and_is_given_up_after_three_runs_and_a_day(
    world: Any, tmp_path: Path
) -> None:
    for space in ("bad", "good"):
        fill(world, "1", space, ["a"])
        fill(world, "2", space, [])
    broken = lambda call: (call.method, call.space) == ("entries", "bad")  # noqa: E731
    world.stores["1"] = UnavailableStore(world.stores["1"], when=broken)
    producer = Producer(world, tmp_path, one_policy())
    for _ in range(MOST_FAILURES - 1):
        run = producer.run()
        assert (run.outcome, run.left, len(run.failures)) == (LoopOutcome.FAILED, 1, 1)
    assert [task.space for task in producer.taken()] == ["good"]
    assert producer.run().outcome == LoopOutcome.FAILED
    world.clock.advance(PATIENCE / 1_000_000)
    run = producer.run()
    assert (run.outcome, run.left, run.failures[0].what) == (LoopOutcome.DONE, 0, "bad 1 → 2 of me")


def test_two_producers_never_work_on_one_state(world: Any, tmp_path: Path) -> None:
    producer = Producer(world, tmp_path, one_policy())
    with producer.file.alone(), pytest.raises(ProducerBusyError, match=r"duplication\.json"):
        producer.run()
    assert producer.run().outcome == LoopOutcome.DONE


@pytest.mark.parametrize("content", [b"", b"{", b'{"morsels":[{"space":1}]}', b'{"morsels":7}'])
def test_a_damaged_state_is_an_error_that_names_the_file(world: Any, tmp_path: Path, content: bytes) -> None:
    producer = Producer(world, tmp_path, one_policy())
    producer.run()
    (tmp_path / "state" / "duplication.json").write_bytes(content)
    with pytest.raises(ProducerStateError, match=r"duplication\.json is not a valid state of a producer"):
        producer.run()
