"""A reader whose store did not answer for long goes on, and is replaced by newer readers only."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millstream.core.clock import VirtualClock
from millstream.log import FencedError, Log, LogSpec, LogStore, StorageUnavailableError
from millstream.log.backends.memory import MemoryBackend


class Outage(MemoryBackend):
    """A backend that does not answer the next ``failures`` writes of states; it stores those of ``stored``."""

    def __init__(self) -> None:
        super().__init__(VirtualClock())
        self.failures, self.stored = 0, 0

    def put_state(self, log: str, key: str, value: bytes, *, version: int) -> bool:
        if self.failures:
            self.failures -= 1
            if self.stored:
                self.stored -= 1
                super().put_state(log, key, value, version=version)
            raise StorageUnavailableError("it does not answer")
        return super().put_state(log, key, value, version=version)


@pytest.fixture
def backend() -> Outage:
    return Outage()


@pytest.fixture
def log(backend: Outage) -> Iterator[Log]:
    with LogStore(backend, VirtualClock()) as store:
        log = store.log(LogSpec("weather"))
        with log.writer() as writer:
            writer.append([b"%d" % number for number in range(9)])
        yield log


@pytest.mark.parametrize("stored", [0, 1])
def test_a_reader_goes_on_after_an_outage_whether_or_not_its_write_was_stored(
    backend: Outage, log: Log, stored: int
) -> None:
    with log.reader("me") as reader:
        backend.failures, backend.stored = 3, stored
        for number in (1, 2, 3):
            reader.ack(number)
            with pytest.raises(StorageUnavailableError):
                reader.flush()
        reader.ack(4)
        reader.flush()
        reader.ack(5)
    with log.reader("me") as reader:
        assert reader.pointer == 5


@pytest.mark.parametrize("stored", [0, 1])
def test_a_reader_that_was_replaced_during_an_outage_is_told(backend: Outage, log: Log, stored: int) -> None:
    slow = log.reader("me")
    backend.failures, backend.stored = 1, stored
    slow.ack(1)
    with pytest.raises(StorageUnavailableError):
        slow.flush()
    with log.reader("me") as newer:
        assert newer.pointer == stored
        with pytest.raises(FencedError):
            slow.flush()
        newer.ack(2)
