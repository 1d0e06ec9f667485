"""The looping producers: nothing is left out, nothing is put too early, and a kill costs at most a bite twice."""

from __future__ import annotations

import io
import itertools
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millstream.core.clock import SystemClock
from millstream.log import LogSpec, open_store
from millstream.mill.brake import Brake
from millstream.mill.duplicator import DuplicationProcessor
from millstream.mill.errors import FilterError, ProducerBusyError, ProducerStateError
from millstream.mill.looping.bits import BitMorsel, BitNibbler
from millstream.mill.looping.duplication import DuplicationMorsel, DuplicationNibbler
from millstream.mill.looping.loop import MOST_FAILURES, Loop, Outcome
from millstream.mill.looping.space_filter import SpaceFilter, read_patterns
from millstream.mill.looping.state import LoopState, Start, StateFile, decide_start
from millstream.mill.manifest import Event
from millstream.mill.policy import Pair, Policy
from millstream.mill.policy_repository import Policies
from millstream.mill.processor import Registry, Sink
from millstream.mill.producer import GROUP
from millstream.mill.tasks import BitCheck, BitReport, Duplicate, decode_task
from millstream.mill.workers import WorkerManager
from millstream.queue import LogWorkQueue
from millstream.stores import LocalStore
from millstream.testing.faulty_store import UnavailableStore

MONTH = 30 * 24 * 3600 * 1_000_000
TO_2, TO_3 = Pair("1", "2"), Pair("1", "3")


class Producer:
    """A duplication producer on a world's queue, made anew for each run as cron does."""

    def __init__(self, world: Any, folder: Path, policies: dict[str, Policy], **more: Any) -> None:
        self.world, self.queue, self.policies = world, world.queue(), Policies(policies)
        self.file = StateFile(folder / "state" / "duplication.json", DuplicationMorsel)
        self.most: int = more.pop("most", 10**6)
        self.frequency: int = more.pop("frequency", MONTH)
        self.more = more
        self.nibbler: DuplicationNibbler

    def run(self) -> Any:
        world = self.world
        self.nibbler = DuplicationNibbler(
            lambda: self.policies, world.providers, world.manifest, self.queue, **self.more
        )
        limits = {"frequency": self.frequency, "most": self.most}
        return Loop(self.file, self.nibbler, self.queue, world.clock, **limits).run()

    def taken(self) -> list[Duplicate]:
        """What is on the queue, taken off it."""
        return [task for task in take(self.queue) if isinstance(task, Duplicate)]


def take(queue: LogWorkQueue) -> list[Any]:
    leases = queue.lease(10**6, visibility=600)
    queue.ack(leases)
    return [decode_task(lease.body) for lease in leases]


def fill(world: Any, store: str, space: str, names: list[str]) -> None:
    world.stores[store].create_space(space)
    for name in names:
        world.stores[store].put(space, name, io.BytesIO(b"body"))


def stale(world: Any, space: str, count: int, store: str = "2") -> list[str]:
    """Copies whose originals were deleted, as the manifest says."""
    names = [f"stale {number:03d}" for number in range(count)]
    fill(world, store, space, names)
    world.manifest.record([Event("1", space, name, world.clock.now(), deleted=True) for name in names])
    return names


def numbered(count: int) -> list[str]:
    return [f"{number:04d}" for number in range(count)]


def one_policy(*pairs: Pair) -> dict[str, Policy]:
    return {"me": Policy("me", {}, pairs or (TO_2,))}


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
    assert (run.outcome, run.tasks, run.left) == (Outcome.DONE, 4200, 0)
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
    assert producer.run().outcome == Outcome.QUEUE_FULL
    assert Counter(task.space for task in producer.taken()) == {"huge": GROUP, "small": 1}


