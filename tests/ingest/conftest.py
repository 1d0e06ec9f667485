"""A real broker, and an ingest from it that runs in this process until something has come."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from millstream.core.clock import SystemClock
from millstream.core.documents import FileDocument
from millstream.core.metric_collection.collector import MetricsCollector
from millstream.ingest import Receipts, parse_broker, payload_parser
from millstream.ingest.options import SubscribeOptions
from millstream.log import LogSpec, open_store
from millstream.testing import services
from suite.missing import started

DEADLINE = 60.0


@pytest.fixture(scope="session")
def mosquitto():
    """A broker that all tests share; each has topics and a client of its own."""
    with started(lambda: services.running("mosquitto"), driver="paho", extra="mqtt") as server:
        yield server


@pytest.fixture
def root(tmp_path):
    """The first level of this test's topics: the broker may be everybody's."""
    return f"{tmp_path.name}-{os.getpid()}"


@pytest.fixture
def careful_mosquitto():
    """A broker of one's own, that saves every change and may be killed."""
    with started(lambda: services.private("mosquitto-careful"), driver="paho", extra="mqtt") as server:
        yield server


class Harness:
    """An ingest into logs in *folder*, again and again in the same session."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url, self.clock = folder, url, SystemClock()
        self.said: list[str] = []
        self.figures = MetricsCollector()
        self.store = open_store(f"sqlite:///{folder / 'log.db'}")
        self.log = self.store.log(LogSpec("in"))
        self.rejects = self.store.log(LogSpec("in.rejects"))

    def run(self, until, *topics, qos=1, shape=None, client="", seconds=DEADLINE, **options):
        """Ingest until *until* says so, or for so many *seconds*."""
        from millstream.ingest.connection import MqttConnection
        from millstream.ingest.loop import MqttIngest

        wanted = SubscribeOptions(topics=topics, qos=qos, **options)
        end = self.clock.monotonic() + seconds
        with self.log.writer() as records, self.rejects.writer() as rejects:
            receipts = Receipts(
                FileDocument(self.folder / "session.json"),
                [self.log, self.rejects],
                client=client,
                make_name=lambda: f"test-{os.getpid()}-{self.folder.name}",
            )
            connection = MqttConnection(parse_broker(self.url), receipts.client, wanted, self.clock)
            loop = MqttIngest(
                connection,
                receipts,
                wanted,
                shape=shape or payload_parser("auto"),
                records=records,
                rejects=rejects,
                clock=self.clock,
                metrics=self.figures,
                say=self.said.append,
            )
            loop.run(lambda: until() or self.clock.monotonic() > end)
        return receipts

    def subscribe(self, *topics, **options):
        """Make the session, and leave it."""
        return self.run(lambda: bool(self.said), *topics, **options)

    def during(self, action, done, *topics, **options):
        """Ingest; do *action* once the broker has let us in; go on until *done*."""
        acted = []

        def until():
            if self.said and not acted:
                acted.append(action())
            return bool(acted) and done()

        return self.run(until, *topics, **options)

    def take(self, count, *topics, **options):
        """Ingest until so many messages were taken, counting redelivered ones."""
        before = self.taken
        receipts = self.run(lambda: self.taken >= before + count, *topics, **options)
        assert self.taken >= before + count, f"only {self.taken - before} of {count} messages came"
        return receipts

    @property
    def taken(self):
        return self.figures.figures().by_label("ingest_messages_total", "").get("", 0)

    def records(self):
        return [message for batch in self.log.read() for message in batch]

    def aside(self):
        return [message for batch in self.rejects.read() for message in batch]


@pytest.fixture
def harness(tmp_path, mosquitto):
    found = Harness(tmp_path, mosquitto.url)
    yield found
    found.store.close()
