"""The batch writer against a model, under faults and restarts in any order."""

from __future__ import annotations

import contextlib

import sqlalchemy as sa
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from millstream.anchoring import (
    AnchorIndex,
    BatchJournal,
    BatchState,
    BatchWriter,
    CutLimits,
    MemoryCas,
    MemoryLedger,
    Observer,
    replay,
)
from millstream.anchoring.batch_records import EncodedBatch
from millstream.anchoring.content import read_anchor
from millstream.anchoring.errors import CasUnavailableError, ObservationBlockedError
from millstream.core.clock import VirtualClock
from millstream.testing.batches import CONFIG, make_batch, make_rejects
from millstream.testing.cas import FaultyCas
from suite.sizes import machine

IDS = st.lists(st.integers(1, 60), min_size=1, max_size=4, unique=True)
LIMIT = 3


class WriterMachine(RuleBasedStateMachine):
    """Every batch added ends in one anchor, or is rejected because one of its messages is in another."""

    def __init__(self) -> None:
        super().__init__()
        self.engine = sa.create_engine("sqlite://", poolclass=sa.pool.StaticPool)
        self.memory, self.ledger = MemoryCas(), MemoryLedger(VirtualClock())
        self.cas = FaultyCas(self.memory)
        self.added: dict[str, EncodedBatch] = {}
        self.restart()

    def teardown(self) -> None:
        self.engine.dispose()

    @rule()
    def restart(self) -> None:
        self.cas.fail_next(0)
        self.journal, self.index = BatchJournal(self.engine), AnchorIndex(self.engine)
        observer = Observer(self.index, self.cas, self.ledger)
        limits = CutLimits(batches=LIMIT, file_bytes=1500)
        self.writer = BatchWriter(self.journal, self.cas, self.ledger, observer, limits=limits)
        self.writer.recover()
        assert self.journal.open_cuts() == []

    @rule(groups=st.lists(IDS, max_size=4))
    def add(self, groups: list[list[int]]) -> None:
        batches = [make_batch(ids, hour=sum(ids) % 7) for ids in groups]
        new = {batch.batch: batch for batch in batches if batch.batch not in self.added}
        added = self.writer.add("weather", batches, make_rejects(range(900, 900 + len(groups))), config=CONFIG)
        assert (added.batches, added.conflicting) == (len(new), ())
        self.added |= new

    @precondition(lambda self: self.added)
    @rule(data=st.data())
    def add_again(self, data: st.DataObject) -> None:
        batch = self.added[data.draw(st.sampled_from(sorted(self.added)))]
        assert self.writer.add("weather", [batch], config=CONFIG).known == 1

    @rule(force=st.booleans())
    def cut(self, force: bool) -> None:
        self.writer.cut(force=force)
        totals = self.journal.totals()
        assert totals.accepted == 0 if force else totals.accepted < LIMIT
        assert (totals.cut, totals.anchored) == (0, 0)

    @rule(calls=st.integers(0, 6), force=st.booleans())
    def cut_with_a_fault(self, calls: int, force: bool) -> None:
        """The storage works for some calls and then fails, wherever the writer is by then."""
        self.cas.fail_after(calls)
        with contextlib.suppress(CasUnavailableError, ObservationBlockedError):
            self.writer.cut(force=force)
        self.cas.fail_next(0)

    @invariant()
    def every_batch_is_in_one_state_and_at_most_one_anchor(self) -> None:
        strings = [entry.anchor_string for entry in self.ledger.entries()]
        assert len(strings) == len(set(strings))
        anchored = [batch for string in strings for batch in read_anchor(self.memory, string).batches.names]
        assert len(anchored) == len(set(anchored))
        for name in self.added:
            status = self.journal.status("weather", name)
            assert status is not None
            in_ledger = (BatchState.CUT, BatchState.ANCHORED, BatchState.OBSERVED)
            assert (name in anchored) <= (status.state in in_ledger)
            assert (status.state in (BatchState.ANCHORED, BatchState.OBSERVED)) <= (name in anchored)

    @invariant()
    def a_batch_is_rejected_only_for_a_message_that_another_one_holds(self) -> None:
        for _, name, reason in self.journal.rejected():
            assert "message" in reason
            others = {number for other, batch in self.added.items() if other != name for number in batch.ids}
            assert others & set(self.added[name].ids)

    @invariant()
    def a_replay_agrees(self) -> None:
        if not self.journal.open_cuts():
            assert replay(self.memory, self.ledger, self.index).findings == ()


TestWriterMachine = WriterMachine.TestCase
TestWriterMachine.settings = machine(ci=20, long=1000, steps=20)