@pytest.mark.parametrize("deletes", [0, 100])
def test_a_full_queue_ends_the_run_and_the_next_one_goes_on_behind_it(world: Any, tmp_path: Path, deletes: int) -> None:
    fill(world, "1", "s", numbered(1500))
    gone = stale(world, "s", deletes)
    producer = Producer(world, tmp_path, one_policy(), most=1000)
    first = producer.run()
    assert (first.outcome, first.left) == (Outcome.QUEUE_FULL, 1)
    assert producer.run().tasks == 0
    tasks = producer.taken()
    assert len(tasks) == 1000 + deletes
    last = producer.run()
    assert (last.outcome, last.tasks, last.left) == (Outcome.DONE, 500, 0)
    assert sorted(task.content_id for task in tasks + producer.taken()) == sorted(numbered(1500) + gone)


def test_the_next_loop_is_due_a_frequency_after_the_start_of_the_last(world: Any, tmp_path: Path) -> None:
    fill(world, "1", "s", ["a"])
    producer = Producer(world, tmp_path, one_policy())
    started = world.clock.now()
    assert producer.run().next_at == started + MONTH
    world.clock.advance(MONTH / 1_000_000 - 1)
    run = producer.run()
    assert (run.outcome, run.tasks, run.next_at) == (Outcome.NOT_DUE, 0, started + MONTH)
    world.clock.advance(2)
    assert producer.run().outcome == Outcome.DONE
    assert len(producer.taken()) == 4  # the item, and the space that the destination has not got, twice


def test_a_frequency_of_nothing_begins_no_loop(world: Any, tmp_path: Path) -> None:
    fill(world, "1", "s", ["a"])
    producer = Producer(world, tmp_path, one_policy(), frequency=0)
    run = producer.run()
    assert (run.outcome, run.next_at, producer.taken()) == (Outcome.NOT_DUE, None, [])


def test_a_space_that_left_the_source_gets_one_task_of_its_own(world: Any, tmp_path: Path) -> None:
    fill(world, "2", "s", ["kept"])
    producer = Producer(world, tmp_path, one_policy())
    assert producer.run().tasks == 1
    assert producer.taken() == [Duplicate("1", "2", "s")]
    assert [plan.held for plan in producer.nibbler.held] == [1]


def test_with_only_differences_a_loop_without_changes_puts_nothing_on_the_queue(world: Any, tmp_path: Path) -> None:
    fill(world, "1", "s", numbered(1200))
    producer = Producer(world, tmp_path, one_policy(), frequency=1, only_differences=True)
    assert producer.run().tasks == 1201
    registry = Registry({Duplicate: DuplicationProcessor(world.providers, world.manifest)})
    WorkerManager([producer.queue], registry, Sink(world.manifest, {}), world.clock).run_until_drained()
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


def test_p8_a_space_that_the_brake_holds_is_left_out_and_the_others_are_not(world: Any, tmp_path: Path) -> None:
    fill(world, "1", "good", ["a"])
    fill(world, "2", "emptied", numbered(200))
    world.stores["1"].create_space("emptied")
    brake = Brake(world.engine, world.clock, world.manifest.count)
    producer = Producer(world, tmp_path, one_policy(), frequency=1, brake=brake)
    assert producer.run().outcome == Outcome.DONE
    assert {task.space for task in producer.taken()} == {"good"}
    (held,) = producer.nibbler.held
    assert (held.space, held.held) == ("emptied", 200)
    assert "the source lists nothing" in brake.holds()[0].reason
    brake.approve([held.hold or 0])
    world.clock.advance(1)
    producer.run()
    assert producer.nibbler.held[0].hold is None


def test_a_pair_of_a_store_that_is_not_configured_is_skipped_and_told(world: Any, tmp_path: Path) -> None:
    fill(world, "1", "s", ["a"])
    producer = Producer(world, tmp_path, one_policy(Pair("1", "9"), TO_2))
    assert producer.run().outcome == Outcome.DONE
    assert producer.nibbler.skipped == [Pair("1", "9")]
    assert {task.destination for task in producer.taken()} == {"2"}


