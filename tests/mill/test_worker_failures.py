"""Tasks that fail: attempts, waits, and dead letters with their cause."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import Any, BinaryIO

import pytest
from mill_workers import Scripted, fails, manager, task

from millstream.core.clock import MICROSECONDS, VirtualClock
from millstream.mill.duplication.duplicator import DuplicationProcessor
from millstream.mill.errors import (
    ChangePendingError,
    NoAnswerError,
    PoliciesUnavailableError,
    UnknownStoreError,
    UnresolvedError,
)
from millstream.mill.integrity.check_processor import BitCheckProcessor
from millstream.mill.integrity.checker import BitChecker
from millstream.mill.item_ref import ItemRef
from millstream.mill.task_processor import TaskResult
from millstream.mill.tasks import BitError, Duplicate, decode_task, encode_task
from millstream.mill.workers.manager import MOST_LEASES
from millstream.mill.workers.task_settler import FAILURES
from millstream.node.members.members_status import Member, MemberDetails, MembersStatus
from millstream.node.members.other_workers import LEFT_SECONDS, OtherWorkers
from millstream.stores import (
    ContentIdTooLongError,
    ContentTooLargeError,
    ItemInfo,
    MemoryStore,
    StoreInputError,
)


def test_p6_a_task_that_fails_three_times_is_dead_with_the_error_as_its_cause(world: Any) -> None:
    world.queue("low").put([task("bad"), task("good")])
    processor = Scripted(lambda name, attempt: fails(name, attempt) if name == "bad" else None)
    tally = manager(world, processor).run_until_drained()
    assert processor.done == [("bad", 1), ("good", 1), ("bad", 2), ("bad", 3)]
    assert (tally.done, tally.failed, tally.dead) == (1, FAILURES - 1, 1)
    (dead,) = world.queue("low").dead()
    assert (dead.body, dead.cause) == (task("bad"), "ValueError: it never works")


@pytest.mark.parametrize(
    "body",
    [b"", b"not json", b'{"type":"unknown"}', b'{"type":"duplicate"}', b'{"x":' + b"[" * 60_000, b"[" * 70_000],
)
def test_p6_a_task_that_cannot_be_read_is_dead_with_the_reason(world: Any, body: bytes) -> None:
    world.queue("low").put([body])
    manager(world, Scripted()).run_until_drained()
    cause = world.queue("low").dead()[0].cause
    assert ("TaskError" in cause, len(body) > 1000 or "`millstream queue amend`" in cause) == (True, True)


def test_d24_a_task_that_no_processor_takes_is_dead_with_the_reason(world: Any) -> None:
    world.queue("low").put([encode_task(Duplicate("1", "2", "s", "c"))])
    manager(world, Scripted()).run_until_drained()
    assert "no processor is registered for tasks of kind 'Duplicate'" in world.queue("low").dead()[0].cause


def test_a_task_that_fails_for_a_transient_reason_waits_longer_each_time(world: Any) -> None:
    def no_answer(_name: str, _attempt: int) -> TaskResult | None:
        started.append(world.clock.monotonic())
        raise NoAnswerError

    started: list[float] = []
    world.queue("low").put([task("c")])
    tally = manager(world, Scripted(no_answer), transient_first=10.0).run_until_drained()
    first, second, third = started
    assert (10 <= second - first < 12, 60 <= third - second < 62) == (True, True)
    assert (tally.failed, tally.dead) == (2, 1)


@pytest.mark.parametrize("error", [ChangePendingError, PoliciesUnavailableError])
def test_a_task_waits_for_the_end_of_a_change_or_for_policies_as_long_as_that_takes(
    world: Any, error: type[Exception]
) -> None:
    def pending(_name: str, attempt: int) -> TaskResult | None:
        started.append(attempt)
        if len(started) <= 2 * MOST_LEASES:
            raise error
        workers.stop()
        return None

    started: list[int] = []
    world.queue("low").put([task("c")])
    workers = manager(world, Scripted(pending), transient_first=0.0)
    tally = workers.run()
    assert (tally.done, tally.failed, tally.dead, set(started)) == (1, 0, 0, {1})


def test_without_other_work_a_change_that_does_not_end_is_told(world: Any) -> None:
    def pending(_name: str, _attempt: int) -> TaskResult | None:
        raise ChangePendingError("a change has started")

    world.queue("low").put([task("c")])
    manager(world, Scripted(pending)).run_until_drained()
    assert world.queue("low").dead()[0].cause == "ChangePendingError: a change has started"


def test_a_redriven_task_gets_its_attempts_anew(world: Any) -> None:
    broken = [True]
    processor = Scripted(lambda name, attempt: fails(name, attempt) if broken[0] else None)
    world.queue("low").put([task("c")])
    manager(world, processor).run_until_drained()
    broken[0] = False
    world.queue("low").redrive()
    assert manager(world, processor).run_until_drained().done == 1
    assert processor.done[-1] == ("c", 1)


def test_a_task_leased_again_and_again_without_an_end_is_set_aside_unread(world: Any) -> None:
    world.queue("low").put([task("c")])
    for _ in range(MOST_LEASES):
        world.queue("low").lease(1, visibility=1)
        world.clock.advance(2)
    processor = Scripted()
    manager(world, processor).run_until_drained()
    assert processor.done == []
    assert "crashes its workers" in world.queue("low").dead()[0].cause


def test_a_task_that_asks_to_be_done_again_waits_on_the_queue_and_not_in_a_thread(world: Any) -> None:
    start = world.clock.monotonic()
    world.queue("low").put([task("later"), task("now")])
    processor = Scripted(
        lambda name, attempt: TaskResult("wait", again=300.0) if (name, attempt) == ("later", 1) else None
    )
    tally = manager(world, processor).run_until_drained()
    assert processor.done == [("later", 1), ("now", 1), ("later", 2)]
    assert (tally.done, tally.waiting) == (2, 1)
    assert world.clock.monotonic() - start >= 300


def test_a_bit_check_that_is_not_settled_is_tried_three_times_with_a_wait_before_the_last(world: Any) -> None:
    world.stores["1"].create_space("s")
    world.record(ItemRef("1", "s", "c"), "a" * 64)
    world.queue("bit-integrity").put([task("c")])
    start = world.clock.monotonic()
    processor = BitCheckProcessor(BitChecker(world.providers, world.manifest))
    tally = manager(world, processor, "bit-integrity").run_until_drained()
    assert (tally.done, tally.waiting, tally.dead) == (1, 2, 0)
    assert world.clock.monotonic() - start >= 300
    assert world.manifest.get("1", "s", "c").outcome == "FAILURE"
    (error,) = world.queue("bit-error").lease(10, visibility=60)
    assert decode_task(error.body).row == "B18"  # type: ignore[union-attr]


def test_a_finding_that_is_a_dead_letter_does_not_become_another_one(world: Any) -> None:
    def find(name: str, _attempt: int) -> TaskResult | None:
        raise UnresolvedError(f"{name}: all copies differ")

    queue = world.queue("bit-error")
    finding, other = (encode_task(BitError("1", "s", "c", row, "differs")) for row in ("B3", "B10"))
    workers = manager(world, Scripted(find), "bit-error", kind=BitError)
    for times in (1, 2):  # a check that finds it each time
        queue.put([finding])
        assert workers.run_until_drained().dead == times
    (dead,) = queue.dead()
    queue.put([finding, other])
    manager(world, Scripted(find), "bit-error", kind=BitError).run_until_drained()  # in another process
    assert [one.body for one in queue.dead()] == [finding, other]
    assert queue.depth().open == 0
    assert queue.discard([dead.task_id]) == 1
    queue.put([finding])
    workers.run_until_drained()
    assert [one.body for one in queue.dead()] == [other, finding]


def test_a_task_that_needs_a_store_of_another_member_is_left_to_it_and_is_not_tried(world: Any) -> None:
    def look(name: str, attempt: int) -> TaskResult | None:
        if attempt == 1 and len(processor.done) <= 2 * MOST_LEASES:
            raise UnknownStoreError(f"unknown store {name!r}", name)
        workers.stop()
        return None

    asked: list[tuple[str, AbstractSet[str]]] = []

    def others_can_do(queue: str, stores: AbstractSet[str]) -> bool:
        asked.append((queue, stores))
        return True

    world.queue("low").put([encode_task(Duplicate("1", "2", "s", "elsewhere"))])
    processor = Scripted(look)
    workers = manager(world, processor, kind=Duplicate, others_can_do=others_can_do, transient_first=0.0)
    tally = workers.run()
    assert (tally.done, tally.waiting, tally.failed, tally.dead) == (1, 2 * MOST_LEASES, 0, 0)
    assert asked == [("low", {"1", "2", "elsewhere"})] * 2 * MOST_LEASES, "all stores that the task names"


def test_a_task_is_tried_where_members_lack_its_store_for_longer_than_a_change_of_settings(world: Any) -> None:
    laps = 12

    def look(name: str, attempt: int) -> TaskResult | None:
        world.clock.advance(LEFT_SECONDS / laps)
        if attempt == FAILURES or len(processor.done) > 2 * laps:
            workers.stop()
        raise UnknownStoreError(f"unknown store {name!r}", name)

    world.queue("low").put([task("elsewhere")])
    processor, others_can_do = Scripted(look), OtherWorkers(lambda: members(world.clock), world.clock).can_do
    workers = manager(world, processor, others_can_do=others_can_do, transient_first=0.0, visibility=600.0)
    tally = workers.run()
    assert (tally.waiting, tally.failed, tally.dead) == (laps, FAILURES - 1, 1)
    assert world.queue("low").dead()[0].cause == "UnknownStoreError: unknown store 'elsewhere'"


def members(clock: VirtualClock, since: float = 0.0) -> MembersStatus:
    """A member that has been able to do tasks of the store `elsewhere` *since* then (seconds)."""
    details = MemberDetails(host="other", pid=1, version="1", stores=["1", "elsewhere"], queues=["low"])
    joined, now = round(since * MICROSECONDS), round(clock.monotonic() * MICROSECONDS)
    other = Member(id="b", since=joined, seen=now, until=now + 1, ended=None, draining=False, details=details)
    return MembersStatus(at=now, lease=1, members=[other], unowned=())


def test_a_store_that_comes_back_is_left_to_other_members_anew() -> None:
    clock, since = VirtualClock(), list[float]()
    nobody = MembersStatus(at=0, lease=1, members=[], unowned=())
    others = OtherWorkers(lambda: members(clock, since[-1]) if since else nobody, clock)

    def can_do() -> bool:
        clock.advance(6)
        return others.can_do("low", {"elsewhere"})

    assert not can_do()
    since.append(clock.monotonic())
    assert can_do()
    clock.advance(LEFT_SECONDS)
    assert not can_do()
    since.clear()  # the settings were changed back
    assert not can_do()
    since.append(clock.monotonic())
    assert can_do(), "another change of settings, days later"
    clock.advance(LEFT_SECONDS)
    assert not can_do()


def test_commands_that_drain_a_queue_do_not_wait_for_other_members(world: Any) -> None:
    def look(name: str, _attempt: int) -> TaskResult | None:
        assert len(processor.done) <= FAILURES
        raise UnknownStoreError(f"unknown store {name!r}", name)

    world.queue("low").put([task("elsewhere")])
    processor = Scripted(look)
    tally = manager(world, processor, others_can_do=lambda _queue, _stores: True).run_until_drained()
    assert (tally.waiting, tally.failed, tally.dead) == (0, FAILURES - 1, 1)


def test_a_task_that_needs_a_store_that_nobody_has_is_dead_with_the_reason(world: Any) -> None:
    def look(name: str, _attempt: int) -> TaskResult | None:
        raise UnknownStoreError(f"unknown store {name!r}", name)

    world.queue("low").put([task("nowhere")])
    manager(world, Scripted(look)).run_until_drained()
    assert world.queue("low").dead()[0].cause == "UnknownStoreError: unknown store 'nowhere'"


class _Refusing(MemoryStore):
    """A store that keeps no long ids, no large content, and no odd types."""

    def info(self, space: str, content_id: str) -> ItemInfo:
        if len(content_id) > 10:
            raise ContentIdTooLongError("the content id has 11 bytes, and this store keeps 10")
        return super().info(space, content_id)

    def put(self, space: str, content_id: str, source: BinaryIO, **more: Any) -> ItemInfo:
        if content_id == "large":
            raise ContentTooLargeError("it has 5 bytes, and this store keeps 4")
        if content_id == "odd type":
            raise StoreInputError("invalid mimetype 'odd'")
        return super().put(space, content_id, source, **more)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("much too long", "ContentIdTooLongError: the content id has 11 bytes, and this store keeps 10"),
        ("large", "ContentTooLargeError: it has 5 bytes, and this store keeps 4"),
        ("odd type", "StoreInputError: invalid mimetype 'odd'"),
        ("no space", "StoreInputError: invalid space name "),
    ],
)
def test_a_task_that_never_can_succeed_is_dead_at_once_with_the_reason(world: Any, name: str, reason: str) -> None:
    space = "a/b" if name == "no space" else "s"
    world.stores["2"] = _Refusing()
    world.stores["2"].create_space("s")
    world.put(ItemRef("1", "s", name))
    world.queue("low").put([encode_task(Duplicate("1", "2", space, name))])
    processor = DuplicationProcessor(world.providers, world.manifest)
    tally = manager(world, processor, kind=Duplicate).run_until_drained()
    assert (tally.failed, tally.dead) == (0, 1)
    (dead,) = world.queue("low").dead()
    assert dead.cause.startswith(reason) and dead.attempts == 1


def test_an_item_whose_id_is_too_long_for_a_store_is_missing_there(world: Any) -> None:
    world.stores["2"] = _Refusing()
    world.record(ItemRef("2", "s", "much too long"), "a" * 64)
    checked = BitChecker(world.providers, world.manifest).check(ItemRef("2", "s", "much too long"))
    assert checked.outcome.row == "B18"
