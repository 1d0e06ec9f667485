"""From a log of batches to anchors: passes the batches of a batch service or a stream to the batch writer.

The progress is a pointer of the log of batches, and the position that the journal keeps in the transaction that adds
the batches. Reading resumes at the smaller one, because a database may lose commits when it fails over. Known batches
are not added again, so the process may be killed at any point (promise P7).
"""

from __future__ import annotations

import functools
import itertools
import logging
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.anchoring.batch_records import BatchHeader, EncodedBatch
from millstream.anchoring.errors import RESTORE_DATABASE, AnchoringError, BatchFormatError
from millstream.anchoring.merkle import leaf_hash
from millstream.anchoring.message_traces import MessageTraces
from millstream.anchoring.record_columns import encode_lines, seal_lines
from millstream.anchoring.states import FeedPosition
from millstream.anchoring.writer import BatchWriter
from millstream.batching import EventBatch, Reject, Rulebook
from millstream.batching.batch_log_message import BatchLogMessage, decode_batch_log_message
from millstream.batching.rule_changes import read_rules
from millstream.core.amounts import counted
from millstream.core.clock import MICROSECONDS, Clock
from millstream.core.errors import BusyError
from millstream.core.message import MESSAGE_SCHEMA
from millstream.log import Gap, Log

CONSUMER = "anchor"
"""The consumer whose pointer in a log of batches is the progress of passing them to the batch writer."""

GROUP_MESSAGES = 100_000
"""About how many messages one call hands over."""

_BUSY_SECONDS = 1.0
"""The pause of a schedule after which it tries again while another process writes."""

_WARN_SECONDS = 60.0
"""After how many seconds without a successful attempt there is a warning, and then another one."""

_log = logging.getLogger(__name__)

_FINAL = (
    'anchored batches are final: set late = "reject" or "side", or anchor the history with `millstream pipeline anchor`'
)


class FeedProgress(msgspec.Struct, frozen=True):
    """Numbers of batches passed to the batch writer (it had ``known`` ones already), and the resulting anchors."""

    batches: int = 0
    messages: int = 0
    rejects: int = 0
    known: int = 0
    anchors: int = 0

    def plus(self, other: FeedProgress) -> FeedProgress:
        """Both together."""
        return FeedProgress(*(getattr(self, name) + getattr(other, name) for name in self.__struct_fields__))


def refuse_amending_rules(rules: Rulebook) -> None:
    """Raise :class:`BatchFormatError` where batches come out by *rules* that may be amended later.

    No message is anchored twice, so of such rules only history can be anchored, by what is final in it.
    """
    if rules.amends:
        raise BatchFormatError(f"the batching rules amend published batches, but {_FINAL}")


