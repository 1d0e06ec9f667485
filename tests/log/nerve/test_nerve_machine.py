"""A queue that the original and we use by turns, against a list: append, leave rows, crash, read, acknowledge."""

from __future__ import annotations

import contextlib
import secrets
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from millstream.core.clock import VirtualClock
from millstream.log import IdRange, LogSpec, LogStore
from millstream.log.backends.mysql import parse_address
from millstream.log.backends.nerve import NerveBackend, parse_nerve
from millstream.log.backends.nerve import writing as writing_module
from suite.sizes import machine
from support.nerve_original import OriginalQueue

SHARDS = 3
LEASE = 5.0

packs = st.integers(1, 40)


class NerveMachine(RuleBasedStateMachine):
    """``confirmed`` is the list; ``acked`` is what the consumer has acknowledged, in its order."""

    server: str

    @initialize()
    def begin(self) -> None:
        self.clock = VirtualClock()
        self.name = f"q{secrets.token_hex(5)}"
        self.confirmed: list[bytes] = []
        self.pointer = 0
        self.sent = 0
        self.undo = contextlib.ExitStack()
        self.theirs = self.undo.enter_context(
            contextlib.closing(OriginalQueue(parse_address(self.server), self.name, SHARDS, 1))
        )
        self.open()

    def open(self) -> None:
        place = parse_nerve(f"{self.server}?layout=nerve&shards={SHARDS}")
        backend = NerveBackend(place, self.clock)
        self.store = self.undo.enter_context(LogStore(backend, self.clock, lease_seconds=LEASE, bodies_only=True))
        self.log = self.store.log(LogSpec(self.name))
        self.writer: Any = None

    def pack(self, count: int) -> list[bytes]:
        self.sent += count
        return [b"%d" % n for n in range(self.sent - count, self.sent)]

    @rule(count=packs)
    def we_append(self, count: int) -> None:
        if self.writer is None:
            self.writer = self.log.writer()
            assert self.writer.last_id == len(self.confirmed)
        pack = self.pack(count)
        before = len(self.confirmed)
        assert self.writer.append(pack) == IdRange(before + 1, before + count)
        self.confirmed += pack

    @rule(count=packs)
    def they_append(self, count: int) -> None:
        self.we_close()
        self.theirs.counter = self.theirs.pointer()
        pack = self.pack(count)
        self.theirs.send(pack)
        self.confirmed += pack

    @rule(count=packs)
    def they_are_killed_before_they_confirm(self, count: int) -> None:
        self.we_close()
        self.theirs.counter = self.theirs.pointer()
        self.theirs.insert(self.pack(count))

    @rule()
    def we_close(self) -> None:
        if self.writer is not None:
            self.writer.close()
            self.writer = None

    @rule()
    def we_are_killed(self) -> None:
        if self.writer is not None:
            self.store._backend.release_lease(self.name, epoch=self.store._backend.head(self.name).epoch)
        self.open()

    @rule(share=st.floats(0, 1), gap=st.integers(0, 3))
    def we_acknowledge(self, share: float, gap: int) -> None:
        last = self.pointer + round(share * (len(self.confirmed) - self.pointer))
        with self.log.reader("worker") as reader:
            assert reader.pointer == self.pointer
            ahead = [n for n in range(last + 1 + gap, last + 3 + gap) if n <= len(self.confirmed)]
            if gap and ahead:
                reader.ack(ahead)
            if last > self.pointer:
                reader.ack(IdRange(self.pointer + 1, last))
            self.pointer = reader.pointer

    @rule(share=st.floats(0, 1))
    def they_acknowledge(self, share: float) -> None:
        self.pointer += round(share * (len(self.confirmed) - self.pointer))
        self.theirs.move("worker", self.pointer)

    @rule(share=st.floats(0, 1))
    def part_is_read(self, share: float) -> None:
        first = 1 + round(share * len(self.confirmed))
        found = [message.body for batch in self.log.read(first) for message in batch]
        assert found == self.confirmed[first - 1 :]

    @invariant()
    def both_see_the_same(self) -> None:
        if not hasattr(self, "log"):
            return
        assert self.theirs.pointer() == self.log.last_id == len(self.confirmed)
        assert self.theirs.pointer("worker") == self.log.pointer("worker") == self.pointer

    def teardown(self) -> None:
        if not hasattr(self, "log"):
            return
        self.we_close()
        assert [m.body for batch in self.log.read() for m in batch] == self.confirmed
        found = self.theirs.packets(1, len(self.confirmed))
        assert found == list(enumerate(self.confirmed, 1))
        assert self.log.verify().ok
        self.undo.close()


def test_a_queue_that_both_programs_use_by_turns_is_like_a_list(queues: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing_module, "TOGETHER", 12)

    class Machine(NerveMachine):
        server = queues

    run_state_machine_as_test(Machine, settings=machine(ci=10, long=160, steps=15))
