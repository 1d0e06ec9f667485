"""One log of a store: write it, read it, ask for its status."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec

from millstream.core.decoding import prepared
from millstream.log.backend import Head, VersionedValue, producer_key
from millstream.log.block_location import BlockLocation, cover
from millstream.log.consumer_positions import (
    CONSUMERS,
    ConsumerPosition,
    consumer_key,
    decode_position,
    encode_position,
)
from millstream.log.errors import LogInputError, StorageBusyError, StorageFullError, WriterBusyError
from millstream.log.ids import BlockRange, IdRange, IndexEntry
from millstream.log.kinds import KIND, Kind
from millstream.log.log_info import LogInfo
from millstream.log.runtime.context import LogContext
from millstream.log.runtime.writer_refusals import WriterRefusal
from millstream.log.spec import LogSpec, require_name, require_owner
from millstream.log.tiering.objects import KeepsObjects
from millstream.log.tiering.sealed_objects import make_place, read_tiering, write_tiering
from millstream.log.tiering.spec import Tiering, TieringResult
from millstream.log.upkeep.compaction_trigger import CompactionTrigger
from millstream.log.upkeep.retention import RETENTION, RETENTION_CLOCK, Retention
from millstream.log.upkeep.trimming import free_blocks, raise_watermarks
from millstream.log.writing.lease import WriterLease, current_writer, writer_in_force

if TYPE_CHECKING:
    from millstream.log.batch import Batch
    from millstream.log.encoding.proto import Proto
    from millstream.log.gap import Gaps
    from millstream.log.reading.reader import Reader
    from millstream.log.sourced import Sourced
    from millstream.log.tiering.block_mover import BlockMover
    from millstream.log.upkeep.vacuuming import VacuumResult
    from millstream.log.upkeep.verification import Verification
    from millstream.log.writing.writer import Writer

_BY_CONSUMERS = "by consumers that store a position"


class Log:
    """An endless sequence of messages with the ids 1, 2, 3 …, of which the first may have been trimmed.

    Made by :meth:`millstream.log.LogStore.log`.
    """

    def __init__(self, spec: LogSpec, context: LogContext) -> None:
        self._context = context
        self._backend = context.backend
        self.spec = spec

    @property
    def name(self) -> str:
        return self.spec.name

    def __repr__(self) -> str:
        return f"<Log {self.name!r} in {self._backend.url}>"

    @property
    def kind(self) -> Kind:
        """The kind of the log, which the store keeps."""
        stored = self._backend.get_state(self.name, KIND).value.decode()
        return cast("Kind", stored) if stored else self._context.names.kind(self.name) or "application"

    @property
    def bodies_only(self) -> bool:
        """Whether the store has no place for anything but the bodies of messages: no source, key, headers, times."""
        return self._context.bodies_only

    def writer(self, producer: str = "") -> Writer:
        """The one writer of this log, under a fencing lease; *producer* names whose sequences it keeps.

        Raises :class:`WriterBusyError`, which names the holder; a holder that is dead or has not renewed its lease
        is replaced, and gets :class:`FencedError` at its next append.
        """
        from millstream.log.writing.writer import Writer

        require_name("producer", producer, least=0)
        self._refuse_users("written")
        context = self._context
        try:
            lease = WriterLease.take(self._backend, self.name, context.clock, context.lease_seconds)
        except WriterBusyError as error:
            refusal = WriterRefusal(log=self.name, producer=producer, at=context.clock.now(), why=str(error))
            context.refusals.add(refusal)
            raise
        context.refusals.discard(self.name)
        try:
            writer = Writer(self.spec, producer, lease, self._context)
        except BaseException:
            lease.release()
            raise
        self._compact_while_writing(writer)
        return writer

    def _compact_while_writing(self, writer: Writer) -> None:
        hot, rules = self._backend.hot, self._context.compaction
        if rules is not None and isinstance(hot, KeepsObjects):
            trigger = CompactionTrigger(
                self.name, lambda: hot.commits(self.name), lambda stopped: self.compact(stopped=stopped), rules.commits
            )
            writer.on_durable(trigger.look)
            writer.on_close(trigger.close)
            trigger.look()

    def reader(self, consumer: str) -> Reader:
        """A reader that continues after what *consumer* has acknowledged."""
        from millstream.log.reading.reader import Reader

        self._refuse_users(_BY_CONSUMERS)
        return Reader(self.name, consumer, self._context)

    def read(
        self,
        first_id: int | None = None,
        last_id: int | None = None,
        columns: Sequence[str] | None = None,
        *,
        gaps: Gaps = "trimmed",
    ) -> Iterator[Batch]:
        """The messages from *first_id* to *last_id*, for no consumer in particular.

        Without them from the first to the last that the log has. With *columns* only those are decoded into
        ``batch.arrow``. Ids without messages come as a :class:`Gap` where *gaps* has them: ``trimmed`` ones, ``all``,
        ``none``; else they are raised while the batches are taken, as :class:`TrimmedError`,
        :class:`CorruptBlockError` and :class:`MissingBlockError`. Raises :class:`LogInputError`.
        """
        from millstream.log.reading.scan import cut_batches, scan_blocks

        head = self._backend.extent(self.name)
        ids = _ids(head, first_id, last_id)
        blocks = scan_blocks(self._backend, self.name, ids, head.first_id)
        return cut_batches(blocks, ids, log=self.name, max_messages=65_536, columns=columns, gaps=gaps)

    def read_proto(
        self, kind: type[Proto], first_id: int | None = None, last_id: int | None = None
    ) -> Iterator[tuple[int, Proto]]:
        """The protobuf messages from *first_id* to *last_id*, each with its id.

        Raises :class:`LogInputError` where a message is no *kind*, and what :meth:`read` raises.
        """
        from millstream.log.encoding.proto import decode_proto

        for batch in self.read(first_id, last_id):
            yield from decode_proto(batch, kind, self.name)

    def read_sourced(self, first_id: int | None = None, last_id: int | None = None) -> Iterator[tuple[int, Sourced]]:
        """The sourced messages from *first_id* to *last_id*, each with its id.

        Raises :class:`LogInputError` where a message has no source, and what :meth:`read` raises.
        """
        from millstream.log.encoding.nerve_packet import decode_packet
        from millstream.log.sourced import as_sourced

        for batch in self.read(first_id, last_id):
            for message in batch:
                try:
                    sourced = decode_packet(message.body) if self.bodies_only else as_sourced(message)
                except LogInputError as error:
                    raise LogInputError(f"message {message.id} of log {self.name!r}: {error}") from error
                yield message.id, sourced

    def on_append(self, callback: Callable[[int], object]) -> Callable[[], None]:
        """Call *callback* with the last durable id after every commit that a writer of this store makes.

        Like :meth:`millstream.log.Writer.on_durable`, and for those who do not hold the writer; what other processes
        append is not heard of here (:meth:`follow` sees it). The function that is returned ends it.
        """
        return self._context.tail.appended.add(callback)

    def follow(self, first_id: int | None = None, columns: Sequence[str] | None = None) -> Iterator[Batch]:
        """Like :meth:`read` from *first_id* on, and never ends: at the end of the log it waits for more."""
        from millstream.log.reading.reader import PollPauses, wait_for_more

        pauses = PollPauses(self._context.min_linger)
        first_id = self.first_id if first_id is None else first_id
        while True:
            turn = self._context.tail.turn
            for batch in self.read(first_id, columns=columns):
                yield batch
                first_id, pauses = batch.last_id + 1, PollPauses(self._context.min_linger)
            is_at_end = functools.partial(self._backend.is_at_end, self.name, first_id - 1)
            wait_for_more(self._context.tail, turn, pauses, is_at_end)

    def first_id_since(self, time: int) -> int:
        """The id of the first message that was received at *time* (microseconds) or later; one past the end without.

        An importer may set receive times in any order: this is the first such message, not the last one before it.
        """
        first_id = self.first_id
        while (block := self._backend.first_block_since(self.name, time, first_id)) is not None:
            for batch in self.read(max(block.first_id, first_id), block.last_id, columns=["received_at"]):
                (late,) = (batch.arrow.column("received_at").to_numpy() >= time).nonzero()
                if len(late):
                    return batch.first_id + int(late[0])
            first_id = block.last_id + 1
        return self.last_id + 1

    def first_block_since(self, time: int) -> int:
        """The first id of the first block that has a message received at *time* (microseconds) or later.

        One past the end where there is none. What lies before was all received earlier.
        """
        head = self._backend.head(self.name)
        block = self._backend.first_block_since(self.name, time, head.first_id)
        return head.last_id + 1 if block is None else max(block.first_id, head.first_id)

    def block_ranges(self, first_id: int | None = None, last_id: int | None = None) -> Sequence[BlockRange]:
        """The blocks from *first_id* to *last_id* with their sizes, for sharing out work; nothing is read.

        What was trimmed has no blocks.
        """
        head = self._backend.head(self.name)
        ids = _ids(head, first_id, last_id)
        ids = IdRange(max(ids.first, head.first_id), ids.last)
        return [
            BlockRange(max(block.first_id, ids.first), min(block.last_id, ids.last), block.bytes)
            for block in self._backend.ranges(self.name, ids.first, ids.last)
        ]

    def block_locations(self, first_id: int, last_id: int) -> Sequence[BlockLocation]:
        """The location of all blocks from *first_id* to *last_id* in the log's bucket, for other processes; nothing is
        read. None, unless all of them are there. :func:`millstream.log.reading.located_blocks.read_located` reads them.
        """
        locations = self._backend.locate(self.name, first_id, last_id)
        return locations if cover(locations, first_id, last_id) else ()

    def block_index(self, first_id: int, last_id: int) -> Sequence[IndexEntry]:
        """The index entries of all blocks with ids from *first_id* to *last_id*; no block is read.

        Ids that no entry covers may have messages all the same: a store of rows has no blocks.
        """
        return self._backend.index(self.name, first_id, last_id)

    def receive_times(self, first_id: int, last_id: int) -> Iterator[tuple[int, int]]:
        """The least and the greatest receive time (microseconds) of each block from *first_id* to *last_id*.

        Only a block that lies partly outside is read: the store keeps the times of whole blocks beside them. Raises
        what :meth:`read` raises.
        """
        blocks = self._backend.index(self.name, first_id, last_id)
        for block in blocks:
            if first_id <= block.first_id and block.last_id <= last_id:
                yield block.min_received_at, block.max_received_at
            else:
                yield from self._read_times(max(block.first_id, first_id), min(block.last_id, last_id))
        if not blocks:
            yield from self._read_times(first_id, last_id)

    def _read_times(self, first_id: int, last_id: int) -> Iterator[tuple[int, int]]:
        for batch in self.read(first_id, last_id, ["received_at"], gaps="none"):
            times = batch.arrow.column("received_at").to_numpy()
            yield int(times.min()), int(times.max())

    def trim(self, first_id: int) -> int:
        """Let the log begin at *first_id*, durably, and free what lies before it; returns how many bytes were freed.

        The mark moves first: from then on readers get a :class:`Gap` for what lies below it. It never goes back. A
        block that holds *first_id* stays, and segment files are freed whole, so more may be stored than can be read.
        Raises :class:`LogInputError` for an id beyond the log's next one.
        """
        self.require_trimmable(first_id)
        raise_watermarks(self._backend, self.name, first_id=first_id)
        try:
            freed = free_blocks(self._backend, self.name)  # first: the tier may not answer for long
            return freed + self._drop_trimmed()
        except (StorageFullError, StorageBusyError) as error:
            raise type(error)(
                f"log {self.name!r} now begins at id {first_id}, but not all space before it was freed: "
                f"{error}. Trim it again to free the rest"
            ) from error

    def require_trimmable(self, first_id: int) -> None:
        """Raise the :class:`LogInputError` with which :meth:`trim` would refuse *first_id*."""
        self._refuse_users("trimmed")
        last_id, policy = self.last_id, self.retention
        if policy is not None and policy.keep_all:
            raise LogInputError(
                f"cannot trim log {self.name!r}, because its retention policy keeps everything "
                "(keep_all): change the policy first"
            )
        if not 1 <= first_id <= last_id + 1:
            raise LogInputError(f"cannot trim log {self.name!r} to begin at id {first_id}: choose 1 to {last_id + 1}")

    @property
    def tiering(self) -> Tiering | None:
        """The tiering of older blocks of the log; None if they stay."""
        return read_tiering(self._backend, self.name)

    def set_tiering(self, policy: Tiering) -> None:
        """Keep *policy* with the log, durably; the place of a new URL is made where it is missing.

        Raises :class:`LogInputError` where objects lie at another URL.
        """
        self._refuse_users("moved")
        if self.bodies_only:
            raise LogInputError(
                f"cannot move messages of log {self.name!r} to a tier: its store has layout=nerve, which has no "
                "blocks; copy the log to a store without layout=nerve (`millstream log copy`)"
            )
        objects = self._backend.objects(policy.url)
        make_place(self._backend, self.name, objects)
        write_tiering(self._backend, self.name, msgspec.structs.replace(policy, url=objects.url))

    def move_blocks(self, *, partial: bool = False, stopped: Callable[[], bool] = bool) -> TieringResult:
        """Move what is due to the object store; see :meth:`millstream.log.tiering.BlockMover.run_once`."""
        self._refuse_users("moved")
        return self._tierer().run_once(partial=partial, stopped=stopped)

    def compact(self, *, stopped: Callable[[], bool] = bool) -> TieringResult:
        """Merge the commits of a log in a bucket into sealed objects there, if there are many.

        See :meth:`millstream.log.tiering.Compactor.run_once`. Does nothing for a log that is not in a bucket.
        """
        self._refuse_users("compacted")
        rules, hot = self._context.compaction, self._backend.hot
        if rules is None or not isinstance(hot, KeepsObjects):
            return TieringResult(log=self.name)
        from millstream.log.tiering.compactor import Compactor

        return Compactor(hot, self.name, self._backend.places(self.name), rules).run_once(stopped=stopped)

    def vacuum(self) -> VacuumResult:
        """Give the space of trimmed and moved messages back to the disk; for a log in an SQLite file, whose other logs
        are vacuumed with it.

        Readers go on; a writer that begins meanwhile waits up to a minute. A crash loses nothing. Raises
        :class:`WriterBusyError` where a log of the file has a writer, :class:`StorageFullError` where the disk has too
        little room for copies, and :class:`StorageBusyError`.
        """
        from millstream.log.upkeep.vacuuming import vacuum_log

        return vacuum_log(self._backend.hot, self.name)

    def leftovers(self) -> Sequence[str]:
        """The names of objects that runs which were killed have left; nothing needs them, and nothing deletes them.

        A copy of the store that was made meanwhile may name them. Raises :class:`LogInputError` without a tier.
        """
        return self._tierer().leftovers()

    def remove_leftovers(self) -> Sequence[str]:
        """Delete the :meth:`leftovers`; returns their names."""
        self._refuse_users("moved")
        return self._tierer().remove_leftovers()

    @property
    def retention(self) -> Retention | None:
        """The policy that is kept with the log; None where there is none."""
        value = self.metadata(RETENTION)
        return msgspec.json.decode(value, type=prepared(Retention)) if value else None

    def set_retention(self, policy: Retention | None) -> None:
        """Keep *policy* with the log, durably, for the process that runs a :class:`Retainer`; None takes it away."""
        self._refuse_users("trimmed")
        before = None
        with contextlib.suppress(msgspec.DecodeError):  # one that cannot be read can be replaced
            before = self.retention
        self._put_state(RETENTION, b"" if policy is None else msgspec.json.encode(policy))
        if before is None or before.max_age is None:  # else the last check of ages says whether the clock has jumped
            self._put_state(RETENTION_CLOCK, b"%d" % self._context.clock.now())

    def metadata(self, key: str) -> bytes:
        """A small value that is kept with the log; empty where there is none."""
        return self._backend.get_state(self.name, key).value

    def put_metadata(self, key: str, value: bytes) -> None:
        """Keep a small *value* with the log, durably, whatever was there."""
        if key == KIND:
            raise LogInputError(
                f"cannot change the kind of log {self.name!r}: its store recorded the kind at creation; use another key"
            )
        self._refuse_users("given metadata")
        self._put_state(key, value)

    def versioned_metadata(self, key: str) -> VersionedValue:
        """:meth:`metadata` with its version, for :meth:`replace_metadata`."""
        return self._backend.get_state(self.name, key)

    def replace_metadata(self, key: str, value: bytes, *, version: int) -> bool:
        """:meth:`put_metadata` where the value has still this *version*; False, and nothing is changed, where not."""
        self._refuse_users("given metadata")
        return self._backend.put_state(self.name, key, value, version=version)

    def _put_state(self, key: str, value: bytes) -> None:
        while not self._backend.put_state(
            self.name, key, value, version=self._backend.get_state(self.name, key).version
        ):
            pass

    @property
    def current_writer(self) -> str | None:
        """The present writer of the log, in words; None if there is none."""
        return current_writer(self._backend, self.name)

    def info(self) -> LogInfo:
        """The status of the log, read from the index of its blocks, not from the blocks."""
        head = self._backend.head(self.name)
        found = self._backend.statistics(self.name, head.first_id)
        cut = max(head.first_id - found.first_id, 0) if found.blocks else 0  # trimmed, in a block that is kept
        changes = {"first_id": head.first_id, "last_id": head.last_id, "count": found.count - cut}
        fields: dict[str, Any] = msgspec.structs.asdict(found) | changes
        consumers = {name: decode_position(state).pointer for name, state in self._consumer_states().items()}
        tier = self._backend.tier(self.name, since=head.first_id, head=head)
        return LogInfo(
            tier=None if tier is None else tier.info(head.first_id),
            name=self.name,
            durability=self._backend.durability,
            consumers=consumers,
            writer=writer_in_force(self._backend, head),
            kind=self.kind,
            **fields,
        )

    def pointer(self, consumer: str) -> int:
        """The id up to which *consumer* has acknowledged everything (0: nothing)."""
        return decode_position(self._backend.get_state(self.name, consumer_key(consumer))).pointer

    def set_pointer(self, consumer: str, last_id: int) -> None:
        """Let *consumer* have acknowledged exactly the ids up to *last_id*, durably; an open reader is fenced."""
        if not 0 <= last_id <= self.last_id:
            raise LogInputError(
                f"consumer {consumer!r} cannot continue with id {last_id + 1} of log {self.name!r}: choose 1 to "
                f"{self.last_id + 1}"
            )
        self._refuse_users(_BY_CONSUMERS)
        self._put_state(consumer_key(consumer), encode_position(ConsumerPosition(last_id)))

    @property
    def first_id(self) -> int:
        """The first id that the log still has: its low-water mark (one past the end where it has none)."""
        return self._backend.extent(self.name).first_id

    @property
    def last_id(self) -> int:
        """The last durable id (0 in an empty log)."""
        return self._backend.extent(self.name).last_id

    def sequence(self, producer: str) -> int:
        """The last durable sequence of *producer* (0 at first), of any writer."""
        return int(self._backend.get_state(self.name, producer_key(producer)).value or 0)

    def forget_blocks(self) -> None:
        """Read all messages from now on from where they are stored, also those that this process has written."""
        self._backend.forget_blocks()

    def verify(self, *, deep: bool = False) -> Verification:
        """Check every checksum and that no id is missing; raises nothing for what it finds.

        Of sealed objects it is checked that they are there; with *deep* every byte of them is read and compared.
        """
        from millstream.log.upkeep.verification import verify_log

        return verify_log(self._backend, self.name, deep=deep)

    def _refuse_users(self, done: str) -> None:
        """Let only the one who keeps a system log do what cannot be said of users: that it is *done* by them."""
        require_owner(self.spec, done)
        self._context.names.settle(self.name)

    def _tierer(self) -> BlockMover:
        policy = self.tiering
        if policy is None:
            raise LogInputError(
                f"log {self.name!r} has no tier: set its URL with `millstream log tier {self.name} --to URL`"
            )
        places = self._backend.places(self.name)
        from millstream.log.tiering.block_mover import BlockMover

        return BlockMover(self._backend.hot, self.name, places, policy, self._context.clock)

    def _drop_trimmed(self) -> int:
        hot = self._backend.hot
        if self.tiering is None and not isinstance(hot, KeepsObjects):
            return 0
        from millstream.log.tiering.settling import drop_trimmed

        return drop_trimmed(hot, self.name, self._backend.places(self.name))

    def _consumer_states(self) -> Mapping[str, Any]:
        return self._backend.states(self.name, CONSUMERS)


def _ids(head: Head, first_id: int | None, last_id: int | None) -> IdRange:
    if first_id is not None and first_id < 1:
        raise LogInputError(f"cannot read from id {first_id}: ids begin at 1")
    first_id = head.first_id if first_id is None else first_id
    return IdRange(first_id, head.last_id if last_id is None else min(last_id, head.last_id))