class AnchorFeed:
    """Hands the batches of the log *batches*, which came of *source*, to *writer* as they come.

    They were made by *rules*, unless other rules are recorded with *batches*.
    """

    def __init__(self, source: Log, batches: Log, writer: BatchWriter, rules: Rulebook) -> None:
        self._source, self._batches, self._writer, self._rules = source, batches, writer, rules
        self._traces = MessageTraces(writer.index)
        self.total = FeedProgress()
        self._is_consumer = False
        self._pointer = 0
        """The consumer's pointer as it was read or set last."""
        self._missing_after = 0
        """The position after which trimmed messages were reported last."""

    def step(self, *, force: bool = False) -> FeedProgress:
        """Anchor what is new, as far as it fills a cut, and with *force* all of it; returns what this step did.

        Raises what :func:`submit_batches` and :func:`cut` raise, and :class:`BatchFormatError` for amendments: see
        :func:`refuse_amending_rules`.
        """
        if not self._is_consumer and CONSUMER not in self._batches.info().consumers:
            self._batches.set_pointer(CONSUMER, 0)  # so that what waits is kept and shown, also if nothing succeeds
        self._is_consumer = True
        done, size = FeedProgress(), 0
        for group in self._new():
            batches = [item for _, item in group if isinstance(item, EventBatch)]
            rejects = [item for _, item in group if isinstance(item, Reject)]
            anchored = self._writer.anchored(self._source.name, {batch.batch: batch.events for batch in batches})
            encoded, messages = _encode(self._source, batches, functools.partial(self._known, anchored))
            encoded = [one for one in encoded if anchored.get(one.batch) != leaf_hash(one.header_line)]
            gone = FeedProgress(known=len(batches) - len(encoded))
            fed = FeedPosition(self._batches.name, group[-1][0])
            added = submit_batches(self._writer, self._source.name, encoded, rejects, self._config(), fed=fed)
            done, self.total = done.plus(added).plus(gone), self.total.plus(added).plus(gone)
            self._traces.batches_submitted(self._source.name, batches, messages)
            if self._batches.pointer(CONSUMER) != self._pointer:  # by `log seek`, which counts
                self._writer.journal.forget_fed(self._batches.name)
                break
            self._batches.set_pointer(CONSUMER, fed.last_id)
            self._pointer = fed.last_id
            size += sum(len(one.lines) for one in encoded)
            if size >= self._writer.limits.cut_bytes:  # else the journal would hold all that is read again
                done, size = done.plus(self._cut(force=False)), 0
        return done.plus(self._cut(force=force))

    def _cut(self, *, force: bool) -> FeedProgress:
        done = cut(self._writer, force=force)
        self._traces.cut()
        self.total = self.total.plus(done)
        return done

    def _known(self, anchored: Iterable[str], names: Sequence[str]) -> Container[str]:
        """Those of the batches *names* that the journal has, and those *anchored*."""
        return {*self._writer.journal.known_roots(self._source.name, names), *anchored}

    def _config(self) -> Mapping[str, Any]:
        """The rules for the manifest. They are read after the batches, and were recorded before these were made."""
        rules = read_rules(self._batches) or self._rules
        refuse_amending_rules(rules)
        return rules.plain

    def _new(self) -> Iterator[list[tuple[int, EventBatch | Reject | None]]]:
        group: list[tuple[int, EventBatch | Reject | None]] = []
        size = 0
        for part in self._batches.read(self._first_id(), columns=["id", "body"], gaps="none"):
            for number, body in zip(*(part.arrow.column(name).to_pylist() for name in ("id", "body")), strict=True):
                found = self._item(number, body)
                group.append((number, found))
                size += len(found.events) if isinstance(found, EventBatch) else 1
                if size >= GROUP_MESSAGES:
                    yield group
                    group, size = [], 0
        if group:
            yield group

    def _first_id(self) -> int:
        """Where reading resumes."""
        name, pointer, first_id = self._batches.name, self._batches.pointer(CONSUMER), self._batches.first_id
        self._pointer = pointer
        fed = self._writer.journal.fed(name)  # None of a journal of an earlier release
        if fed is not None and fed < pointer:
            text = (
                "the node's database records that the batches of log %r were passed on up to message %d, and the log's "
                "consumer %r is at %d: the batches in between are passed on again"
            )
            _log.warning(text, name, fed, CONSUMER, pointer)
            pointer = fed
        if 0 < pointer < first_id - 1 and pointer != self._missing_after:
            text = (
                "messages %d to %d of log %r were trimmed before the node's database recorded their batches: keep "
                "batches for longer"
            )
            _log.warning(text, pointer + 1, first_id - 1, name)
            self._missing_after = pointer
        return max(pointer + 1, first_id)

    def _item(self, number: int, body: bytes) -> EventBatch | Reject | None:
        """What message *number* says; None where it is neither a batch nor a rejected message, which is told."""
        try:
            return _item(decode_batch_log_message(body))
        except msgspec.DecodeError as error:
            _log.warning("message %d of log %r is skipped: %s", number, self._batches.name, error)
            return None


