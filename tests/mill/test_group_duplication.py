"""Duplication of many items at a time: it comes to what it would come to one by one, and leaves alone what is odd."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from millstream.core.clock import VirtualClock
from millstream.mill.duplication.duplicator import DuplicationProcessor
from millstream.mill.item_ref import ItemRef
from millstream.mill.task_processor import ProcessorRegistry, TaskResult
from millstream.mill.tasks import BitCheck, Duplicate, QueueName, encode_task
from millstream.mill.workers.manager import WorkerManager, WorkerSettings
from millstream.mill.workers.result_sink import ResultSink
from millstream.mill.workers.task_leaser import GROWTH, TAKE, TOGETHER
from millstream.stores import LocalStore
from millstream.stores.audit import AuditedStore, AuditOutbox
from millstream.stores.bulk import SMALL
from millstream.stores.local.bulk import LocalBulk
from millstream.stores.s3 import S3Store, parse_address
from millstream.testing.damage import flip_bit
from millstream.testing.s3 import FaultyClient, S3Server
from suite.engines import open_engine

NAMES = [
    "same",
    "unrecorded",
    "absent",
    "other bytes",
    "other properties",
    "rotten",
    "large",
    "gone",
    "lost",
    "nowhere",
]


@pytest.fixture
def world(new_world: Callable[..., Any], tmp_path: Path) -> Any:
    """A local source and an audited local copy, with an item for each state that two ends can be in."""
    return filled(new_world, tmp_path / "one")


def filled(new_world: Callable[..., Any], folder: Path) -> Any:
    folder.mkdir()
    outbox = AuditOutbox(open_engine(f"sqlite:///{folder / 'audit.db'}"), VirtualClock())
    made = new_world({"1": LocalStore(folder / "1"), "2": AuditedStore(LocalStore(folder / "2"), outbox, "2")})
    for name in NAMES[:7]:
        made.put(ItemRef("1", "s", name), name.encode(), p="1")
    made.put(ItemRef("1", "s", "large"), b"x" * (SMALL + 1), p="1")
    made.put(ItemRef("2", "s", "same"), b"same", p="1")
    made.put(ItemRef("2", "s", "unrecorded"), b"unrecorded", record=False, p="1")
    made.put(ItemRef("2", "s", "other bytes"), b"!", p="1")
    made.put(ItemRef("2", "s", "other properties"), b"other properties", p="2")
    for name in ("gone", "lost"):
        sha256 = made.put(ItemRef("2", "s", name))
        made.record(ItemRef("1", "s", name), sha256, deleted=name == "gone")
    flip_bit(made.stores["1"].path_of("s", "rotten"))
    return made


def tasks() -> list[Duplicate]:
    return [Duplicate("1", "2", "s", name) for name in NAMES]


def state(world: Any) -> Any:
    """What the copies are, and what the manifest has of them."""
    store = world.stores["2"]
    infos = [store.info("s", entry.content_id) for entry in store.entries("s")]
    rows = world.manifest.rows("2").drop_columns(["modified"]).to_pylist()
    return [(i.content_id, i.checksums, i.size, i.mimetype, i.properties) for i in infos], rows


def work(world: Any, processor: Any, **settings: Any) -> Any:
    """Let a worker manager do all tasks."""
    every = {name.value: world.queue(name.value) for name in QueueName}
    queue = every["duplication-low"]
    queue.put([encode_task(task) for task in tasks()])
    registry, sink = ProcessorRegistry({Duplicate: processor}), ResultSink(world.manifest, every)
    more = WorkerSettings(**({"threads": 2, "visibility": 60.0} | settings))
    tally = WorkerManager([queue], registry, sink, world.clock, more).run_until_drained()
    return tally, {task.body: task.cause for task in queue.dead()}


class Single:
    """A processor that is never asked for several tasks at once."""

    def __init__(self, processor: DuplicationProcessor) -> None:
        self.process = processor.process


def test_many_tasks_at_a_time_come_to_what_they_come_to_one_by_one(
    world: Any, new_world: Callable[..., Any], tmp_path: Path
) -> None:
    other = filled(new_world, tmp_path / "other")
    together = work(world, DuplicationProcessor(world.providers, world.manifest))
    alone = work(other, Single(DuplicationProcessor(other.providers, other.manifest)))
    assert together[0] == alone[0] and (together[0].done, together[0].dead) == (8, 2)
    assert list(together[1]) == list(alone[1]), "the rotten one, and the one that the source has lost"
    assert state(world) == state(other)


def test_only_plain_copies_and_what_is_in_order_are_done_together(world: Any) -> None:
    results = DuplicationProcessor(world.providers, world.manifest).process_group(tasks())
    done = {name: result for name, result in zip(NAMES, results, strict=True) if result is not None}
    rows = {name: result.summary.split()[0] for name, result in done.items()}
    assert rows == {"same": "D7", "unrecorded": "D7", "absent": "D12"}
    assert {name: len(result.events) for name, result in done.items()} == {"same": 0, "unrecorded": 1, "absent": 1}
    assert world.read(ItemRef("2", "s", "absent")) == b"absent"


def test_what_is_put_together_is_audited(world: Any) -> None:
    before = len(world.stores["2"].outbox.events())
    DuplicationProcessor(world.providers, world.manifest).process_group(tasks())
    (event,) = world.stores["2"].outbox.events()[before:]
    assert (event.action.value, event.content_id, event.size) == ("ADD_CONTENT", "absent", 6)


def test_an_item_that_is_deleted_while_its_group_is_copied_is_deleted_after_that(
    new_world: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = new_world({"1": LocalStore(tmp_path / "1"), "2": LocalStore(tmp_path / "2")})
    for name in ("a", "b"):
        made.put(ItemRef("1", "s", name), name.encode())
    made.clock.advance(1)
    put = LocalBulk.put

    def slowly(bulk: LocalBulk, space: str, items: Any) -> Any:
        stored = put(bulk, space, items)
        made.clock.advance(1)
        made.stores["1"].delete("s", "a")
        made.record(ItemRef("1", "s", "a"), None, deleted=True)
        made.clock.advance(1)
        return stored

    processor = DuplicationProcessor(made.providers, made.manifest)
    group = [Duplicate("1", "2", "s", name) for name in ("a", "b")]
    with monkeypatch.context() as patch:
        patch.setattr(LocalBulk, "put", slowly)
        results = processor.process_group(group)
    made.manifest.writer.record([event for result in results if result is not None for event in result.events])
    made.clock.advance(1)
    assert made.has(ItemRef("2", "s", "a"))
    assert processor.process(group[0], 1).summary.startswith("D19")
    assert not made.has(ItemRef("2", "s", "a")) and made.has(ItemRef("2", "s", "b"))


def test_the_space_of_a_first_copy_is_made_for_all_of_them(new_world: Callable[..., Any], tmp_path: Path) -> None:
    made = new_world({"1": LocalStore(tmp_path / "1"), "2": LocalStore(tmp_path / "2")})
    names = [f"{n}" for n in range(30)]
    for name in names:
        made.put(ItemRef("1", "s", name), name.encode(), p="1")
    group = [Duplicate("1", "2", "s", name) for name in names]
    processor = DuplicationProcessor(made.providers, made.manifest)
    gone = [Duplicate("1", "2", "gone", name) for name in names]
    assert processor.process_group(gone) == [None] * 30 and not made.stores["2"].has_space("gone")
    results = processor.process_group(group)
    assert [result.summary.split()[0] for result in results if result] == ["D12"] * 30
    assert [made.read(ItemRef("2", "s", name)) for name in names] == [name.encode() for name in names]


def test_only_so_many_bytes_are_held_in_memory(new_world: Callable[..., Any], tmp_path: Path) -> None:
    made = new_world({"1": LocalStore(tmp_path / "1"), "2": LocalStore(tmp_path / "2")})
    put: list[list[str]] = []
    bulk = made.stores["2"].bulk

    class Watched:
        infos, read = bulk.infos, bulk.read

        def put(self, space: str, items: Any) -> Any:
            put.append([item.content_id for item in items])
            return bulk.put(space, items)

    made.stores["2"].bulk = Watched()
    for number in range(30):
        made.put(ItemRef("1", "s", f"{number:02}"), bytes([number]) * SMALL)
    processor = DuplicationProcessor(made.providers, made.manifest)
    results = processor.process_group([Duplicate("1", "2", "s", f"{number:02}") for number in range(30)])
    assert all(results) and [len(some) for some in put] == [8, 8, 8, 6]
    assert made.read(ItemRef("2", "s", "29")) == bytes([29]) * SMALL


def test_a_copy_between_buckets_takes_a_get_and_a_put(
    moto: S3Server, new_world: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = Counter[str]()

    def store() -> S3Store:
        client = FaultyClient(moto.client, lambda name, when: sent.update([name] if when == "before" else []))
        return S3Store(parse_address(moto.new_url()), client=client)  # type: ignore[arg-type]

    made = new_world({"1": store(), "2": store()})
    names = [f"{n:02}" for n in range(20)]
    for name in names:
        made.put(ItemRef("1", "s", name), name.encode() * 10, p=name)
    made.put(ItemRef("1", "s", "larger"), b"larger than recorded", record=False)
    made.record(ItemRef("1", "s", "larger"), "0" * 64, size=3)
    made.put(ItemRef("1", "s", "unrecorded"), b"unrecorded", record=False)
    monkeypatch.setattr("millstream.mill.duplication.bulk.HELD", 100)
    sent.clear()
    group = [Duplicate("1", "2", "s", name) for name in (*names, "larger", "unrecorded")]
    results = DuplicationProcessor(made.providers, made.manifest).process_group(group)
    asked = (sent["get_object"], sent["put_object"], sent["head_object"])
    assert asked == (22, 21 + 1, 4 + 1), "a PUT and four HEADs for the space, a HEAD for the item without a row"
    assert [result.summary.split()[0] if result else None for result in results] == ["D12"] * 20 + [None, "D12"]
    assert [made.read(ItemRef("2", "s", name)) for name in names] == [name.encode() * 10 for name in names]
    assert made.stores["2"].info("s", "07").properties == {"p": "07"}


def test_stores_without_a_way_for_many_items_get_them_one_by_one(new_world: Callable[..., Any]) -> None:
    world = new_world()
    for name in NAMES:
        world.put(ItemRef("1", "s", name))
    processor = DuplicationProcessor(world.providers, world.manifest)
    assert processor.process_group(tasks()) == [None] * len(NAMES)
    assert processor.process_group([Duplicate("1", "9", "s", "a"), Duplicate("1", "2", "s")]) == [None, None]
    tally, _ = work(world, processor)
    assert (tally.done, tally.dead) == (len(NAMES), 0)


class Grouping:
    """Does at once what *together* names, and raises where it is told to; what came alone is remembered."""

    def __init__(self, *together: str, error: Exception | None = None) -> None:
        self._together, self._error = together, error
        self.groups: list[list[str]] = []
        self.alone: list[str] = []

    def process(self, task: Any, attempt: int) -> TaskResult:
        self.alone.append(task.content_id)
        if task.content_id == "bad" and attempt == 1:
            raise ValueError("not at first")
        return TaskResult("done")

    def process_group(self, tasks: Any) -> Any:
        self.groups.append([task.content_id for task in tasks])
        if self._error:
            raise self._error
        return [TaskResult("done") if task.content_id in self._together else None for task in tasks]


def manage(world: Any, processor: Any, names: list[str], **more: Any) -> Any:
    every = {name.value: world.queue(name.value) for name in QueueName}
    queue = world.queue("low")
    queue.put([encode_task(BitCheck("1", "s", name)) for name in names])
    registry, sink = ProcessorRegistry({BitCheck: processor}), ResultSink(world.manifest, every)
    settings = WorkerSettings(**({"threads": 1, "visibility": 60.0} | more))
    return WorkerManager([queue], registry, sink, world.clock, settings).run_until_drained()


def test_groups_grow_while_all_of_them_is_done_together(new_world: Callable[..., Any]) -> None:
    world, names = new_world(), [f"{n:04}" for n in range(2000)]
    processor = Grouping(*names)
    assert manage(world, processor, names).done == 2000
    assert [len(group) for group in processor.groups] == [TAKE, 40, 160, TOGETHER, TOGETHER, 510]
    assert TAKE * GROWTH == 40
    assert (sorted(chain.from_iterable(processor.groups)), processor.alone) == (names, [])


def test_where_there_are_odd_ones_a_worker_gets_ten_tasks_together(new_world: Callable[..., Any]) -> None:
    world, names = new_world(), [f"{n:03}" for n in range(80)]
    processor = Grouping(*(name for name in names if not name.endswith("4")))
    assert manage(world, processor, names).done == 80
    assert [len(group) for group in processor.groups] == [TAKE] * 8
    assert processor.alone == [name for name in names if name.endswith("4")]


def test_tasks_that_come_one_by_one_are_taken_ten_at_a_time_at_most(new_world: Callable[..., Any]) -> None:
    world, names = new_world(), [f"{n:02}" for n in range(60)]
    held: list[int] = []

    class Alone(Grouping):
        def process(self, task: Any, attempt: int) -> TaskResult:
            held.append(world.queue("low").depth().leased)
            return super().process(task, attempt)

    assert manage(world, Alone(), names).done == 60
    assert max(held) <= 10 + WorkerSettings().group


def test_a_lone_task_and_one_that_failed_before_are_not_done_together(new_world: Callable[..., Any]) -> None:
    processor = Grouping("a")
    tally = manage(new_world(), processor, ["bad", "a"])
    assert (tally.done, tally.failed) == (2, 1)
    assert processor.groups == [["bad", "a"]] and processor.alone == ["bad", "bad"]


def test_an_error_of_a_group_is_none_of_its_tasks(new_world: Callable[..., Any]) -> None:
    processor = Grouping("a", "b", error=OSError("the disk is away"))
    tally = manage(new_world(), processor, ["a", "b"])
    assert (tally.done, tally.failed) == (2, 0)
    assert sorted(processor.alone) == ["a", "b"]
