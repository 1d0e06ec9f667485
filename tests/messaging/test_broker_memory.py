"""A broker in use for long needs no more memory, and no more journal, than one in use for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.log import open_store
from millstream.messaging.broker.limits import Limits
from millstream.messaging.broker.storage.journal import HELD, JOURNAL
from millstream.messaging.client import Message, Options, Producer, SimpleConsumer
from millstream.testing.brokers import BrokerProcess
from suite.sizes import sized

BATCH = 200
SNAPSHOT_AFTER = 50
PATIENT = Options(request_timeout=60)


@pytest.fixture
def process(tmp_path: Path) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(f"segments:///{tmp_path / 'logs'}?durability=os", Limits(snapshot_after=SNAPSHOT_AFTER))
    broker.start()
    yield broker
    broker.kill()


def resident(pid: int) -> int:
    """The bytes of memory that the process *pid* has of its own."""
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("RssAnon:"))
    return int(line.split()[1]) * 1024


async def pass_on(broker: BrokerProcess, count: int) -> None:
    """Send *count* messages and have a group do them; of every batch one message comes twice."""
    place = str(broker.place)
    async with (
        Producer(place, ["t"], options=PATIENT) as producer,
        SimpleConsumer(place, "g", {"t": "*"}, options=PATIENT, await_duration=5) as consumer,
    ):
        left = count
        while left:
            await producer.send_many([Message("t", b"x" * 100, keys=("key",)) for _ in range(min(BATCH, left))])
            left -= min(BATCH, left)
            done = 0
            while done < min(BATCH, count):
                first, *others = await consumer.receive(BATCH, invisible=60)
                again = await consumer.change_invisible_duration(first, 60)
                await consumer.ack(again, *others)
                done += 1 + len(others)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_memory_and_journal_stay_as_they_are_over_many_messages(process: BrokerProcess, tmp_path: Path) -> None:
    process.create_topic("t")
    warm, more = sized(ci=(10_000, 20_000), long=(250_000, 750_000))
    asyncio.run(pass_on(process, warm))  # at the long size the ids that are remembered are full by then
    before = resident(process.pid)
    asyncio.run(pass_on(process, more))
    grown = resident(process.pid) - before
    process.kill()
    assert grown < 24 << 20, f"{grown / 2**20:.0f} MiB more after {more:,} messages more, of {before / 2**20:.0f}"
    with open_store(f"segments:///{tmp_path / 'logs'}", read_only=True) as store:
        journal, held = store.log(JOURNAL, create=False), store.log(HELD, create=False)
        assert journal.last_id - journal.first_id < 10 * SNAPSHOT_AFTER
        assert journal.first_id > 1
        assert journal.last_id > 3 * more // BATCH
        assert held.last_id == 0
