"""The largest ids and the largest messages, where blocks are rows."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from millstream.core.clock import SystemClock
from millstream.log import LogSpec, MessageTooLargeError, open_store
from millstream.log.backend import Backend, Commit
from millstream.log.memory import MemoryBackend
from millstream.log.mysql import MysqlBackend, parse_place
from millstream.log.sqlite import SqliteBackend
from millstream.testing.log_backends import NAME, block

LAST = 2**63 - 1


@pytest.fixture(params=["memory", "sqlite", "mysql"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    clock = SystemClock()
    kinds: dict[str, Callable[[], Backend]] = {
        "memory": lambda: MemoryBackend(clock),
        "sqlite": lambda: SqliteBackend(tmp_path / "log.db", clock),
        "mysql": lambda: MysqlBackend(parse_place(request.getfixturevalue("database")), clock),
    }
    return kinds[request.param]()


def test_ids_go_up_to_the_largest_there_is(backend: Backend) -> None:
    backend.create(NAME)
    assert backend.take_lease(NAME, epoch=0, holder=b"first", until=10)
    backend.commit(NAME, Commit(1, 0, LAST, 5, [block(LAST - 1, [b"a", b"b"])]))
    assert backend.head(NAME).last_id == LAST
    assert [(b.first_id, b.last_id) for b in backend.read(NAME, LAST, LAST, max_bytes=1)] == [(LAST - 1, LAST)]
    backend.close()


def test_the_largest_message_comes_back_and_a_larger_one_is_refused(tmp_path: Path) -> None:
    body = random.Random(1).randbytes(64 << 20)
    for url in (f"sqlite:///{tmp_path}/log.db", f"segments:///{tmp_path}/segments"):
        with open_store(url) as store:
            log = store.log(LogSpec(NAME))
            with log.writer() as writer:
                writer.append([b"before", body])
                with pytest.raises(MessageTooLargeError, match="append a reference"):
                    writer.append([body + b"x"])
            (message,) = (message for batch in log.read(2) for message in batch)
            assert message.body == body
