"""A damaged block does not hide that messages are not read or batched: the verdict names it, and who is behind."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import pytest

from millstream.batching.settings import BatchingSettings
from millstream.core.amounts import Duration
from millstream.core.clock import MICROSECONDS, VirtualClock
from millstream.core.message import Message
from millstream.log import LogSpec
from millstream.node import Node
from millstream.settings import Settings
from millstream.settings.serving import ServeSettings
from millstream.status.node_view import NodeView
from millstream.status.poller import StatusPoller

CORRUPT = "UPDATE blocks_{} SET data = zeroblob(length(data)) WHERE first_id = 2"
MISSING = "DELETE FROM blocks_{} WHERE first_id = 2"


def damage(folder: Path, statement: str) -> None:
    with sqlite3.connect(folder / "log.db") as database:
        ((number,),) = database.execute("SELECT number FROM logs WHERE name = 'in'").fetchall()
        database.execute(statement.format(number))
    database.close()


@pytest.mark.parametrize(
    ("statements", "first", "words"),
    [
        ([CORRUPT], 1, "block of log 'in' that begins at id 2 is damaged"),
        ([MISSING], 2, "ids? 2 .*of log 'in' are missing"),
        ([CORRUPT, MISSING.replace("2", "3")], 1, "block of log 'in' that begins at id 2 is damaged"),
        ([MISSING, CORRUPT.replace("2", "3")], 2, "ids? 2 .*of log 'in' are missing"),
    ],
    ids=["corrupt", "missing", "corrupt and missing", "missing and corrupt"],
)
def test_who_stops_at_a_damaged_block_is_behind(tmp_path: Path, statements: list[str], first: int, words: str) -> None:
    """The block of the first unread message; where the store lost it, the time of the next block counts."""
    clock, received = VirtualClock(), list[int]()
    batching = BatchingSettings(Duration(MICROSECONDS), Duration(0))
    settings = Settings(data=str(tmp_path), batching=batching, serve=ServeSettings(batching={"in": "out"}))
    with Node.open(settings, clock, create=True) as node:
        log = node.logs.store.log(LogSpec("in"))
        with log.writer() as writer:
            for number in range(3):
                received.append(clock.now())
                writer.append([Message(b"x", key=str(number), source="pump", event_time=clock.now())])
                clock.advance(60)
        log.set_pointer("reader", 1)
        node.logs.store.log(LogSpec("out", kind="batches"))
        for statement in statements:
            damage(tmp_path, statement)
        clock.advance(2 * 3600)
        verdict = StatusPoller(NodeView(node)).verdict()
    found = {one.kind: one for one in verdict.issues}
    assert found["consumer-behind"].since == received[first]
    assert (found["consumer-behind"].count, found["not-batched"].count) == (2, 3)
    assert re.fullmatch(f"unread messages of in cannot be read: .*{words}.*", found["trouble"].what)
