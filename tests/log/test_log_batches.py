"""How blocks become batches: small ones are joined, large ones are cut, each is decoded once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from millstream.log import Batch, Log, LogSpec, open_store
from millstream.log.block import Block


@pytest.fixture
def log() -> Log:
    return open_store("memory://").log(LogSpec("weather"))


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The first ids of the blocks that are decoded, each time one is."""
    first_ids: list[int] = []
    decode = Block.decode

    def watched(block: Block, columns: object = None) -> object:
        first_ids.append(block.header.first_id)
        return decode(block, columns)  # type: ignore[arg-type]

    monkeypatch.setattr(Block, "decode", watched)
    yield first_ids


def ids(batches: list[Batch]) -> list[tuple[int, int]]:
    return [(batch.first_id, batch.last_id) for batch in batches]


def test_messages_that_came_one_by_one_are_read_together(log: Log) -> None:
    with log.writer() as writer:
        for number in range(100):
            writer.append([b"%d" % number])
    (batch,) = log.read()
    assert [m.body for m in batch] == [b"%d" % number for number in range(100)]
    assert batch.arrow.num_rows == 100


def test_a_large_block_is_not_copied_together_with_its_neighbours(log: Log) -> None:
    with log.writer() as writer:
        for count in (1, 5000, 1, 1):
            writer.append([b"x"] * count)
        writer.append([bytes(200_000)])
    assert ids(list(log.read())) == [(1, 1), (2, 5001), (5002, 5003), (5004, 5004)]


def test_a_batch_has_no_more_messages_than_asked_for(log: Log) -> None:
    with log.writer() as writer:
        for count in (7, 2, 3, 1):
            writer.append([b"x"] * count)
    with log.reader("worker") as reader:
        assert ids(list(reader.batches(5))) == [(1, 5), (6, 7), (8, 12), (13, 13)]


def test_a_block_that_is_cut_into_many_batches_is_decoded_once(log: Log, decoded: list[int]) -> None:
    with log.writer() as writer:
        writer.append([b"%d" % number for number in range(1000)])
    with log.reader("worker") as reader:
        bodies = [m.body for batch in reader.batches(3) for m in batch]
    assert bodies == [b"%d" % number for number in range(1000)]
    assert decoded == [1]


def test_a_batch_is_decoded_when_it_is_asked_for(log: Log, decoded: list[int]) -> None:
    with log.writer() as writer:
        writer.append([b"a", b"b"])
    (batch,) = log.read()
    assert (len(batch), list(batch.ids), decoded) == (2, [1, 2], [])
    assert repr(batch) == "<Batch of 'weather', ids 1 to 2>"
    assert batch.arrow is batch.arrow
    assert decoded == [1]
