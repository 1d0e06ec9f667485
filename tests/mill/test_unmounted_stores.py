"""A disk that is not mounted: nothing is taken for deleted, nothing is copied onto the disk below, no other waits."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mill_looping import TO_2, TO_3, Bits, Producer, one_policy, take

from millstream.cli.main import run
from millstream.core.clock import VirtualClock
from millstream.core.shown_commands import arguments
from millstream.mill.configured_stores import ConfiguredStores
from millstream.mill.duplication.duplicator import DuplicationProcessor
from millstream.mill.item_ref import ItemRef
from millstream.mill.mount_check import SECONDS, MountCheck
from millstream.mill.producers.producer_loop import MOST_FAILURES, PATIENCE, LoopOutcome
from millstream.mill.repair.repair_log import RepairLog
from millstream.mill.repair.repairer import Repairer
from millstream.mill.tasks import Duplicate, QueueName
from millstream.node import Node
from millstream.settings import load_settings
from millstream.stores import LocalStore, StoreUnavailableError
from millstream.stores.sources import absence_question
from millstream.testing.faulty_store import UnavailableStore

Run = Callable[..., tuple[int, list[Any], str]]


@pytest.fixture
def data(three_stores: Path, tmp_path: Path) -> Path:
    """A node with three stores, whose policy copies from "one" to the others, and three items."""
    source = LocalStore(tmp_path / "one")
    source.create_space("s")
    for name in "abc":
        source.put("s", name, io.BytesIO(name.encode() * 100))
    return three_stores


@pytest.fixture
def millstream(data: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> Run:
    """Runs a command; its exit code, what it printed as JSON, and its complaints."""

    def call(*arguments: str) -> tuple[int, list[Any], str]:
        code = run([*arguments, "--data", str(data)])
        printed = capsysbinary.readouterr()
        lines = printed.out.splitlines() if "--json" in arguments else []
        return code, [json.loads(line) for line in lines], printed.err.decode()

    return call


def unmount(folder: Path) -> Path:
    """Leave an empty folder in the place of *folder*, as an unmounted disk does; where it is now is returned."""
    away = folder.with_name(f"{folder.name}-away")
    folder.rename(away)
    folder.mkdir()
    return away


def mount(folder: Path) -> None:
    folder.rmdir()
    folder.with_name(f"{folder.name}-away").rename(folder)


def test_p8_an_empty_mount_point_is_neither_filled_nor_taken_for_a_loss(
    data: Path, tmp_path: Path, millstream: Run
) -> None:
    assert millstream("mill", "duplicate")[0] == 0
    unmount(tmp_path / "two")
    LocalStore(tmp_path / "one").put("s", "d", io.BytesIO(b"new"))
    code, _, complaint = millstream("mill", "duplicate", "--json")
    assert code == 1
    assert "two: store 'two' at " in complaint and "is its disk mounted?" in complaint
    assert len(LocalStore(tmp_path / "three").entries("s")) == 4
    code, reports, _ = millstream("mill", "check", "--json")
    assert code == 1
    assert {(r["store"], r["result"]) for r in reports} == {
        ("one", "SUCCESS"), ("two", "INCOMPLETE"), ("three", "SUCCESS"),
    }  # fmt: skip
    assert millstream("mill", "repair")[0] == 0
    assert list((tmp_path / "two").iterdir()) == []
    mount(tmp_path / "two")
    assert millstream("mill", "duplicate")[0] == 0
    assert millstream("mill", "check")[0] == 0


def test_p8_an_empty_source_deletes_nothing_and_stops_nothing_else(data: Path, tmp_path: Path, millstream: Run) -> None:
    assert millstream("mill", "duplicate")[0] == 0
    unmount(tmp_path / "one")
    code, made, complaint = millstream("mill", "produce", "duplication", "--once", "--json")
    assert (code, made[-1]["tasks"], made[-1]["left"]) == (1, 0, 2)
    assert all("is its disk mounted?" in failure["error"] for failure in made[-1]["failures"])
    assert complaint == ""
    mount(tmp_path / "one")
    code, made, _ = millstream("mill", "produce", "duplication", "--once", "--json")
    assert (code, made[-1]["tasks"]) == (0, 6)


def test_p8_an_empty_disk_with_a_folder_of_its_file_system_is_neither_filled_nor_taken_for_a_loss(
    data: Path, tmp_path: Path, millstream: Run
) -> None:
    assert millstream("mill", "duplicate")[0] == 0
    unmount(tmp_path / "two")
    (tmp_path / "two" / "lost+found").mkdir()
    code, _, complaint = millstream("mill", "duplicate")
    assert (code, "is its disk mounted?" in complaint) == (1, True)
    assert [path.name for path in (tmp_path / "two").iterdir()] == ["lost+found"]


def test_a_new_disk_is_filled_once_somebody_says_that_it_is_new(data: Path, tmp_path: Path, millstream: Run) -> None:
    assert millstream("mill", "duplicate")[0] == 0
    shutil.rmtree(unmount(tmp_path / "two"))
    assert millstream("mill", "duplicate")[0] == 1
    assert millstream("store", "create", "two", "s")[0] == 0
    assert millstream("mill", "duplicate")[0] == 0
    assert len(LocalStore(tmp_path / "two").entries("s")) == 3


def test_a_folder_that_was_never_made_is_named_with_what_to_do(data: Path, tmp_path: Path, millstream: Run) -> None:
    (tmp_path / "three").rmdir()
    code, _, complaint = millstream("mill", "duplicate")
    assert code == 1
    assert (
        f"three: the folder {tmp_path}/three does not exist: mount its disk, or for a new store, create the folder"
        in complaint
    )
    assert not (tmp_path / "three").exists()
    assert len(LocalStore(tmp_path / "two").entries("s")) == 3


def test_commands_that_print_open_changes_work_while_a_disk_is_not_mounted(
    data: Path, tmp_path: Path, millstream: Run
) -> None:
    assert millstream("mill", "duplicate")[0] == 0
    unmount(tmp_path / "two")
    code, _, complaint = millstream("mill", "report")
    assert (code, complaint.count("no report yet"), complaint.count("is its disk mounted?")) == (1, 3, 1)
    mount(tmp_path / "two")
    assert millstream("mill", "check")[0] == 0
    unmount(tmp_path / "two")
    code, reports, complaint = millstream("mill", "report", "--json")
    assert (code, [one["store"] for one in reports]) == (0, ["one", "three", "two"])
    assert complaint.startswith("two: store 'two' at ") and complaint.count("\n") == 1
    assert millstream("mill", "audit", "--recover") == (0, [], "")
    code, _, complaint = millstream("mill", "reconcile")
    assert (code, complaint.startswith("two: store 'two' at "), complaint.count("\n")) == (1, True, 1)


def test_presence_is_asked_for_every_few_seconds(world: Any) -> None:
    providers = ConfiguredStores(
        world.stores, world.clock, mount_check=MountCheck(world.manifest.has_items, world.clock)
    )
    assert providers.spaces("1") == []  # nothing should be there
    world.put(ItemRef("1", "s", "a"))
    world.stores["1"].delete("s", "a")
    world.stores["1"].delete_space("s")
    assert providers["1"] is world.stores["1"]
    world.clock.advance(SECONDS)
    with pytest.raises(StoreUnavailableError, match="store '1' at memory://1 is empty"):
        providers["1"]
    assert [name for name, _ in providers.items()] == ["1", "2", "3"]
    assert providers.unchecked["1"] is world.stores["1"] and "4" not in providers.unchecked
    world.stores["1"].create_space("any")
    assert providers["1"].spaces() == ["any"]


def test_p8_nothing_is_written_below_the_mount_point_of_a_disk_that_went_away_a_moment_ago(
    new_world: Callable[..., Any], tmp_path: Path
) -> None:
    world = new_world({name: LocalStore(tmp_path / name) for name in "123"})
    providers = ConfiguredStores(
        world.stores, world.clock, mount_check=MountCheck(world.manifest.has_items, world.clock)
    )
    processor = DuplicationProcessor(providers, world.manifest)
    for name in ("a", "b", "c"):
        world.put(ItemRef("1", "s", name))
        world.put(ItemRef("3", "s", name))
    tasks = [Duplicate("1", "2", "s", name) for name in ("a", "b", "c")]
    world.manifest.writer.record(processor.process(tasks[0], 1).events)
    unmount(tmp_path / "2")
    for act in (
        lambda: processor.process(tasks[1], 1),
        lambda: processor.process_group(tasks[1:] * 2),
        lambda: processor.process(Duplicate("1", "2", "s", ""), 1),
        lambda: Repairer(providers, world.manifest, RepairLog(world.engine)).repair("s", "a"),
    ):
        assert providers["2"] is world.stores["2"]  # it is believed to be there still
        with pytest.raises(StoreUnavailableError, match="is its disk mounted"):
            act()
    assert list((tmp_path / "2").iterdir()) == []


def test_p8_policies_that_cannot_be_found_end_no_loop(data: Path, tmp_path: Path, millstream: Run) -> None:
    accounts = data / "policies" / "duplication-accounts.json"
    away = accounts.rename(tmp_path / "accounts")
    code, made, _ = millstream("mill", "produce", "duplication", "--once", "--json")
    assert (code, made[0]["outcome"]) == (11, "not-due")
    assert "has no duplication-accounts.json" in made[0]["failures"][0]["error"]
    code, _, complaint = millstream("mill", "duplicate")
    assert (code, "there is no policy" in complaint) == (0, True)
    away.rename(accounts)
    limit = data / "millstream.toml"
    limit.write_text(f"{limit.read_text()}\n[mill.produce]\nduplication_most = 1\n")
    assert millstream("mill", "produce", "duplication", "--once")[0] == 10
    assert millstream("mill", "work", "duplication-low", "--drain")[0] == 0
    accounts.rename(away)
    code, made, _ = millstream("mill", "produce", "duplication", "--once", "--json")
    assert (code, made[0]["outcome"], made[0]["left"]) == (1, "failed", 1)
    away.rename(accounts)
    code, made, _ = millstream("mill", "produce", "duplication", "--once", "--json")
    assert (code, made[0]["tasks"]) == (0, 4)
    assert millstream("mill", "work", "duplication-low", "--drain")[0] == 0
    assert [len(LocalStore(tmp_path / name).entries("s")) for name in ("two", "three")] == [3, 3]
    accounts.write_text("[]")
    assert millstream("mill", "duplicate") == (0, [], "")


def test_p8_audited_changes_wait_for_policies_that_cannot_be_found(data: Path, tmp_path: Path) -> None:
    text = (data / "millstream.toml").read_text("utf-8").replace("[stores.one]", "[stores.one]\naudited = true")
    policies = tmp_path / "policies"
    (data / "policies").rename(policies)
    (data / "millstream.toml").write_text(f'[mill]\naccount = "me"\npolicies = "{policies}"\n{text}', "utf-8")
    unmount(policies)
    settings, _ = load_settings({"data": str(data)}, environment={})
    with Node.open(settings, create=True, clock=VirtualClock()) as node:
        node.stores.providers["one"].put("s", "d", io.BytesIO(b"new"))
        assert node.mill.workers(QueueName.AUDIT).run_until_drained().dead == 1
        (dead,) = node.queues.open(QueueName.AUDIT).dead()
        assert "mount the disk with the policies" in dead.cause and len(node.stores.outbox.events()) == 1
    mount(policies)
    with Node.open(settings, create=True, clock=VirtualClock()) as node:
        node.queues.open(QueueName.AUDIT).redrive()
        node.mill.workers(QueueName.AUDIT).run_until_drained()
        assert node.queues.open(QueueName.DUPLICATION_HIGH).depth().ready == 2
        assert node.stores.outbox.events() == []


def test_a_store_that_is_away_fails_its_own_spaces_for_a_day_and_holds_no_other_up(world: Any, tmp_path: Path) -> None:
    for store in "12":
        world.put(ItemRef(store, "s", "a"))
    away = world.stores["2"]
    world.stores["2"] = UnavailableStore(away)
    producer = Producer(world, tmp_path, one_policy(TO_2, TO_3))
    run = producer.run()
    assert (run.outcome, run.left, run.failures[0].what) == (LoopOutcome.FAILED, 1, "the spaces of store '2'")
    assert {task.destination for task in producer.taken()} == {"3"}
    for _ in range(2 * MOST_FAILURES):
        assert producer.run().outcome == LoopOutcome.FAILED
    world.clock.advance(PATIENCE / 1_000_000 / 2)
    assert producer.run().outcome == LoopOutcome.FAILED
    world.stores["2"] = away
    assert producer.run().outcome == LoopOutcome.DONE
    assert [task.content_id for task in producer.taken()] == ["a"]


def test_checks_of_a_store_that_is_away_are_made_when_it_is_back(world: Any, tmp_path: Path) -> None:
    for store in "12":
        world.put(ItemRef(store, "s", "a"))
    away = world.stores["2"]
    world.stores["2"] = UnavailableStore(away)
    bits = Bits(world, tmp_path)
    run = bits.run()
    assert [failure.what for failure in run.failures] == ["the spaces of store '2'", "2/s"]
    assert [task.store for task in take(bits.queue)] == ["1"]
    world.stores["2"] = away
    bits.run()
    assert [task.store for task in take(bits.queue)] == ["2"]
    assert bits.run().outcome == LoopOutcome.DONE
    assert sorted(report.store for report in take(bits.reports)) == ["1", "2"]


@pytest.mark.parametrize(
    ("url", "question"), [("s3://bucket/p", "are its bucket, prefix"), ("file:///disk", "disk mounted")]
)
def test_what_to_look_at_depends_on_the_kind_of_store(url: str, question: str) -> None:
    assert question in absence_question(url)


@pytest.mark.parametrize("name", ["-disk", "my disk"])
def test_the_command_for_a_new_disk_names_the_store_as_a_shell_takes_it(
    new_world: Callable[..., Any], tmp_path: Path, name: str
) -> None:
    world = new_world({name: LocalStore(tmp_path / "disk")})
    world.put(ItemRef(name, "s", "a"), b"x")
    with pytest.raises(StoreUnavailableError) as told:
        MountCheck(world.manifest.has_items, world.clock).require(name, world.stores[name], list)
    assert f"run `millstream store create {arguments(name)} SPACE`" in str(told.value)
