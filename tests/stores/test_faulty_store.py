"""The stores that go wrong on purpose go wrong in the way they say, and only then."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from millstream.core.clock import VirtualClock
from millstream.core.errors import InputError
from millstream.stores import ItemNotFoundError, MemoryStore, Store, StoreUnavailableError
from millstream.testing.damage import flip_bit, remove
from millstream.testing.faulty_store import (
    LostReplyStore,
    SlowStore,
    StaleListingStore,
    StoreCall,
    UnavailableStore,
    VanishingStore,
    flips_bit,
    truncates,
)


@pytest.fixture
def store() -> MemoryStore:
    store = MemoryStore()
    store.create_space("space")
    for content_id in ("bad", "good"):
        store.put("space", content_id, io.BytesIO(b"grain" * 10))
    return store


def is_bad(call: StoreCall) -> bool:
    return call.content_id == "bad"


def read(store: Store, content_id: str, start: int = 0, length: int | None = None) -> bytes:
    with store.open("space", content_id, start=start, length=length) as source:
        return source.read()


def test_one_bit_is_flipped_and_always_the_same(store: MemoryStore) -> None:
    faulty = flips_bit(store, is_bad, seed=7)
    damaged = read(faulty, "bad")
    different = [a ^ b for a, b in zip(damaged, b"grain" * 10, strict=True) if a != b]
    assert [bin(bits).count("1") for bits in different] == [1]
    assert read(faulty, "bad", start=3, length=40) == damaged[3:43]
    assert read(faulty, "good") == b"grain" * 10
    assert faulty.info("space", "bad") == store.info("space", "bad")


def test_bytes_are_cut_off(store: MemoryStore) -> None:
    faulty = truncates(store, is_bad, share=0.1)
    assert read(faulty, "bad") == b"grain"
    assert read(faulty, "good") == b"grain" * 10


def test_items_vanish_after_they_were_listed(store: MemoryStore) -> None:
    faulty = VanishingStore(store, is_bad)
    assert [entry.content_id for entry in faulty.entries("space")] == ["bad", "good"]
    for ask in (faulty.info, faulty.open):
        with pytest.raises(ItemNotFoundError):
            ask("space", "bad")
    assert read(faulty, "good") == b"grain" * 10


def test_listings_stay_as_they_were(store: MemoryStore) -> None:
    faulty = StaleListingStore(store)
    assert len(faulty.entries("space")) == 2
    faulty.delete("space", "bad")
    faulty.put("space", "new", io.BytesIO(b""))
    assert [entry.content_id for entry in faulty.entries("space")] == ["bad", "good"]
    assert [entry.content_id for entry in faulty.entries("space", after="bad", prefix="g", limit=1)] == ["good"]


def test_calls_go_unanswered_a_number_of_times(store: MemoryStore) -> None:
    faulty = UnavailableStore(store, 2, is_bad)
    for _ in range(2):
        with pytest.raises(StoreUnavailableError):
            faulty.info("space", "bad")
    assert faulty.info("space", "bad").size == 50
    with pytest.raises(StoreUnavailableError):
        UnavailableStore(store).spaces()


def test_a_lost_reply_hides_a_change_that_was_made(store: MemoryStore) -> None:
    faulty = LostReplyStore(store, 1)
    assert faulty.info("space", "bad").size == 50
    with pytest.raises(StoreUnavailableError):
        faulty.put("space", "new", io.BytesIO(b"grain"))
    assert store.info("space", "new").size == 5
    faulty.delete("space", "new")


def test_slowness_takes_virtual_time_only(store: MemoryStore) -> None:
    clock = VirtualClock()
    SlowStore(store, clock, 30).info("space", "bad")
    assert clock.monotonic() == 30


def test_a_flipped_bit_on_the_disk_leaves_size_and_times(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(1000))
    os.utime(file, (1, 1))
    offset, bit = flip_bit(file, seed=3)
    assert file.read_bytes()[offset] == 1 << bit
    assert sum(file.read_bytes()) == 1 << bit
    assert file.stat().st_mtime == 1
    assert flip_bit(file, seed=3) == (offset, bit)
    assert file.read_bytes() == bytes(1000)
    remove(file)
    assert not file.exists()


def test_an_empty_file_has_no_bit_to_flip(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError):
        flip_bit(tmp_path / "file")
