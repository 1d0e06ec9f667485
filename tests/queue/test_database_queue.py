"""A queue whose tasks are rows, with a broker of notices in this process: what was leased is handed out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from millstream.core.clock import VirtualClock
from millstream.core.sql import SqlBusyError, SqlDatabase
from millstream.queue.database_queue import DatabaseWorkQueue, read_notice
from millstream.queue.protocol import QueueError
from millstream.queue.task_rows import TaskRows


class Notice(msgspec.Struct):
    ids: Sequence[int]


class Notices:
    """The broker; it refuses what is sent while it is *broken*."""

    def __init__(self) -> None:
        self.waiting: list[Notice] = []
        self.sent: list[Sequence[int]] = []
        self.broken = False

    def send(self, ids: Sequence[int], delays: Mapping[int, float] | None = None) -> Sequence[int]:
        if self.broken:
            raise QueueError("the broker refuses")
        self.sent.append(list(ids))
        return ids

    def receive(self, count: int) -> Sequence[Notice]:
        received, self.waiting = self.waiting, []
        return received

    def settle(self, notices: Sequence[Notice]) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.fixture
def notices() -> Notices:
    return Notices()


@pytest.fixture
def queue(tmp_path: Path, notices: Notices) -> Iterator[DatabaseWorkQueue]:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'tasks.db'}")
    with DatabaseWorkQueue(notices, engine, "tasks", VirtualClock()) as queue:
        yield queue
    engine.dispose()


def test_what_was_leased_is_handed_out_where_the_notice_of_an_early_task_cannot_be_sent(
    queue: DatabaseWorkQueue, notices: Notices
) -> None:
    ids = [*queue.put([b"due"]), *queue.put([b"early"], delay=60)]
    notices.waiting, notices.broken = [Notice(ids)], True
    assert [lease.body for lease in queue.lease(2, visibility=600)] == [b"due"]
    with pytest.raises(QueueError):
        queue.lease(2, visibility=600)
    notices.broken = False
    assert queue.lease(2, visibility=600) == []
    assert notices.sent[-1] == ids[1:]


def test_what_was_leased_is_handed_out_where_the_notice_of_an_overlooked_task_cannot_be_sent(
    queue: DatabaseWorkQueue, notices: Notices
) -> None:
    ids = queue.put([b"told"])
    unconfirmed, notices.send = notices.send, lambda ids, delays=None: []  # type: ignore[method-assign]
    queue.put([b"overlooked"])
    notices.send = unconfirmed  # type: ignore[method-assign]
    notices.waiting, notices.broken = [Notice(ids)], True
    assert [lease.body for lease in queue.lease(2, visibility=600)] == [b"told", b"overlooked"]


@pytest.mark.parametrize("body", [b"[99999999999999999999]", b"[0]", b"[1.5]", str([7] * 101).encode(), b"{", b"\xff"])
def test_a_message_that_another_program_sent_is_no_notice(body: bytes) -> None:
    assert read_notice(body) == []


def test_tasks_are_put_though_the_database_goes_away_after_that(
    queue: DatabaseWorkQueue, notices: Notices, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_ids: Sequence[int]) -> None:
        raise SqlBusyError("the database does not answer")

    monkeypatch.setattr(TaskRows, "noticed", lambda _self, ids: away(ids))
    (task,) = queue.put([b"once"])
    assert notices.sent == [[task]]
    notices.waiting = [Notice([task])]
    (lease,) = queue.lease(2, visibility=600)
    assert lease.body == b"once"


def test_a_lease_whose_reply_was_lost_is_that_of_the_caller(
    queue: DatabaseWorkQueue, notices: Notices, monkeypatch: pytest.MonkeyPatch
) -> None:
    notices.waiting = [Notice(queue.put([b"a", b"b"]))]
    write = SqlDatabase.write

    def twice(self: SqlDatabase, transaction: Callable[[sa.Connection, int], Any]) -> Any:
        write(self, transaction)
        return write(self, transaction)

    with monkeypatch.context() as patch:
        patch.setattr(SqlDatabase, "write", twice)
        leases = queue.lease(2, visibility=600)
    assert [(lease.body, lease.attempts) for lease in leases] == [(b"a", 1), (b"b", 1)]
    queue.ack(leases)
    assert queue.depth().open == 0
