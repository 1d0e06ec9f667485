"""One Spark session for all tests of the pipeline, whose tasks die and are tried again, and records to run it on."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from millstream.batching import BatchConfig
from millstream.core.clock import SystemClock
from millstream.log import LogSpec, Message, open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RULES = BatchConfig(window=50, max_delay=20)

Untidy = Callable[..., list[Message]]
WriteLog = Callable[..., list[Message]]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from millstream.pipeline.session import SparkOptions, spark_session
    from millstream.testing.mortal_tasks import MORTAL
    from millstream.testing.swift import ENVIRONMENT

    for name, value in ENVIRONMENT.items():  # tasks have the environment with which the session began
        os.environ.setdefault(name, value)
    options = SparkOptions(master="local[2,3]", confs=MORTAL)
    with spark_session(tmp_path_factory.mktemp("spark"), options) as session:
        yield session


@pytest.fixture(scope="session")
def rules() -> BatchConfig:
    """The rules that the untidy messages are untidy by."""
    return RULES


@pytest.fixture(scope="session")
def untidy() -> Untidy:
    """Builds messages of a few sources in no order: some later than allowed, some from the future, some sent twice,
    the second time with the same or with another body; some without a key."""

    def build(seed: int, count: int, *, sources: int = 4, late: float = 0.05, twice: float = 0.05) -> list[Message]:
        draw = random.Random(seed)
        messages = []
        for number in range(count):
            event_time = 1000 + draw.randrange(count * 4)
            delay = draw.randrange(RULES.max_delay + 1)
            if draw.random() < late:
                delay = draw.choice([1, -1]) * (RULES.max_delay + 1 + draw.randrange(50))
            source, key = f"station-{draw.randrange(sources)}", draw.choice(["key-0", "key-1", "key-2", "key-3", ""])
            body = b"%d" % number
            messages.append(Message(body, key, source, event_time, event_time + delay))
            if draw.random() < twice:
                again = event_time + draw.randrange(RULES.max_delay + 1)
                messages.append(Message(draw.choice([body, body + b"!"]), key, source, event_time, again))
        draw.shuffle(messages)
        return messages

    return build


@pytest.fixture(scope="session")
def write_log() -> WriteLog:
    """Writes messages into a log of small blocks, and returns them as they are read back."""

    def write(url: str, name: str, messages: Sequence[Message], *, block_messages: int = 97) -> list[Message]:
        with open_store(url, clock=SystemClock()) as store:
            log = store.log(LogSpec(name, block_messages=block_messages))
            with log.writer() as writer:
                for start in range(0, len(messages), 1000):
                    writer.append(messages[start : start + 1000])
            return [message for batch in log.read() for message in batch]

    return write


@pytest.fixture
def log_url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'log.db'}"
