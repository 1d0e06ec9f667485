"""The objects of a log in a bucket are what docs/formats/object-log.md says, read by hand."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from concurrent.futures import ThreadPoolExecutor

import pytest

from millstream.core.clock import VirtualClock
from millstream.log import LogSpec, LogStore
from millstream.log.backends.objects.backend import ObjectsBackend
from millstream.log.backends.objects.commit_chain import ChainEnd, check_link
from millstream.log.backends.objects.commit_object import BlockEntry, CommitHeader, CommitObject
from millstream.log.backends.objects.commit_reader import BlockCache, CommitReader
from millstream.log.backends.objects.names import LogNames
from millstream.log.backends.objects.probe import RECORD
from millstream.log.block_header import read_header
from millstream.log.errors import DamagedLogError
from millstream.testing.object_bucket import MemoryBucket


def written() -> dict[str, bytes]:
    """The objects of a log that was written twice, trimmed, and read by a consumer."""
    bucket = MemoryBucket(VirtualClock())
    bucket.put(RECORD, b"{}")
    with LogStore(ObjectsBackend(bucket, VirtualClock()), VirtualClock()) as store:
        log = store.log(LogSpec("a.b"))
        with log.writer("importer") as writer:
            writer.append([b"one", b"two"], sequence=7)
            writer.append([b"three"], sequence=8)
        before = dict(bucket.objects)
        log.trim(3)
        with log.reader("me") as reader:
            for batch in reader.batches():
                reader.ack(batch.ids)
        return {**before, **bucket.objects}


def number(count: int) -> str:
    return f"{count:016}"


def test_a_commit_is_a_prefix_a_head_and_blocks() -> None:
    objects = written()
    previous = hashlib.sha256(objects["logs/a.b"]).digest()
    expected = [(1, True, 0, 0), (2, False, 0, 2), (3, False, 2, 3)]
    for count, is_fence, previous_id, last_id in expected:
        data = objects[f"data/a.b/commits/{number(count)}"]
        assert (data[:4], struct.unpack_from("<HH", data, 4)) == (b"MSCO", (1, 0))
        (length,) = struct.unpack_from("<I", data, 8)
        encoded = data[44 : 44 + length]
        assert hashlib.sha256(encoded).digest() == data[12:44]
        head = json.loads(encoded)
        assert (head["log"], head["number"], head["epoch"], head["is_fence"]) == ("a.b", count, 1, is_fence)
        assert (head["previous_id"], head["last_id"]) == (previous_id, last_id)
        assert base64.b64decode(head["previous"]) == previous
        assert (head["producer"], head["sequence"]) == (("", None) if is_fence else ("importer", count + 5))
        for first_id, last, offset, size, *times, sha256 in head["blocks"]:
            block = data[44 + length + offset :][:size]
            header = read_header(block)
            assert (first_id, last) == (header.first_id, header.last_id)
            assert times[2:] == [header.min_received_at, header.max_received_at]
            assert hashlib.sha256(block).digest() == base64.b64decode(sha256)
        assert len(data) == 44 + length + sum(block[3] for block in head["blocks"])
        previous = hashlib.sha256(encoded).digest()


def test_the_small_objects_are_json_of_the_stated_fields() -> None:
    objects = written()
    assert json.loads(objects["logs/a.b"]).keys() == {"format", "log", "first_id", "kind", "nonce"}
    assert json.loads(objects[f"data/a.b/epochs/{number(1)}"]).keys() == {"holder", "until", "nonce"}
    assert json.loads(objects[f"data/a.b/lease/{number(1)}"])["holder"] == ""
    layout = json.loads(objects[f"data/a.b/layout/{number(1)}"])
    assert (layout["version"], layout["start"], layout["last_id"], layout["epoch"]) == (1, 3, 2, 1)
    assert layout["producers"] == {"importer": [7, 1]}
    assert json.loads(objects[f"data/a.b/states/consumer%2Fme/{number(1)}"]).keys() == {"value", "nonce"}


def test_objects_of_others_among_the_commits_are_left_alone() -> None:
    bucket, clock = MemoryBucket(VirtualClock()), VirtualClock()
    bucket.put(RECORD, b"{}")
    foreign = [f"data/a/commits/{name}" for name in (".keep", "0000000000000001.bak", "commit", number(1) + "0")]
    with LogStore(ObjectsBackend(bucket, clock), clock) as store:
        with store.log(LogSpec("a")).writer() as writer:
            writer.append([b"one"])
        for name in foreign:
            bucket.put(name, b"x")
    with LogStore(ObjectsBackend(bucket, clock), clock) as store:
        log = store.log(LogSpec("a"))
        with log.writer() as writer:
            writer.append([b"two"])
            writer.append([b"three"])
        assert [message.body for batch in log.read() for message in batch] == [b"one", b"two", b"three"]
        log.trim(3)
        assert [message.body for batch in log.read(3) for message in batch] == [b"three"]
    assert set(foreign) <= set(bucket.objects)
    assert f"data/a/commits/{number(1)}" not in bucket.objects


def test_pages_of_objects_of_others_end_neither_listings_nor_sweeps() -> None:
    bucket, clock = MemoryBucket(VirtualClock()), VirtualClock()
    bucket.put(RECORD, b"{}")
    for count in range(2):
        for turn in range(1000):
            bucket.put(f"data/a/commits/{number(count)}.bak{turn}", b"x")
    with LogStore(ObjectsBackend(bucket, clock), clock) as store:
        log = store.log(LogSpec("a"))
        with log.writer() as writer:
            for body in (b"one", b"two", b"three"):
                writer.append([body])
        with ThreadPoolExecutor(1) as pool:
            reader = CommitReader(bucket, LogNames("a"), BlockCache(), pool)
            commits = sum(name.removeprefix("data/a/commits/").isdigit() for name in bucket.objects)
            assert reader.count_listed(1) == reader.last_listed(1) == commits > 2
        log.trim(3)
    assert f"data/a/commits/{number(1)}" not in bucket.objects
    assert f"data/a/commits/{number(1)}.bak0" in bucket.objects


@pytest.mark.parametrize(
    ("first_id", "last_id", "text"),
    [(5, 4, "a block from id 5 to id 4, which is less"), (6, 7, "a block that begins at id 6, not 5")],
)
def test_a_block_with_wrong_ids_is_told_by_its_ids(first_id: int, last_id: int, text: str) -> None:
    block = BlockEntry(first_id, last_id, 0, 1, 0, 0, 0, 0, b"")
    header = CommitHeader(
        log="l", number=2, epoch=1, nonce="n", previous=b"d", previous_id=4, last_id=7, received_at=0, blocks=(block,)
    )
    with pytest.raises(DamagedLogError, match=rf"\(commit 2 of log 'l'\) has {text}"):
        check_link(ChainEnd(1, 1, b"d", 4, 0), CommitObject(header, b"", 0))
