"""The conformance suite of ledgers.

Inherit :class:`LedgerConformance` in a test module and give it a fixture ``ledger`` (empty, on the given ``clock``)::

    class TestMyLedger(LedgerConformance):
        @pytest.fixture
        def ledger(self, clock: VirtualClock) -> Ledger:
            return MyLedger(clock)
"""

from __future__ import annotations

import threading

import pytest

from millstream.anchoring.cut_manifest import anchor_string
from millstream.anchoring.errors import BatchFormatError
from millstream.anchoring.ledger import GENESIS, Ledger, entry_hash
from millstream.core.cid import cid_of
from millstream.core.clock import VirtualClock


def some_anchor(number: int) -> str:
    """An anchor string; another one for each *number*."""
    return anchor_string(number % 100 + 1, cid_of(b"manifest %d" % number))


class LedgerConformance:
    """What every :class:`millstream.anchoring.Ledger` does."""

    @pytest.fixture
    def clock(self) -> VirtualClock:
        return VirtualClock()

    def test_an_empty_ledger_has_no_head(self, ledger: Ledger) -> None:
        assert ledger.head() is None
        assert list(ledger.entries()) == []
        assert ledger.verify() is None

    def test_entries_form_a_chain(self, ledger: Ledger, clock: VirtualClock) -> None:
        previous = GENESIS
        for number in range(1, 6):
            clock.advance(1)
            entry = ledger.append(some_anchor(number))
            sealed = (some_anchor(number), number, previous, clock.now())
            assert (entry.anchor_string, entry.number, entry.previous, entry.time) == sealed
            assert entry.hash == entry_hash(*sealed)
            previous = entry.hash
        assert ledger.head() == ledger.verify() == entry

    def test_entries_are_read_from_any_number_on(self, ledger: Ledger) -> None:
        written = [ledger.append(some_anchor(number)) for number in range(5)]
        for first in range(1, 8):
            assert list(ledger.entries(first)) == written[first - 1 :]
            for last in range(8):
                assert list(ledger.entries(first, last)) == written[first - 1 : last]
        assert [ledger.entry(number) for number in range(8)] == [None, *written, None, None]

    def test_time_never_goes_back(self, ledger: Ledger, clock: VirtualClock) -> None:
        before = ledger.append(some_anchor(1))
        clock.jump(-3600)
        assert ledger.append(some_anchor(2)).time == before.time
        assert ledger.verify() == ledger.head()

    def test_p7_a_string_is_written_once(self, ledger: Ledger) -> None:
        first = ledger.append(some_anchor(1))
        other = ledger.append(some_anchor(2))
        assert ledger.append(some_anchor(1)) == first
        assert ledger.append(some_anchor(2), after=1) == other
        assert ledger.head() == other

    def test_a_search_begins_after_the_given_number(self, ledger: Ledger) -> None:
        first = ledger.append(some_anchor(1))
        ledger.append(some_anchor(2))
        assert ledger.find(some_anchor(1)) == first
        assert ledger.find(some_anchor(1), after=1) is None
        assert ledger.find(some_anchor(3)) is None

    @pytest.mark.parametrize("text", ["", "0.x", "1", "-1.x", "01." + cid_of(b""), "10001." + cid_of(b""), "1.x.y"])
    def test_what_is_no_anchor_string_is_refused(self, ledger: Ledger, text: str) -> None:
        with pytest.raises(BatchFormatError):
            ledger.append(text)
        assert ledger.head() is None

    def test_p7_threads_that_append_the_same_strings_write_each_once(self, ledger: Ledger) -> None:
        def append_all() -> None:
            for number in range(5):
                ledger.append(some_anchor(number))

        threads = [threading.Thread(target=append_all) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        strings = [entry.anchor_string for entry in ledger.entries()]
        assert sorted(strings) == sorted(map(some_anchor, range(5)))
        assert ledger.verify() == ledger.head()
