from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.anchoring.errors import LedgerError
from millstream.anchoring.ledger import (
    Ledger,
    LedgerEntry,
    MemoryLedger,
    checked_chain,
    decode_entry,
    encode_entry,
    next_entry,
)
from millstream.anchoring.log_ledger import LogLedger
from millstream.core.clock import VirtualClock
from millstream.log import LogInputError, open_store, system_log
from millstream.log.block import Block
from millstream.testing.ledgers import LedgerConformance, some_anchor


class TestMemoryLedger(LedgerConformance):
    @pytest.fixture
    def ledger(self, clock: VirtualClock) -> Ledger:
        return MemoryLedger(clock)


class TestLogLedgerInMemory(LedgerConformance):
    @pytest.fixture
    def ledger(self, clock: VirtualClock) -> Iterator[Ledger]:
        with open_store("memory://", clock=clock) as store:
            yield LogLedger(store, clock)


class TestLogLedgerOnSqlite(LedgerConformance):
    @pytest.fixture
    def ledger(self, clock: VirtualClock, tmp_path: Path) -> Iterator[Ledger]:
        with open_store(f"sqlite:///{tmp_path / 'log.db'}", clock=clock) as store:
            yield LogLedger(store, clock)


def chain(length: int) -> list[LedgerEntry]:
    entries: list[LedgerEntry] = []
    for number in range(length):
        entries.append(next_entry(entries[-1] if entries else None, some_anchor(number), 1000 + number))
    return entries


def test_an_entry_reads_as_documented() -> None:
    entry = next_entry(None, some_anchor(0), 1_700_000_000_000_000)
    sealed = b'{"anchor_string":"%s","number":1,"previous":"%s","time":1700000000000000}'
    seal = hashlib.sha256(sealed % (some_anchor(0).encode(), b"0" * 64)).hexdigest()
    assert encode_entry(entry) == (
        b'{"anchor_string":"%s","hash":"%s","number":1,"previous":"%s","time":1700000000000000}'
        % (some_anchor(0).encode(), seal.encode(), b"0" * 64)
    )


def test_flipping_any_bit_of_an_entry_is_found() -> None:
    data = encode_entry(chain(2)[1])
    assert decode_entry(data) == chain(2)[1]
    for place in range(len(data)):
        for bit in range(8):
            flipped = bytearray(data)
            flipped[place] ^= 1 << bit
            with pytest.raises(LedgerError):
                decode_entry(bytes(flipped))


@pytest.mark.parametrize("data", [b"", b"null", b"{}", b"\xff", b"[" * 100_000, b" " + encode_entry(chain(1)[0])])
def test_what_is_no_entry_is_refused(data: bytes) -> None:
    with pytest.raises(LedgerError):
        decode_entry(data)


def test_an_entry_taken_out_put_in_or_swapped_breaks_the_chain() -> None:
    entries = chain(4)
    assert list(checked_chain(entries)) == entries
    assert list(checked_chain(entries[2:], entries[1])) == entries[2:]
    strange = next_entry(entries[1], some_anchor(99), 5000)
    early = next_entry(entries[1], some_anchor(2), 5000)
    for broken in (
        entries[1:],
        [entries[0], *entries[2:]],
        [entries[0], entries[2], entries[1], entries[3]],
        [*entries[:2], strange, entries[3]],
        [*entries[:3], entries[2]],
        [*entries[:2], early, next_entry(early, some_anchor(3), 0), entries[3]],
    ):
        with pytest.raises(LedgerError, match="does not follow"):
            list(checked_chain(broken))


def test_an_entry_dated_before_its_predecessor_breaks_the_chain() -> None:
    first = next_entry(None, some_anchor(1), 1000)
    second = next_entry(LedgerEntry(first.anchor_string, first.hash, 1, first.previous, 0), some_anchor(2), 500)
    with pytest.raises(
        LedgerError,
        match=r"entry 2 is dated 1970.*00\.000500Z, earlier than entry 1 \(1970-.*00\.001.*Z\): do not trust",
    ):
        list(checked_chain([first, second]))


def test_a_ledger_outlives_its_process_and_others_see_it(tmp_path: Path) -> None:
    url, clock = f"sqlite:///{tmp_path / 'log.db'}", VirtualClock()
    with open_store(url, clock=clock) as one, open_store(url, clock=clock) as other:
        first = LogLedger(one, clock).append(some_anchor(1))
        second = LogLedger(other, clock).append(some_anchor(2))
        assert LogLedger(one, clock).append(some_anchor(2)) == second
    with open_store(url, clock=clock) as again:
        assert list(LogLedger(again, clock).entries()) == [first, second]