def _item(message: BatchLogMessage) -> EventBatch | Reject:
    """What *message* says. Raises :class:`BatchFormatError` for an amendment."""
    if message.rejected is not None:
        return Reject(message.rejected, message.reason)  # type: ignore[arg-type]
    if message.kind == "amendment":
        raise BatchFormatError(
            f"batch {message.batch} is an amendment, but anchored batches are final: anchor the history with "
            '`millstream pipeline anchor`, or set late = "reject" or "side", and choose a new output log'
        )
    cut: Any = message.cut
    return EventBatch(
        batch=message.batch,
        source=message.source,
        start=message.start,
        end=message.end,
        closed_at=message.closed_at,
        cut=cut,
        events=message.events,
        kind=message.kind,
    )


def encode_batches(source: Log, batches: Sequence[EventBatch]) -> list[EncodedBatch]:
    """*batches* with their messages, which are read from *source*. Raises the errors of the log."""
    return _encode(source, batches)[0]


def _encode(
    source: Log, batches: Sequence[EventBatch], known: Callable[[Sequence[str]], Container[str]] = lambda _: ()
) -> tuple[list[EncodedBatch], pa.Table]:
    """*batches* with their messages, and these messages in the order of their ids.

    Batches whose messages were trimmed are left out if they are among those that *known* returns of their names; for
    others an :class:`AnchoringError` is raised.
    """
    if not batches:
        return [], MESSAGE_SCHEMA.empty_table()
    sizes = [len(batch.events) for batch in batches]
    ids = np.fromiter(itertools.chain.from_iterable(batch.events for batch in batches), np.int64, sum(sizes))
    messages = _messages(source, np.sort(ids))
    places = pc.index_in(pa.array(ids), messages["id"].combine_chunks())
    if places.null_count:
        there = set(messages["id"].to_pylist())
        trimmed = {batch.batch for batch in batches if not there.issuperset(batch.events)}
        _require_known(source, trimmed, known(sorted(trimmed)))
        return _encode(source, [batch for batch in batches if batch.batch not in trimmed], known)
    roots, lines = seal_lines(encode_lines(messages.take(places)), sizes)
    encoded = [
        EncodedBatch(_header(batch, root), data, tuple(batch.events))
        for batch, root, data in zip(batches, roots, lines, strict=True)
    ]
    return encoded, messages


def _require_known(source: Log, trimmed: Iterable[str], known: Container[str]) -> None:
    """Raise :class:`AnchoringError` where one of the batches *trimmed* of *source* is not among those *known*."""
    if lost := sorted(name for name in trimmed if name not in known):
        raise AnchoringError(
            f"messages of {counted(len(lost), 'batch')} ({', '.join(lost[:3])}{', …' if len(lost) > 3 else ''}) are no "
            f"longer in log {source.name!r}: they were trimmed or lost before they were anchored, so these batches can "
            f"no longer be anchored. `millstream log seek BATCHES --consumer {CONSUMER} --to ID` skips them, and "
            "resumes with the batch in message ID of the log of batches BATCHES. To avoid this error, lengthen the "
            f"retention of log {source.name!r} (`millstream log trim LOG --max-age AGE --keep-policy`, or its rule "
            "in the settings)"
        )


def _header(batch: EventBatch, root: str) -> BatchHeader:
    return BatchHeader(
        batch=batch.batch,
        closed_at=batch.closed_at,
        count=len(batch.events),
        cut=str(batch.cut),
        end=batch.end,
        kind=batch.kind,
        root=root,
        source=batch.source,
        start=batch.start,
    )


def _messages(source: Log, wanted: np.ndarray[Any, Any]) -> pa.Table:
    """The messages of the ids *wanted*, sorted, without those that were trimmed; between them lie others, which are not
    kept."""
    parts = []
    for part in source.read(int(wanted[0]), int(wanted[-1]), gaps="trimmed"):
        if isinstance(part, Gap):
            continue
        kept = pc.is_in(part.arrow.column("id"), pa.array(wanted))
        parts.append(part.arrow.select(MESSAGE_SCHEMA.names).filter(kept))
    return pa.Table.from_batches(parts, MESSAGE_SCHEMA)


