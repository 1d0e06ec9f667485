"""Members of a node: who is alive, who owns which role, and that who has lost a role writes nothing more."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

import millstream.node.members.node_members
from millstream.anchoring.errors import (
    CasDamagedError,
    CasUnavailableError,
    ObservationBlockedError,
    ObservationDelayedError,
)
from millstream.cli.main import run
from millstream.cli.node_roles import NodeRoles
from millstream.cli.retried_resource import RetriedResource
from millstream.cli.role_run import RoleRun
from millstream.core.clock import MICROSECONDS, VirtualClock
from millstream.core.leases import LeaseLostError
from millstream.core.metric_collection.collector import MetricsCollector
from millstream.core.sql import SqlBusyError, SqlDatabase, in_same_fence, writing
from millstream.ingest.errors import SessionTakenError
from millstream.log.errors import FencedError, WriterBusyError
from millstream.mill.settings import MillSettings
from millstream.node import Node
from millstream.node.context import NodeContext
from millstream.node.members import tables
from millstream.node.members.assignment import assign
from millstream.node.members.member_table import MemberTable, UnknownMemberError
from millstream.node.members.members_status import WORK, MemberDetails, MemberState, UnownedRole
from millstream.node.members.membership import RENEWALS, Membership, NeedsQueueBrokerError
from millstream.node.members.node_members import NodeMembers
from millstream.node.members.role_scheduler import EXCLUDED_SECONDS, Fence, RoleScheduler, _Pause
from millstream.node.members.shared_settings import shared_settings
from millstream.queue.settings import QueueSettings
from millstream.rest.operator_audit_log import OperatorAuditLog
from millstream.settings import RelayRole, Settings, StoreSettings
from millstream.settings.node_settings import NodeSettings
from millstream.settings.serving import ServeSettings
from millstream.status.verdict.judge_members import settings_issues
from millstream.stores.audit.holders import Holders, HolderState
from millstream.testing.waiting import until
from support.statement_counts import statements_of

ROLES = {"batching a": "a", "batching b": "b", "producers": "producers", "upkeep": "upkeep"}


class Played:
    """A role that notes what happens to it."""

    failure: Exception | None = None
    wait: threading.Event | None = None

    def __init__(self, fence: Fence) -> None:
        self.fence, self.is_lost, self.stopped, self.ended = fence, False, False, False

    def stop(self) -> None:
        self.stopped = True

    def end(self) -> None:
        if self.wait is not None:
            assert self.wait.wait(30)
        self.stopped = self.ended = True
        if self.failure is not None:
            raise self.failure


class Process:
    """A process that serves a node; its threads are the calls of the test."""

    def __init__(
        self,
        engine: sa.Engine,
        clock: VirtualClock,
        name: str,
        roles: Mapping[str, str] = ROLES,
        settings: Settings = Settings(),  # noqa: B008  (frozen)
    ) -> None:
        details = MemberDetails(
            host=name, pid=1, version="1", process=Holders().new(), roles=roles, settings=shared_settings(settings)
        )
        self.table = MemberTable(engine, clock, 15.0)
        self.membership = Membership(self.table, details)
        self.failures: list[Exception] = []
        self.all: dict[str, Played] = {}
        self.scheduler = RoleScheduler(self.membership, self._start, self.failures.append)
        self.membership.join()

    def _start(self, name: str, fence: Fence) -> Played:
        if name in self.busy:
            raise WriterBusyError(name)
        if name in self.lost:
            raise LeaseLostError(name)
        if name in self.refused:
            raise ValueError(name)
        self.all[name] = Played(fence)
        return self.all[name]

    refused: frozenset[str] = frozenset()
    busy: frozenset[str] = frozenset()
    lost: frozenset[str] = frozenset()

    @property
    def roles(self) -> set[str]:
        return set(self.scheduler.running)


class Host:
    def __init__(self, folder: Path) -> None:
        self.clock = VirtualClock()
        self.engine = sa.create_engine(f"sqlite:///{folder / 'node.db'}")

    def process(
        self,
        name: str,
        roles: Mapping[str, str] = ROLES,
        settings: Settings = Settings(),  # noqa: B008  (frozen)
    ) -> Process:
        return Process(self.engine, self.clock, name, roles, settings)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    yield host
    host.engine.dispose()


def settle(*processes: Process) -> None:
    """Let each process do what it does, until nothing changes any more."""
    for _ in range(3):
        for process in processes:
            process.membership.renew()
            process.scheduler.step()


def test_a_member_tells_others_with_each_heartbeat_which_of_its_roles_fail(host: Host) -> None:
    one, failing = host.process("one"), {"ingest pumps": "refused"}
    one.membership.reports(lambda: failing)

    def told() -> list[Mapping[str, str]]:
        one.membership.renew()
        return [member.details.failing for member in one.table.status().members]

    assert told() == [failing]
    failing.clear()
    assert told() == [{}]


def test_a_member_whose_join_is_tried_again_after_a_lost_reply_joins_once(host: Host) -> None:
    table = host.process("one").table
    (first,) = table.alive()

    class ReplyLost(SqlDatabase):
        """The reply to each commit is lost, and the transaction is run again."""

        def write(self, transaction: Callable[[sa.Connection, int], Any]) -> Any:
            super().write(transaction)
            return super().write(transaction)

    table.database = ReplyLost(host.engine, host.clock, tables.metadata)
    joined = table.join(first.details)
    assert sorted(one.id for one in table.alive()) == sorted([first.id, joined])


def test_a_member_that_gives_signs_of_life_is_alive_and_one_that_gives_none_is_lost(host: Host) -> None:
    one, two = host.process("one"), host.process("two")
    for _ in range(4):
        host.clock.advance(5.0)
        assert one.membership.renew()
    assert two.membership.is_lost, "by its own clock"
    assert one.membership.end_lost() == [two.membership.id]
    assert [member.details.host for member in one.table.alive()] == ["one"]
    assert not two.membership.renew(), "it joins again, and never revives what others counted as lost"
    assert one.table.find(two.membership.id).ended is not None


def test_a_heartbeat_is_sent_though_all_connections_of_the_pool_are_in_use(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'node.db'}"
    engine = sa.create_engine(url, pool_size=2, max_overflow=0, pool_timeout=0.01)
    one = Process(engine, VirtualClock(), "one")
    assert one.membership.renew()
    with engine.connect():
        with pytest.raises(SqlBusyError, match="no free connection for this process"):
            one.table.status()
        assert one.membership.renew()
    one.table.close()
    with engine.connect(), engine.connect():
        pass
    engine.dispose()


def test_others_have_the_roles_of_a_process_that_is_stopped_before_it_ends(host: Host) -> None:
    one, two = host.process("one"), host.process("two")
    settle(one, two)
    with one.scheduler:
        one.scheduler.stop()
    settle(two)
    assert two.roles == ROLES.keys() and not one.roles
    assert [one.state(host.clock.now()) for one in two.table.alive()] == ["draining", "alive"]


def test_roles_of_a_process_that_is_stopped_end_though_the_database_does_not_answer(host: Host) -> None:
    one = host.process("one")
    settle(one)

    def fail(*_: object) -> None:
        raise sa.exc.OperationalError("SELECT 1", None, OSError("connection refused"))

    with one.scheduler:
        sa.event.listen(host.engine, "before_cursor_execute", fail)
        one.scheduler.stop()
        until(lambda: not one.roles, "the end of the roles", seconds=5)
    assert all(role.ended for role in one.all.values())
    sa.event.remove(host.engine, "before_cursor_execute", fail)
    two = host.process("two")
    host.clock.advance(16.0)
    settle(two)
    assert two.roles == ROLES.keys()


def test_others_have_the_roles_of_a_stopped_process_that_could_not_say_at_once_that_it_drains(host: Host) -> None:
    one, two = host.process("one"), host.process("two")
    settle(one, two)

    def fail(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if "SET draining" in statement:
            raise sa.exc.InternalError(statement, None, Exception("cannot execute UPDATE in a read-only transaction"))

    sa.event.listen(host.engine, "before_cursor_execute", fail)
    with one.scheduler:
        one.scheduler.stop()
    sa.event.remove(host.engine, "before_cursor_execute", fail)
    for _ in range(4):  # longer than a lease: the process still does other work
        host.clock.advance(5.0)
        assert one.membership.renew()
        settle(two)
    assert two.roles == ROLES.keys() and not one.roles
    assert [each.state(host.clock.now()) for each in two.table.alive()] == ["draining", "alive"]


@pytest.mark.parametrize("kind", [sa.exc.InternalError, sa.exc.InterfaceError])
def test_all_roles_end_and_are_free_though_the_end_of_one_fails(
    host: Host, kind: type[sa.exc.DBAPIError], caplog: pytest.LogCaptureFixture
) -> None:
    one, two = host.process("one"), host.process("two")
    settle(one)
    one.all["batching a"].failure = kind("UPDATE", None, Exception("cannot execute UPDATE"))
    with one.scheduler:
        one.scheduler.stop()
        until(lambda: "could not give up the roles" in caplog.text, "the end of the roles", seconds=5)
        assert all(role.ended for role in one.all.values()) and not one.roles
        settle(two)
        assert two.roles == ROLES.keys() - {"batching a"}
        host.clock.advance(10.0)
        assert one.membership.renew() and two.membership.renew()
        host.clock.advance(6.0)
        assert one.membership.renew()
        settle(two)
        assert two.roles == ROLES.keys(), "its lease has expired"


def test_a_step_that_changes_nothing_reads_the_tables_once(host: Host) -> None:
    one, two = host.process("one"), host.process("two")
    settle(one, two)
    with statements_of(host.engine) as statements:
        one.scheduler.step()
    assert len(statements) == 2, "the leases, and the members"


def test_one_process_owns_all_roles_and_shares_them_with_a_second_one(host: Host) -> None:
    one = host.process("one")
    settle(one)
    assert one.roles == set(ROLES)
    two = host.process("two")
    settle(one, two)
    assert len(one.roles) == len(two.roles) == 2 and one.roles | two.roles == set(ROLES)
    assert all(one.all[name].ended for name in two.roles), "ended before the other began"
    before = one.roles
    settle(one, two)
    assert one.roles == before


def test_the_roles_of_a_lost_process_are_taken_over_and_it_writes_nothing_more(host: Host) -> None:
    one = host.process("one")
    settle(one)
    host.clock.advance(16.0)  # the process is stopped (SIGSTOP), and resumes below
    two = host.process("two")
    settle_alone = two.scheduler.step
    settle_alone()
    assert two.roles == set(ROLES)
    with pytest.raises(LeaseLostError, match="batching a"), one.all["batching a"].fence(), writing(host.engine):
        raise AssertionError("not reached")
    with two.all["batching a"].fence(), writing(host.engine):
        pass
    with one.all["batching a"].fence(), ThreadPoolExecutor(1) as threads:
        write = in_same_fence(lambda engine: writing(engine).__enter__())
        with pytest.raises(LeaseLostError, match="batching a"):
            threads.submit(write, host.engine).result()
    before, lost = dict(one.all), one.membership.id
    assert not one.membership.renew()
    settle(one, two)
    assert all(role.ended for role in before.values()) and one.membership.id != lost
    assert one.roles | two.roles == set(ROLES) and not one.roles & two.roles


def test_a_process_has_its_roles_again_at_once_though_a_late_heartbeat_prolonged_them(host: Host) -> None:
    one = host.process("one")
    settle(one)
    lost, details = one.membership.id, one.membership.details
    host.clock.advance(16.0)  # the database was frozen, and carries the heartbeat out now
    assert one.table.renew(lost, details, sorted(ROLES))
    assert one.membership.is_lost
    one.scheduler.step()
    assert one.membership.id != lost and one.roles == set(ROLES)
    assert one.table.find(lost).lost and [member.id for member in one.table.alive()] == [one.membership.id]


def test_a_late_answer_to_a_heartbeat_says_nothing_about_the_member_that_joined_since(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = host.process("one")
    renew = one.table.renew

    def late(*heartbeat: Any, **more: Any) -> bool:
        host.clock.advance(16.0)
        one.membership.join()  # by another thread
        return renew(*heartbeat, **more)

    monkeypatch.setattr(one.table, "renew", late)
    assert one.membership.renew()
    assert not one.membership.is_lost


def test_writes_of_a_thread_outside_the_fence_and_to_other_databases_are_not_refused(
    host: Host, tmp_path: Path
) -> None:
    one = host.process("one")
    settle(one)
    host.clock.advance(16.0)
    host.process("two").scheduler.step()
    with writing(host.engine):
        pass
    with contextlib.closing(sa.create_engine(f"sqlite:///{tmp_path / 'other.db'}").connect()) as other:
        with one.all["upkeep"].fence(), writing(other.engine):
            pass
        other.engine.dispose()


def test_a_draining_process_gives_its_roles_up_until_it_may_take_some_again(host: Host) -> None:
    one, two = host.process("one"), host.process("two")
    settle(one, two)
    one.table.drain(one.membership.id, draining=True)
    settle(one, two)
    assert one.roles == set() and two.roles == set(ROLES)
    host.clock.advance(16.0)
    two.scheduler.step()
    one.scheduler.step()
    settle(one, two)
    assert one.roles == set(), "it drains under its new id, too"
    one.table.drain(one.membership.id, draining=False)
    settle(one, two)
    assert len(one.roles) == 2
    with pytest.raises(UnknownMemberError, match="millstream node ls"):
        one.table.drain("nobody", draining=True)


def test_a_process_that_ends_in_order_frees_its_roles_at_once(host: Host) -> None:
    one, two = host.process("one"), host.process("two")
    settle(one)
    with one.membership, one.scheduler:
        pass
    two.scheduler.step()
    assert two.roles == set(ROLES) and not one.roles


def test_a_member_of_this_machine_whose_process_has_ended_is_not_waited_for(host: Host) -> None:
    one, two = host.process("one"), host.process("two")
    settle(one)
    gone, (name, pid, started, *rest) = one.membership, one.membership.details.process.split("/")
    gone.details = MemberDetails(
        host="one", pid=1, version="1", process="/".join([name, pid, f"{started}0", *rest]), roles=ROLES
    )
    gone.renew()
    two.scheduler.step()
    assert two.roles == set(ROLES)


MakeMembers = Callable[..., NodeMembers]


@pytest.fixture
def make_members(tmp_path: Path) -> Iterator[MakeMembers]:
    """Makes members with some stores, as processes that share one database and one clock."""
    clock, engine = VirtualClock(), sa.create_engine(f"sqlite:///{tmp_path / 'node.db'}")

    def make(*stores: str, workers: tuple[str, ...] = ("repair", "own")) -> NodeMembers:
        settings = Settings(
            data=str(tmp_path),
            node=NodeSettings(database="postgresql://db.example/node"),
            stores={name: StoreSettings(url=f"file:///{name}") for name in stores},
            serve=ServeSettings(workers=workers),
            mill=MillSettings(pools={"own": ("duplication-low",)}),
        )
        resources, metrics = contextlib.ExitStack(), MetricsCollector()
        context = NodeContext(settings=settings, folder=tmp_path, clock=clock, resources=resources, metrics=metrics)
        return NodeMembers(context, lambda: engine, lambda: None)

    yield make
    engine.dispose()


def test_a_process_of_mill_work_is_a_member_whose_settings_are_compared(make_members: MakeMembers) -> None:
    serving, working = make_members("a", "b"), make_members("a")
    table, member, clock = serving.table, serving.membership({}, {}), serving.table.clock
    assert isinstance(clock, VirtualClock)
    with working.joined_worker(["repair"]):
        clock.advance(1)
        member.join()
        member.require_shared_queues()  # a process of `mill work` does not serve the node
        status = serving.status()
        assert status is not None
        (worker,) = (one for one in status.serving if one.id != member.id)
        assert (worker.details.command, worker.details.queues, worker.details.roles) == ("mill work", ["repair"], {})
        (issue,) = settings_issues(status)
        assert issue.what == f"members have different settings: stores ({worker.id} differs from {member.id})"
        table.leave(worker.id, lost=True)

        def others() -> list[str]:
            clock.advance(table.seconds / RENEWALS)
            return [one.id for one in table.alive() if one.details.command == "mill work"]

        assert until(others, "a lost process joins again") != [worker.id]
    assert [one.id for one in table.alive()] == [member.id]


def test_workers_count_lost_workers_where_nothing_else_runs(make_members: MakeMembers) -> None:
    working = make_members("a")
    table, killed = working.table, working.membership({}, {})
    clock = table.clock
    assert isinstance(clock, VirtualClock)
    killed.join()
    clock.advance(table.seconds + 1)
    with working.joined_worker(["repair"]):
        assert table.find(killed.id).lost, "as one starts"
        (worker,) = table.alive()
        killed.join()
        clock.advance(table.seconds)

        def is_lost() -> bool:
            clock.advance(table.seconds / RENEWALS)
            return table.find(killed.id).lost

        assert until(is_lost, "as one joins again")
        assert worker.id not in [one.id for one in table.alive()]


def test_a_member_ends_without_an_error_while_the_database_does_not_answer(
    tmp_path: Path, make_members: MakeMembers, caplog: pytest.LogCaptureFixture
) -> None:
    members, database = make_members("a"), tmp_path / "node.db"
    with members.joined_worker(["repair"]):
        members.table.database.engine.dispose()
        database.rename(tmp_path / "kept.db")
        database.mkdir()  # so that it cannot be opened
    assert "could not leave: the database" in caplog.text


def test_a_task_can_be_done_by_a_member_that_has_all_its_stores_and_works_on_its_queue(
    make_members: MakeMembers,
) -> None:
    one, two, idle = make_members("a"), make_members("b", "c"), make_members("a", "b", "c", workers=())
    engine, clock = one.table.database.engine, one.table.clock
    assert isinstance(clock, VirtualClock)
    assert not one.other_workers().can_do("repair", {"a"})
    joined = [each.membership({}, {}) for each in (one, two, idle)]
    for each in joined:
        each.join()

    def can_do(queue: str, *stores: str) -> bool:
        return one.other_workers().can_do(queue, set(stores))

    assert [can_do("repair", *stores) for stores in ("b", "bc", "ab", "d")] == [True, True, False, False]
    assert [can_do(queue, "b") for queue in ("bit-error", "duplication-low", "audit")] == [True, True, False]
    workers = one.other_workers()
    with statements_of(engine) as statements:
        assert all(workers.can_do("repair", {"b"}) for _ in range(100))
        once = len(statements)
        clock.advance(4)
        assert workers.can_do("repair", {"b"}) and len(statements) == once, "one answer serves for some seconds"
    two.table.drain(joined[1].id, draining=True)
    assert workers.can_do("repair", {"b"}) and not can_do("repair", "b")
    clock.advance(5)
    assert not workers.can_do("repair", {"b"})


def test_a_role_that_cannot_begin_is_left_to_others_and_ends_no_other_role(
    host: Host, caplog: pytest.LogCaptureFixture
) -> None:
    one = host.process("one")
    one.refused = frozenset({"batching a"})
    settle(one)
    assert one.failures == [] and one.roles == ROLES.keys() - {"batching a"}
    told = "the role batching a cannot begin here, and is left to other members for 10 minutes: batching a"
    assert caplog.messages == [told], "it is tried once"
    one.membership.renew()
    (unowned,) = one.table.status().unowned
    assert (unowned.role, unowned.offered_by) == ("batching a", [one.membership.id])
    assert one.table.find(one.membership.id).details.failed == {"batching a": "batching a"}
    two = host.process("two")
    settle(one, two)
    assert "batching a" in two.roles and one.roles | two.roles == ROLES.keys()
    two.membership.drain()
    settle(one, two)
    assert two.roles == set() and one.roles == ROLES.keys() - {"batching a"}
    one.refused = frozenset()
    host.clock.advance(EXCLUDED_SECONDS)
    settle(one)
    assert one.roles == ROLES.keys()


def test_a_role_that_ends_again_and_again_is_begun_again_after_longer_pauses(host: Host) -> None:
    one = host.process("one", {"upkeep": "upkeep"})
    begun = list[float]()
    for _ in range(60):
        one.scheduler.step()
        if one.roles and not one.all["upkeep"].is_lost:
            begun.append(host.clock.monotonic())
            one.all["upkeep"].is_lost = True
        host.clock.advance(0.5)
        one.membership.renew()
    pauses = [later - earlier for earlier, later in itertools.pairwise(begun)]
    assert pauses[0] <= 1.0 and pauses == sorted(pauses) and pauses[-1] >= 8.0


@pytest.mark.parametrize(("waits_for_owner", "tries"), [(False, 7), (True, 60)])
def test_a_role_that_cannot_begin_yet_is_tried_after_longer_pauses_unless_it_waits_for_its_former_owner(
    host: Host, monkeypatch: pytest.MonkeyPatch, waits_for_owner: bool, tries: int
) -> None:
    one = host.process("one", {"upkeep": "upkeep"})
    error: Exception = WriterBusyError("upkeep") if waits_for_owner else SqlBusyError("it does not answer")
    begun = list[float]()

    def fail(_name: str, _fence: Fence) -> Played:
        begun.append(host.clock.monotonic())
        raise error

    monkeypatch.setattr(one.scheduler, "_start", fail)
    for _ in range(60):
        one.scheduler.step()
        host.clock.advance(1.0)
        one.membership.renew()
    assert len(begun) == tries and one.failures == []


@pytest.mark.parametrize("others", [0, 1])
def test_a_role_that_keeps_failing_at_a_member_with_errors_that_may_pass_is_left_to_another(
    host: Host, monkeypatch: pytest.MonkeyPatch, others: int
) -> None:
    processes = [host.process(name, {"batching a": "a"}) for name in ("one", "two")[: 1 + others]]
    (one, *rest), begun = processes, list[float]()

    def fail(_name: str, _fence: Fence) -> Played:
        begun.append(host.clock.monotonic())
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(one.scheduler, "_start", fail)
    for _ in range(130):
        for process in processes:
            process.membership.renew()
            process.scheduler.step()
        host.clock.advance(1.0)
    assert [process.roles for process in rest] == [{"batching a"}] * others
    assert one.membership.details.failed.keys() == ({"batching a"} if others else set())
    assert len(begun) == 9 - others
    for _ in range(70):  # the others are dead, and the longest pause is one minute
        one.membership.renew()
        one.scheduler.step()
        host.clock.advance(1.0)
    assert len(begun) == 10 - others and not one.membership.details.failed


def test_a_role_that_could_not_begin_and_has_run_for_long_since_is_begun_again_at_once(host: Host) -> None:
    pause = _Pause()
    for now in (0.0, 1.0, 3.0):
        pause.failed(now, now)
    assert pause.end == 5.0
    pause.failed(1_000.0, 1_000.0)
    assert pause.end == 1_000.0


def test_each_role_is_free_as_soon_as_it_has_ended(host: Host) -> None:
    one, two = host.process("one"), host.process("two")
    settle(one)
    may_end, first = threading.Event(), min(ROLES)
    one.all[first].wait = may_end
    one.table.drain(one.membership.id, draining=True)
    ending = threading.Thread(target=one.scheduler.step)
    ending.start()

    def others_taken_over() -> bool:
        two.scheduler.step()
        return two.roles == ROLES.keys() - {first}

    until(others_taken_over, "the other roles taken over")
    may_end.set()
    ending.join()
    settle(two)
    assert two.roles == ROLES.keys()


def test_a_late_heartbeat_does_not_take_back_a_role_that_was_given_up(host: Host) -> None:
    one, two = host.process("one", {"upkeep": "upkeep"}), host.process("two", {"upkeep": "upkeep"})
    settle(one)
    one.table.drain(one.membership.id, draining=True)
    one.scheduler.step()
    assert one.table.renew(one.membership.id, one.membership.details, ["upkeep"])
    two.scheduler.step()
    assert two.roles == {"upkeep"}


def test_a_role_that_is_another_ones_by_the_time_it_begins_is_left_to_that_one(host: Host) -> None:
    one = host.process("one", {"upkeep": "upkeep"})
    one.lost = frozenset({"upkeep"})
    one.scheduler.step()
    assert one.roles == set() and one.failures == []
    one.lost = frozenset()
    settle(one)
    assert one.roles == {"upkeep"}


def test_a_role_without_an_owner_is_known_with_the_time_since_which_it_has_none(host: Host) -> None:
    one = host.process("one", {"upkeep": "upkeep"})
    joined = host.clock.now()
    host.clock.advance(1.0)
    never = UnownedRole(role="upkeep", since=joined, offered_by=[one.membership.id])
    assert one.table.status().unowned == [never]
    one.busy = frozenset({"upkeep"})
    one.scheduler.step()
    assert one.table.status().unowned == [never], "it was tried, and could not begin"
    one.busy = frozenset()
    settle(one)
    assert one.table.status().unowned == []
    host.clock.advance(3.0)
    one.table.drain(one.membership.id, draining=True)
    ended = host.clock.now()
    settle(one)
    host.clock.advance(3.0)
    (role,) = one.table.status().unowned
    assert role.since == ended and one.table.status().serving[0].state(host.clock.now()) == MemberState.DRAINING


def test_a_role_of_a_lost_member_has_no_owner_from_the_end_of_its_lease_on(host: Host) -> None:
    one = host.process("one", {"upkeep": "upkeep"})
    settle(one)
    until = one.table.find(one.membership.id).until
    host.clock.advance(16.0)
    two = host.process("two", {"upkeep": "upkeep"})
    assert [role.since for role in two.table.status().unowned] == [until]
    two.busy = frozenset({"upkeep"})
    two.scheduler.step()
    assert [role.since for role in two.table.status().unowned] == [host.clock.now()], "when it was found to be lost"
    lease = two.membership.leases.acquire("upkeep", acquired=lambda now: now)
    assert lease is not None and two.table.status().unowned[0].claimed_by == two.membership.id


def test_members_that_were_lost_are_told_from_those_that_left(host: Host) -> None:
    one, two, three = host.process("one"), host.process("two"), host.process("three")
    one.table.leave(one.membership.id)
    host.clock.advance(10.0)
    three.membership.renew()
    host.clock.advance(10.0)
    rows = {row.host: row.state.value for row in three.table.status().rows}
    assert rows == {"three": "alive", "two": "lost", "one": "ended"}
    three.membership.end_lost()
    assert {row.host: row.state.value for row in three.table.status().rows} == rows
    host.clock.advance(24 * 3600)
    assert [one.details.host for one in two.table.status().members] == ["three"]


def test_without_a_broker_for_its_queues_a_second_process_is_refused(
    host: Host, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    one, two = host.process("one"), host.process("two")
    one.membership.require_shared_queues()
    sleep = host.clock.sleep

    def sleeping(seconds: float) -> None:
        sleep(seconds)
        one.membership.renew()

    monkeypatch.setattr(host.clock, "sleep", sleeping)
    with pytest.raises(
        NeedsQueueBrokerError, match=r"process 1 on one serves this node .*stop one .* set queue.broker"
    ):
        two.membership.require_shared_queues()
    monkeypatch.undo()
    two.membership.join()
    two.membership.require_shared_queues()
    assert "may have ended" in caplog.text, "a process that was killed is waited for"


def test_a_process_with_a_broker_is_refused_beside_one_whose_queues_are_in_logs(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = Settings(queue=QueueSettings(broker="amqp://broker.example"))
    one, two = host.process("one", settings=shared), host.process("two", settings=shared)
    host.clock.advance(1.0)
    three = host.process("three", settings=shared)
    two.membership.require_shared_queues()
    two.membership.details = msgspec.structs.replace(
        two.membership.details, settings=shared_settings(Settings())
    )  # as one that was started without the setting
    sleep = host.clock.sleep

    def sleeping(seconds: float) -> None:
        sleep(seconds)
        one.membership.renew()
        two.membership.renew()

    monkeypatch.setattr(host.clock, "sleep", sleeping)
    two.membership.renew()
    with pytest.raises(
        NeedsQueueBrokerError, match=r"process 1 on two .* the work queues of that process are stored in"
    ):
        three.membership.require_shared_queues()


def test_members_that_ended_long_ago_are_forgotten(host: Host) -> None:
    one = host.process("one")
    one.table.leave(one.membership.id)
    host.clock.advance(31 * 24 * 3600)
    two = host.process("two")
    assert [member.id for member in two.table.all()] == [two.membership.id]
    assert two.table.time() == host.clock.now() > two.table.find(two.membership.id).until - 16 * MICROSECONDS


def test_a_process_elsewhere_has_ended_where_its_membership_has(host: Host) -> None:
    one, two = host.process("one"), host.process("two")
    theirs = Holders().new().split("/")
    elsewhere = "/".join([*theirs[:3], "0badcafe", *theirs[4:]])
    assert two.table.holder_state(elsewhere) == HolderState.RUNNING
    assert two.table.holder_state(elsewhere.replace(theirs[0], "stranger", 1)) == HolderState.UNKNOWN
    host.clock.advance(16.0)
    assert two.table.holder_state(elsewhere) == HolderState.ENDED
    one.scheduler.step()
    assert two.table.holder_state(elsewhere) == HolderState.RUNNING, "it has joined anew"


def test_what_batches_topics_is_where_the_broker_is_and_goes_elsewhere_without_it(tmp_path: Path) -> None:
    relay = {"orders": RelayRole(url="sqlite:///a")}
    serve = ServeSettings(relay=relay, batching={"orders": "o.batches", "a": "a.batches", "b": "b.batches"})
    with Node.open(Settings(data=str(tmp_path), serve=serve), create=True) as node:
        roles = NodeRoles(node)
        plain, with_broker = roles.groups(), roles.groups(broker=True)
    assert plain["batching orders"] == plain["relay orders"] == with_broker["relay orders"] == "orders"
    for other, own in (("a", "b"), ("b", "a")):
        assigned = assign({other: plain, own: with_broker}, {})
        assert {assigned[name] for name in ("broker", "batching a", "batching b")} == {own}
        assert assigned["batching orders"] == assigned["relay orders"] == other
    assert set(assign({"a": plain}, assigned).values()) == {"a"}


def test_a_broker_with_clients_stays_where_it_is_when_a_member_joins(tmp_path: Path) -> None:
    serve = ServeSettings(batching={name: f"{name}.batches" for name in "abc"}, producers=True)
    with Node.open(Settings(data=str(tmp_path), serve=serve), create=True) as node:
        roles = NodeRoles(node).groups(broker=True)
    for first, joined in (("a", "b"), ("b", "a")):
        alone = assign({first: roles}, {})
        assigned = assign({first: roles, joined: roles}, alone)
        assert assigned["broker"] == first
        assert joined in assigned.values()


names = st.sampled_from(["m1", "m2", "m3", "m4"])
roles = st.dictionaries(st.sampled_from([f"r{n}" for n in range(8)]), st.sampled_from(["g1", "g2", "g3"]))


@given(st.dictionaries(names, roles), st.dictionaries(st.sampled_from([f"r{n}" for n in range(9)]), names))
def test_assignment_gives_each_role_one_able_owner_and_is_stable(
    offers: dict[str, dict[str, str]], owners: dict[str, str]
) -> None:
    assigned = assign(offers, owners)
    assert assigned.keys() == {role for offered in offers.values() for role in offered}
    assert all(role in offers[member] for role, member in assigned.items())
    assert assign(offers, assigned) == assigned
    assert assign(dict(reversed(offers.items())), owners) == assigned, "members see the same, in whatever order"


@given(st.integers(1, 4), st.integers(0, 12), st.dictionaries(st.integers(0, 12).map("r{}".format), names))
def test_assignment_moves_as_few_roles_as_even_numbers_need(members: int, count: int, owners: dict[str, str]) -> None:
    offered = {f"r{n}": f"r{n}" for n in range(count)}
    offers = {f"m{n + 1}": offered for n in range(members)}
    assigned = assign(offers, owners)
    load = [list(assigned.values()).count(name) for name in offers]
    assert max(load) - min(load) <= 1
    before = [sum(owners.get(role) == name for role in offered) for name in offers]
    needed = sum(max(0, have - -(-count // members)) for have in before)
    moved = sum(owners[role] in offers and assigned[role] != owners[role] for role in offered if role in owners)
    assert moved <= needed + sum(have == -(-count // members) for have in before)


def test_commands_about_members_of_a_node_in_a_file_say_what_it_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Node.open(Settings(data=str(tmp_path)), create=True) as node:
        _ = node.databases.own, node.logs.store
    for command in (["ls"], ["info", "x"], ["drain", "x"]):
        assert run(["node", *command, "--data", str(tmp_path)]) == 2
        assert "node.database" in capsys.readouterr().err


def test_members_are_listed_and_drained_by_commands(
    host: Host, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    one = host.process("one")
    settle(one)
    monkeypatch.setattr(millstream.node.members.node_members.NodeMembers, "is_shared", True)
    monkeypatch.setattr(millstream.node.members.node_members.NodeMembers, "table", one.table)
    (tmp_path / "node").mkdir()
    (tmp_path / "node" / "millstream.toml").touch()

    def ask(*arguments: str) -> str:
        assert run(["node", *arguments, "--data", str(tmp_path / "node")]) == 0
        return capsys.readouterr().out

    member = one.membership.id
    assert ask("ls") == f"{member}  alive, last seen 0 s ago  1  batching a, batching b, producers, upkeep\n"
    for has_console in (False, True):
        if has_console:
            one.membership.listens("console", "127.0.0.1:8460")
            settle(one)
        assert run(["status", "--data", str(tmp_path / "node")]) in (0, 1)
        shown = capsys.readouterr().out
        assert f"member {member}  alive, last seen 0 s ago" in shown
        assert ("not monitored" in shown) != has_console, "the console of the member sends alarms, in another folder"
    assert "console    127.0.0.1:8460" in ask("info", member)
    assert json.loads(ask("ls", "--json"))["state"] == "alive"
    assert ask("drain", member) == f"{member} gives its roles up, and takes none\n"
    settle(one)
    assert ask("ls") == f"{member}  draining, last seen 0 s ago  1  no roles\n"
    assert "offers     upkeep" in ask("info", member)
    assert ask("drain", member, "--cancel") == f"{member} may take roles again\n"
    with Node.open(Settings(data=str(tmp_path / "node"))) as node:
        events = OperatorAuditLog(node.databases.own, node.clock).last(5)
    assert [(one.action, one.target) for one in events] == [
        ("cancel drain", f"member {member}"), ("drain", f"member {member}")
    ]  # fmt: skip
    assert run(["node", "drain", "nobody", "--data", str(tmp_path / "node")]) == 3
    one.membership.details = msgspec.structs.replace(one.membership.details, command=WORK, roles={})
    one.membership.renew()
    capsys.readouterr()
    assert run(["node", "drain", member, "--data", str(tmp_path / "node")]) == 2
    assert "has no roles to give up: to stop its workers, send SIGTERM to process 1 on one" in capsys.readouterr().err
    assert (json.loads(ask("ls", "--json"))["command"], json.loads(ask("ls", "--json"))["draining"]) == (WORK, False)
    assert "command    mill work" in ask("info", member)
    ask("drain", member, "--cancel")
    host.clock.advance(20.0)
    assert "lost, last seen 20 s ago" in ask("ls")
    one.table.leave(member)
    assert ask("ls") == "" and "ended 2023-" in ask("ls", "--all")


ERRORS = [
    (CasUnavailableError(), True),
    (sa.exc.OperationalError("SELECT 1", None, OSError("connection refused")), True),
    (sa.exc.TimeoutError("all connections of the pool are in use"), True),
    (OSError(errno.ENOSPC, "No space left on device"), True),
    (LeaseLostError("x"), True),
    (FencedError("x"), True),
    (SessionTakenError("x"), True),
    (ObservationDelayedError("x"), True),
    (ObservationBlockedError("x"), False),
    (CasDamagedError(), False),
    (FileNotFoundError(errno.ENOENT, "No such file or directory"), False),
    (ValueError("a fault of ours"), False),
]
"""Errors of a role, and whether they may pass."""


@pytest.mark.parametrize(("error", "is_lost"), ERRORS)
def test_a_role_begins_anew_where_what_it_needs_was_away(error: Exception, is_lost: bool) -> None:
    def fail() -> None:
        raise error

    failed: list[Exception] = []
    role = RoleRun("batching a", failed.append, fence=contextlib.nullcontext)
    role.add("batching a", fail)
    role.start().end()
    assert role.is_lost == is_lost and failed == ([] if is_lost else [error])


def test_a_role_of_one_process_goes_on_after_an_error_that_may_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.cli.role_run._RETRY_SECONDS", 0.0)
    suspended, seen = dict[str, str](), list[str]()
    left = [error for error, passes in ERRORS if passes]

    def work() -> None:
        seen.append(suspended.get("cosignatures", ""))
        if left:
            raise left.pop()

    failed: list[Exception] = []
    role = RoleRun("cosignatures", failed.append, suspended=suspended)
    role.add("cosignatures", work)
    role.start()
    until(lambda: not left and len(seen) == 9, "the end of the work")
    role.end()
    assert not failed and not suspended and not role.is_lost
    assert seen[0] == "" and all(seen[1:]), "it is shown as suspended while it is tried again"


def test_a_role_that_works_for_a_while_after_an_error_is_not_shown_as_suspended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("millstream.cli.role_run._RETRY_SECONDS", 0.0)
    monkeypatch.setattr("millstream.cli.role_run._STEADY_SECONDS", 0.0)
    suspended, tries = dict[str, str](), list[str]()

    def work() -> None:
        tries.append(suspended.get("cosignatures", ""))
        if len(tries) == 1:
            raise CasUnavailableError
        role.stopping.wait()

    role = RoleRun("cosignatures", print, suspended=suspended)
    role.add("cosignatures", work)
    role.start()
    until(lambda: len(tries) == 2 and not suspended, "the role working again")
    role.end()


def test_a_role_is_shown_as_suspended_until_what_it_works_with_is_open_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millstream.cli.role_run._RETRY_SECONDS", 0.0)
    suspended, seen = dict[str, str](), list[str]()
    role = RoleRun("batching a", print, suspended=suspended)

    @contextlib.contextmanager
    def opened() -> Iterator[str]:
        seen.append(suspended.get("batching a", ""))
        if len(seen) < 3:
            raise CasUnavailableError
        yield "open"

    def work(_: str) -> None:
        seen.append(suspended.get("batching a", ""))
        role.stop()

    with RetriedResource(role, opened, (), lambda: None) as resource:
        resource.use(work)
    assert seen[0] == "" and all(seen[1:]) and not suspended


def test_a_role_is_shown_as_suspended_while_what_it_works_with_is_open_and_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("millstream.cli.role_run._RETRY_SECONDS", 0.0)
    suspended, seen = dict[str, str](), list[str]()
    role = RoleRun("batching a", print, suspended=suspended)

    def work(_: object) -> None:
        seen.append(suspended.get("batching a", ""))
        if len(seen) < 3:
            raise CasUnavailableError
        role.stop()

    with RetriedResource(role, contextlib.nullcontext, (), lambda: None) as resource:
        resource.use(work)
    assert seen[0] == "" and all(seen[1:]) and not suspended


def test_a_role_goes_on_where_no_thread_can_be_started_to_show_that(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    suspended = {"batching a": "why"}
    role = RoleRun("batching a", print, suspended=suspended)
    monkeypatch.setattr(threading.Timer, "start", refuse)
    with role.resumed_later():
        assert not suspended


@pytest.mark.parametrize("error", [error for error, passes in ERRORS if not passes])
def test_a_role_of_one_process_fails_after_an_error_that_does_not_pass(error: Exception) -> None:
    def fail() -> None:
        raise error

    failed: list[Exception] = []
    role = RoleRun("cosignatures", failed.append)
    role.add("cosignatures", fail)
    role.start().end()
    assert failed == [error]


def test_a_suspended_role_is_shown_with_its_error_until_it_ends() -> None:
    suspended = dict[str, str]()

    def fail() -> None:
        raise sa.exc.OperationalError("SELECT secret", {"a": "secret"}, sqlite3.OperationalError("database is locked"))

    role = RoleRun("cosignatures", print, suspended=suspended)
    role.add("cosignatures", fail)
    role.start()
    until(lambda: suspended, "the suspension")
    assert suspended == {"cosignatures": "the database failed (database is locked)"}
    role.end()
    assert not suspended