def test_a_ledger_that_is_only_read_makes_no_log_and_sees_the_one_that_another_process_makes(tmp_path: Path) -> None:
    url, clock = f"sqlite:///{tmp_path / 'log.db'}", VirtualClock()
    with open_store(url, clock=clock) as one, open_store(url, clock=clock) as other:
        ledger = LogLedger(one, clock, create=False)
        assert (ledger.last_number, ledger.head(), ledger.find("x"), ledger.verify()) == (0, None, None, None)
        assert list(ledger.entries()) == [] and one.logs() == []
        first = LogLedger(other, clock).append(some_anchor(1))
        assert ledger.head() == first and ledger.last_number == 1


def test_what_others_wrote_into_the_log_is_no_ledger(tmp_path: Path) -> None:
    clock = VirtualClock()
    with open_store(f"sqlite:///{tmp_path / 'log.db'}", clock=clock) as store:
        entries = chain(3)
        with store.log(system_log("ledger", "ledger")).writer() as writer:
            writer.append([encode_entry(entry) for entry in (entries[0], entries[2])])
        ledger = LogLedger(store, clock)
        with pytest.raises(LedgerError, match="message 2"):
            ledger.verify()


def test_one_entry_is_read_without_those_after_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proof needs one entry: what it costs does not grow with the ledger."""
    with open_store(f"sqlite:///{tmp_path / 'log.db'}", clock=VirtualClock()) as store:
        ledger = LogLedger(store, VirtualClock())
        for number in range(50):
            ledger.append(some_anchor(number))
        opened: list[int] = []
        init = Block.__init__

        def counting(block: Block, *given: Any, **named: Any) -> None:
            opened.append(1)
            init(block, *given, **named)

        monkeypatch.setattr(Block, "__init__", counting)
        entry = ledger.entry(7)
    assert entry is not None
    assert (entry.number, len(opened)) == (7, 1)


def test_a_ledger_whose_log_was_trimmed_is_broken_and_says_so(tmp_path: Path) -> None:
    clock = VirtualClock()
    with open_store(f"sqlite:///{tmp_path / 'log.db'}", clock=clock) as store:
        ledger = LogLedger(store, clock)
        for number in range(5):
            ledger.append(some_anchor(number))
        log = store.log(system_log("ledger", "ledger"))
        with pytest.raises(LogInputError, match="keep_all"):
            log.trim(3)
        log.set_retention(None)
        log.trim(3)
        with pytest.raises(LedgerError, match="ids 1 to 2 of log 'system:ledger' were trimmed"):
            ledger.verify()
        head = ledger.head()
        assert head is not None
        assert head.number == 5


@pytest.mark.parametrize(
    "changed",
    [
        lambda body: body[:-1] + b',"x":1}',
        lambda body: body[:40],
        lambda body: b"\xef\xbb\xbf" + body,
        lambda body: body.replace(b'"number":3', b'"number":"3"'),
        lambda body: body.replace(b'"time"', b'"Time"'),
        lambda body: body[:-5] + b"\xff" + body[-4:],
    ],
)
def test_a_repair_never_drops_an_entry_that_was_changed(tmp_path: Path, changed: Callable[[bytes], bytes]) -> None:
    clock = VirtualClock()
    with open_store(f"sqlite:///{tmp_path / 'log.db'}", clock=clock) as store:
        bodies = [encode_entry(entry) for entry in chain(3)]
        with store.log(system_log("ledger", "ledger")).writer() as writer:
            writer.append([*bodies[:2], changed(bodies[2])])
        with pytest.raises(LedgerError, match=r"ledger entry in message 3 .* was changed"):
            LogLedger(store, clock).repair()
        with pytest.raises(LedgerError):
            LogLedger(store, clock).verify()


def test_a_repair_leaves_no_fewer_entries_than_were_known(tmp_path: Path) -> None:
    clock = VirtualClock()
    with open_store(f"sqlite:///{tmp_path / 'log.db'}", clock=clock) as store:
        with store.log(system_log("ledger", "ledger")).writer() as writer:
            writer.append([*map(encode_entry, chain(2)), b"hello", b"again"])
        ledger = LogLedger(store, clock)
        with pytest.raises(LedgerError, match="fewer ledger entries than the 3"):
            ledger.repair(known=3)
        done = ledger.repair(known=2)
        assert (done.entries, done.put_aside) == (2, [3, 4])
        assert ledger.append(some_anchor(9)).number == 3
        assert [entry.number for entry in ledger.entries(2)] == [2, 3]
        assert [entry.number for entry in ledger.entries(2, 3)] == [2, 3]
        assert [entry and entry.number for entry in map(ledger.entry, range(5))] == [None, 1, 2, 3, None]