def test_a_space_that_cannot_be_listed_holds_no_other_up_and_is_given_up_after_three_runs(
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
        assert (run.outcome, run.left, len(run.failures)) == (Outcome.FAILED, 1, 1)
    assert [task.space for task in producer.taken()] == ["good"]
    run = producer.run()
    assert (run.outcome, run.left, run.failures[0].what) == (Outcome.DONE, 0, "bad 1 → 2 of me")


def test_two_producers_never_work_on_one_state(world: Any, tmp_path: Path) -> None:
    producer = Producer(world, tmp_path, one_policy())
    with producer.file.alone(), pytest.raises(ProducerBusyError, match=r"duplication\.json"):
        producer.run()
    assert producer.run().outcome == Outcome.DONE


@pytest.mark.parametrize("content", [b"", b"{", b'{"morsels":[{"space":1}]}', b'{"morsels":7}'])
def test_a_damaged_state_is_an_error_that_names_the_file(world: Any, tmp_path: Path, content: bytes) -> None:
    producer = Producer(world, tmp_path, one_policy())
    producer.run()
    (tmp_path / "state" / "duplication.json").write_bytes(content)
    with pytest.raises(ProducerStateError, match=r"duplication\.json is no state of a producer"):
        producer.run()


class Bits(Producer):
    """A bit producer; its queue is ``bits`` and its reports are on ``reports``."""

    def __init__(self, world: Any, folder: Path, **more: Any) -> None:
        super().__init__(world, folder, {}, **more)
        self.queue, self.reports = world.queue("bits"), world.queue("reports")
        self.bit_file = StateFile(folder / "state" / "bits.json", BitMorsel)

    def run(self) -> Any:
        world = self.world
        nibbler = BitNibbler(world.providers, world.manifest, self.queue, self.reports, world.clock, **self.more)
        limits = {"frequency": self.frequency, "most": self.most}
        return Loop(self.bit_file, nibbler, self.queue, world.clock, **limits).run()


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
    world.manifest.record([Event("1", "s", "lost", 1, "a" * 64), Event("2", "t", "all lost", 1, "a" * 64)])
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


FILES = [
    # inclusions, exclusions, what is taken of /me/one/s.1, /me/one/t, /me/two/s.1, /you/one/s.1
    (None, None, "yyyy"),
    (None, "/*/*/*", "nnnn"),
    (None, "/me", "nnny"),
    (None, "/me/*\n", "nnny"),
    (None, "# a remark\n\n  /me/one/s.1  # and another\n", "nyyy"),
    (None, "/*/*/s.*", "nynn"),
    ("/me/one", None, "yynn"),
    ("/you/*/*\n/me/two/*", None, "nnyy"),
    ("/me/*/*", "/me/one/t", "ynyn"),
]


@pytest.mark.parametrize(("inclusions", "exclusions", "taken"), FILES)
def test_a_list_of_patterns_says_which_spaces_are_taken(
    tmp_path: Path, inclusions: str | None, exclusions: str | None, taken: str
) -> None:
    def patterns(text: str | None) -> Any:
        (tmp_path / "list").write_text(text or "")
        return read_patterns(tmp_path / "list")

    chosen = SpaceFilter(patterns(inclusions), patterns(exclusions))
    paths = [("me", "one", "s.1"), ("me", "one", "t"), ("me", "two", "s.1"), ("you", "one", "s.1")]
    assert "".join("ny"[chosen.takes(*path)] for path in paths) == taken


@pytest.mark.parametrize("line", ["me/one", "/me//s", "/a/b/c/d", "/me/o*e/s", "/"])
def test_a_line_that_is_no_pattern_is_an_error_with_its_number(tmp_path: Path, line: str) -> None:
    (tmp_path / "list").write_text(f"# fine\n/me/one/s\n{line}\n")
    with pytest.raises(FilterError, match="line 3"):
        read_patterns(tmp_path / "list")


def test_producers_work_on_the_spaces_that_the_patterns_take(world: Any, tmp_path: Path) -> None:
    for space in ("a", "b"):
        fill(world, "1", space, ["x"])
        fill(world, "2", space, ["x"])
    (tmp_path / "list").write_text("/*/*/a")
    spaces = SpaceFilter(exclusions=read_patterns(tmp_path / "list"))
    producer, bits = Producer(world, tmp_path, one_policy(), spaces=spaces), Bits(world, tmp_path, spaces=spaces)
    producer.run()
    bits.run()
    assert {task.space for task in producer.taken()} == {"b"} == {task.space for task in take(bits.queue)}


PRODUCER = """
import sys
from pathlib import Path
import sqlalchemy as sa
from millstream.core.clock import SystemClock
from millstream.log import LogSpec, open_store
from millstream.mill.looping.duplication import DuplicationMorsel, DuplicationNibbler
from millstream.mill.looping.loop import Loop
from millstream.mill.looping.state import StateFile
from millstream.mill.manifest import Manifest
from millstream.mill.policy import Pair, Policy
from millstream.mill.policy_repository import Policies
from millstream.mill.providers import Providers
from millstream.queue import LogWorkQueue
from millstream.stores import LocalStore

folder = Path(sys.argv[1])
clock = SystemClock()
providers = Providers({name: LocalStore(folder / name) for name in "12"}, clock)
manifest = Manifest(sa.create_engine(f"sqlite:///{folder}/node-0.db"))
policies = Policies({"me": Policy("me", {}, (Pair("1", "2"),))})
with open_store(f"sqlite:///{folder}/log.db", clock=clock) as store:
    queue = LogWorkQueue(store.log(LogSpec("low")), clock)
    nibbler = DuplicationNibbler(lambda: policies, providers, manifest, queue)
    file = StateFile(folder / "state.json", DuplicationMorsel)
    tell = lambda run: print(run.tasks, flush=True)
    run = Loop(file, nibbler, queue, clock, frequency=10**12, most=10**6, on_progress=tell).run()
    print(run.outcome, flush=True)
    queue.close()
"""


def test_p6_a_producer_killed_in_mid_loop_leaves_nothing_out(
    new_world: Callable[..., Any], tmp_path: Path, size: str
) -> None:
    counts, kills = ({"a": 10_000, "b": 10_000}, 40) if size == "long" else ({"a": 1_010, "b": 10}, 3)
    world = new_world({name: LocalStore(tmp_path / name) for name in "12"})
    for space, count in counts.items():
        fill(world, "1", space, numbered(count))
        stale(world, space, 20)
    for kill in range(kills):
        killed_in_mid_loop(tmp_path, after=kill % 3)
    done = subprocess.run([sys.executable, "-c", PRODUCER, str(tmp_path)], check=True, capture_output=True, timeout=120)
    assert done.stdout.split()[-1] in (b"done", b"not-due")
    with open_store(f"sqlite:///{tmp_path / 'log.db'}", clock=SystemClock()) as store:
        queue = LogWorkQueue(store.log(LogSpec("low")), SystemClock())
        tasks = [(task.space, task.content_id) for task in take(queue)]
        queue.close()
    gone = [f"stale {number:03d}" for number in range(20)]
    assert set(tasks) == {(space, name) for space, count in counts.items() for name in numbered(count) + gone}
    assert len(tasks) - len(set(tasks)) <= kills * GROUP  # at most one bite twice for each kill
    for space in counts:
        mine = [name for where, name in tasks if where == space]
        last_delete = min(index for index, name in enumerate(mine) if name == "stale 019")
        assert mine.index("0000") > last_delete


def killed_in_mid_loop(folder: Path, after: int) -> None:
    """Start a producer and kill it after so many bites."""
    child = subprocess.Popen(
        [sys.executable, "-c", PRODUCER, str(folder)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert child.stdout is not None
    for _ in range(after + 1):
        child.stdout.readline()
    os.kill(child.pid, signal.SIGKILL)
    child.wait(60)
    child.stdout.close()
