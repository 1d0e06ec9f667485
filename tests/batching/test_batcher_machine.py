"""The order-free batcher as a state machine: any interleaving of calls, checked against the oracle at the end."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from millstream.batching import BatchConfig, Batcher, BoundBrokenError, Event
from millstream.testing.batching_oracle import plain_batches
from suite.sizes import machine, sized

pytestmark = [pytest.mark.long, pytest.mark.timeout(sized(ci=300, long=3600))]


class BatcherMachine(RuleBasedStateMachine):
    """Records come in any order above the clock; the caller keeps its word, or is told that it did not."""

    @initialize(
        window=st.integers(0, 30),
        max_delay=st.integers(0, 15),
        leap=st.integers(0, 10),
        cut=st.sampled_from(["at_event", "midpoint"]),
        max_count=st.none() | st.integers(1, 4),
        max_bytes=st.none() | st.integers(1, 9),
    )
    def begin(self, window, max_delay, leap, cut, max_count, max_bytes):
        self.config = BatchConfig(window, max_delay, leap, cut, max_count=max_count, max_bytes=max_bytes)
        self.batcher = Batcher.of(self.config)
        self.events, self.batches, self.rejects = [], [], []

    def take(self, outcome):
        self.batches += outcome.batches
        self.rejects += outcome.rejects

    @rule(
        spots=st.lists(
            st.tuples(
                st.sampled_from(("", "b")),
                st.sampled_from("abc"),
                st.integers(0, 20),
                st.integers(-12, 18),
                st.sampled_from(("", "x")),
            ),
            max_size=6,
        )
    )
    def receive(self, spots):
        floor = self.batcher.clock or 0
        events = [
            Event(len(self.events) + n, source, key, floor + ahead - delay, floor + ahead, digest, ord(key) % 5 + 1)
            for n, (source, key, ahead, delay, digest) in enumerate(spots, start=1)
        ]
        self.events += events
        self.take(self.batcher.receive_many(events))

    @rule(step=st.integers(-2, 12))
    def advance(self, step):
        """Records in hand are all received; those to come are drawn above the clock."""
        self.take(self.batcher.advance((self.batcher.clock or 0) + step))

    @rule()
    def restart(self):
        self.batcher = Batcher.restore(self.batcher.snapshot(), self.config)

    @precondition(lambda self: self.batcher.clock is not None)
    @rule(early=st.integers(1, 30))
    def break_the_bound(self, early):
        before = self.batcher.snapshot()
        time = self.batcher.clock - early
        try:
            self.batcher.receive(Event(0, "", "a", time, time))
            raise AssertionError("a record from before the clock was taken")
        except BoundBrokenError:
            assert self.batcher.snapshot() == before

    @invariant()
    def everything_certain_is_out(self):
        expected, _ = plain_batches(self.events, self.config, self.batcher.clock)
        due = [batch for batch in expected if batch.closed_at is not None]
        assert sorted(self.batches, key=lambda batch: (batch.source, batch.start)) == due

    def teardown(self):
        if not hasattr(self, "batcher"):
            return
        clock = self.batcher.clock
        self.take(self.batcher.flush())
        batches = sorted(self.batches, key=lambda batch: (batch.source, batch.start))
        rejects = sorted(self.rejects, key=lambda reject: (reject.rejected, reject.reason))
        assert (batches, rejects) == plain_batches(self.events, self.config, clock)


TestBatcherMachine = BatcherMachine.TestCase
TestBatcherMachine.settings = machine(ci=150, long=10_000, steps=25)