def submit_batches(
    writer: BatchWriter,
    log: str,
    batches: Sequence[EncodedBatch],
    rejects: Sequence[Reject],
    config: Mapping[str, Any],
    *,
    sealed: bool = False,
    fed: FeedPosition | None = None,
) -> FeedProgress:
    """Give *batches* and *rejects* of *log*, made by the rules *config*, to *writer*, durably.

    *sealed* and *fed* are as in :meth:`~millstream.anchoring.writer.BatchWriter.add`.

    Raises :class:`AnchoringError` where a batch is known with other messages in it, and what the writer raises.
    """
    added = writer.add(log, batches, rejects, config=config, sealed=sealed, fed=fed)
    check_conflicts(log, added.conflicting)
    return FeedProgress(added.batches, sum(len(batch.ids) for batch in batches), added.rejects, added.known)


def check_conflicts(log: str, names: Sequence[str]) -> None:
    """Raise :class:`AnchoringError` where batches *names* of *log* are known with other messages in them."""
    if names:
        raise AnchoringError(
            f"{counted(len(names), 'batch')} of log {log!r} ({', '.join(names[:3])}{', …' if len(names) > 3 else ''}) "
            f"{'was' if len(names) == 1 else 'were'} recorded with other messages: the batching rules or the log have "
            f"changed. `millstream pipeline verify-batches {log} --batches BATCHES` lists the differences; restore the "
            "rules or the log from a backup"
        )


def cut(writer: BatchWriter, *, force: bool) -> FeedProgress:
    """Let *writer* cut what is full, and with *force* whatever waits. Raises what the writer raises."""
    return FeedProgress(anchors=len(writer.cut(force=force)))


class AnchorSchedule:
    """Lets *feed* anchor what came, each *every* microseconds, when :meth:`when_due` is called.

    While another process writes to the ledger or the journal, batches wait: this is no error. After a minute without
    success it is a warning, because a damaged journal looks the same.
    """

    def __init__(self, feed: AnchorFeed, clock: Clock, every: int) -> None:
        self.feed = feed
        self._clock, self._every = clock, every / MICROSECONDS
        self._next = clock.monotonic() + self._every
        self._busy_since: float | None = None
        self._warn_at = 0.0

    def when_due(self) -> FeedProgress | None:
        """Anchor what has come where it is time; what was done, None where it is not time or another process writes."""
        if self._clock.monotonic() < self._next:
            return None
        self._next = self._clock.monotonic() + self._every  # also after an error
        done = self._step(force=True)
        self._next = self._clock.monotonic() + (min(self._every, _BUSY_SECONDS) if done is None else self._every)
        return done

    def when_full(self) -> None:
        """Anchor what fills a cut."""
        self._step(force=False)

    def finish(self) -> None:
        """Anchor what is left; while another process writes, it is left for the next start."""
        self._step(force=True)

    def _step(self, *, force: bool) -> FeedProgress | None:
        try:
            done = self.feed.step(force=force)
        except BusyError as error:
            self._report(error)
            return None
        self._busy_since = None
        return done

    def _report(self, error: BusyError) -> None:
        now = self._clock.monotonic()
        if self._busy_since is None:
            self._busy_since, self._warn_at = now, now + _WARN_SECONDS
        if now < self._warn_at:
            _log.info("batches wait to be anchored: %s", error)
            return
        self._warn_at = now + _WARN_SECONDS
        text = (
            "batches have been waiting for %d min to be anchored: %s. If no other process anchors on this node, its "
            "database is damaged. %s"
        )
        _log.warning(text, (now - self._busy_since) // 60, str(error).rstrip("."), RESTORE_DATABASE)
