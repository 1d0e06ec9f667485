"""The largest ids and the largest messages, where blocks are rows."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from millstream.core.clock import SystemClock
from millstream.log import IdRange, LogInputError, LogSpec, MessageTooLargeError, open_store
from millstream.log.backend import Backend, Commit
from millstream.log.backends.memory import MemoryBackend
from millstream.log.backends.mysql import MysqlBackend, parse_address
from millstream.log.backends.nerve.address import parse_nerve
from millstream.log.backends.nerve.backend import NerveBackend
from millstream.log.backends.sqlite.backend import SqliteBackend
from millstream.testing.log_backends import NAME, block

LAST = 2**63 - 1


@pytest.fixture(params=["memory", "sqlite", "mysql"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    clock = SystemClock()
    kinds: dict[str, Callable[[], Backend]] = {
        "memory": lambda: MemoryBackend(clock),
        "sqlite": lambda: SqliteBackend(tmp_path / "log.db", clock),
        "mysql": lambda: MysqlBackend(parse_address(request.getfixturevalue("database")), clock),
    }
    return kinds[request.param]()


def test_ids_go_up_to_the_largest_there_is(backend: Backend) -> None:
    backend.create(NAME)
    assert backend.take_lease(NAME, epoch=0, holder=b"first", until=10)
    backend.commit(
        NAME, Commit(epoch=1, previous_id=0, last_id=LAST, received_at=5, blocks=[block(LAST - 1, [b"a", b"b"])])
    )
    assert backend.head(NAME).last_id == LAST
    assert [(b.first_id, b.last_id) for b in backend.read(NAME, LAST, LAST, max_bytes=1)] == [(LAST - 1, LAST)]
    backend.close()


@pytest.mark.parametrize("kind", ["memory", "sqlite", "segments", "mysql", "postgresql", "nerve"])
def test_a_log_is_written_up_to_the_largest_id_and_is_full_then(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    urls: dict[str, Callable[[], str]] = {
        "memory": lambda: "memory://",
        "mysql": lambda: request.getfixturevalue("database"),
        "postgresql": lambda: request.getfixturevalue("postgres_database"),
        "nerve": lambda: f"{request.getfixturevalue('queues')}?layout=nerve&shards=4",
    }
    with open_store(urls.get(kind, lambda: f"{kind}:///{tmp_path / 'log'}")()) as store:
        log = store.log(LogSpec(NAME), first_id=LAST - 2)
        with log.writer() as writer:
            assert writer.append([b"a", b"b"]) == IdRange(LAST - 2, LAST - 1)
        with log.writer() as writer:
            assert writer.send(b"c") == LAST
            with pytest.raises(LogInputError, match="is full, because there is no id after"):
                writer.append([b"d"])
        expected = [(LAST - 2, b"a"), (LAST - 1, b"b"), (LAST, b"c")]
        assert [pair for batch in log.read() for pair in batch.bodies()] == expected
        with log.reader("last") as reader:
            gap, batch = reader.batches()
            assert (gap.first_id, gap.last_id) == (1, LAST - 3)
            reader.ack(batch.ids)
            assert reader.pointer == LAST
        assert list(log.reader("last").batches()) == []
        assert (log.first_id, log.last_id, log.info().count, log.verify().ok) == (LAST - 2, LAST, 3, True)


def test_a_queue_takes_no_ids_without_messages(queues: str) -> None:
    place = parse_nerve(f"{queues}?layout=nerve&shards=4")
    backend = NerveBackend(place, SystemClock())
    backend.create(NAME)
    assert backend.take_lease(NAME, epoch=0, holder=b"first", until=2**62)
    with pytest.raises(LogInputError, match=f"2 messages do not match the ids 1 to {LAST}"):
        backend.commit(
            NAME, Commit(epoch=1, previous_id=0, last_id=LAST, received_at=5, blocks=[block(LAST - 1, [b"a", b"b"])])
        )
    assert backend.head(NAME).last_id == 0
    backend.close()


def test_the_largest_message_comes_back_and_a_larger_one_is_refused(tmp_path: Path) -> None:
    body = random.Random(1).randbytes(64 << 20)
    for url in (f"sqlite:///{tmp_path}/log.db", f"segments:///{tmp_path}/segments"):
        with open_store(url) as store:
            log = store.log(LogSpec(NAME))
            with log.writer() as writer:
                writer.append([b"before", body])
                with pytest.raises(MessageTooLargeError, match="append only the item's id"):
                    writer.append([body + b"x"])
            (message,) = (message for batch in log.read(2) for message in batch)
            assert message.body == body
