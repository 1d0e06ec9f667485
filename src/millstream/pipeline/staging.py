"""Staging of rows that tasks produce, until the driver appends them to a log exactly once.

Tasks cannot append: a log has one writer, and a task may run twice. So each stores its rows as one *part*, named by the
hash of its bytes, at a storage provider that all hosts reach; rows that the log would refuse fail the task. The driver
checks that every part is there, records which parts make up the *commit* (its *intent*), appends them under the log's
lease in pieces that the log numbers, and deletes the parts. After a driver was killed, the next one finds the intent
and appends the missing pieces; an intent of which nothing was appended is replaced.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import secrets
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO

import msgspec
import pyarrow as pa

from millstream.core.canonical import canonical_json
from millstream.core.decoding import prepared
from millstream.core.errors import NotFoundError
from millstream.core.secrets import safe_url
from millstream.log import Log, Writer
from millstream.log.writing.append_request import make_request, require_bodies_only, set_columns
from millstream.pipeline.errors import PipelineError, PipelineInputError, StagedPartGoneError
from millstream.pipeline.write_names import AFTER_STORED_ROWS, WriteClaim, add_fingerprints, fingerprint
from millstream.stores import Entry, Store, all_entries, copy_stream, hash_stream, open_provider

SPACE = "x-staging"
"""The space of staged parts: one of the system's own, which no policy copies and no sweep reads."""

PIECE_BYTES = 16 << 20
"""About the most bytes of one append."""

_PIECES = 1 << 24
"""The pieces of commit *n* have the sequences from n · 2^24 + 1 on; the last has the last sequence of that range."""

_INTENT = "intent-"

_LOG_ID = "spark-staging"
"""The key of the random id of a log among its metadata, which the names of its staged parts end with."""


def staging_prefix(log: Log, name: str) -> str:
    """Where writes called *name* into *log* stage: no other log of this or another store has the same prefix.

    The log gets its id at the first call; of two processes that give it one, the first one does.
    """
    while not (state := log.versioned_metadata(_LOG_ID)).value:
        log.replace_metadata(_LOG_ID, secrets.token_hex(8).encode(), version=state.version)
    return f"{name}-{state.value.decode()}"


def is_started(log: Log, write: str, number: int) -> bool:
    """Whether pieces of commit *number* of *write* are in *log*, or later ones."""
    return log.sequence(_producer(write)) > number * _PIECES


class StagedPart(msgspec.Struct, frozen=True):
    """The part of one task: its partition, the name of its object, its rows and pieces, and the object's SHA-256.

    ``size`` is that of the object in bytes; ``columns`` are those besides ``body`` that have values; ``fingerprint``
    is that of the rows (:func:`~millstream.pipeline.write_names.fingerprint`), 0 where it was not asked for.
    """

    partition: int
    name: str
    rows: int
    pieces: int
    sha256: str
    size: int = 0
    columns: tuple[str, ...] = ()
    fingerprint: int = 0


class CommitIntent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The parts of a commit, in the order in which they are appended."""

    parts: tuple[StagedPart, ...]


class PartWriter:
    """A part in the making, in a temporary file of this host."""

    def __init__(self, staging: Staging, partition: int, file: BinaryIO, *, fingerprinted: bool = False) -> None:
        self._staging, self._partition, self._file = staging, partition, file
        self._stream: pa.ipc.RecordBatchStreamWriter | None = None
        self.rows = self._pieces = self._fingerprint = 0
        self._columns: set[str] = set()
        self._fingerprinted = fingerprinted

    def add(self, batch: pa.RecordBatch) -> None:
        """Append *batch*; all of a part have one schema. Raises :class:`LogInputError` for rows that no log takes."""
        for piece in _pieces(batch):
            self._columns.update(set_columns(make_request(piece)))
            if self._fingerprinted:
                self._fingerprint = add_fingerprints(self._fingerprint, fingerprint(piece))
            if self._stream is None:
                self._stream = pa.ipc.new_stream(self._file, piece.schema)
            self._stream.write_batch(piece)
            self.rows, self._pieces = self.rows + piece.num_rows, self._pieces + 1

    def store_part(self) -> StagedPart:
        """Store the part. One without rows is not an object."""
        if self._stream is None:
            return StagedPart(self._partition, "", 0, 0, "")
        self._stream.close()
        size = self._file.tell()
        name, digest = self._staging.put(self._partition, self._file)
        return StagedPart(
            self._partition, name, self.rows, self._pieces, digest,
            size=size, columns=tuple(sorted(self._columns)), fingerprint=self._fingerprint,
        )  # fmt: skip


class Staging:
    """The parts of one write at the provider of *url*, below their own *prefix* (:func:`staging_prefix`).

    *earlier* is the prefix of a release whose prefixes did not depend on the log. Only a commit that it has begun is
    looked for there: what else is there may be of another log.
    """

    def __init__(self, url: str, prefix: str, *, earlier: str = "") -> None:
        self._store: Store = open_provider(url, create=True)
        self._url, self._prefix, self._earlier = url, prefix, earlier

    def store_part(
        self, partition: int, batches: Iterable[pa.RecordBatch], *, fingerprinted: bool = False
    ) -> StagedPart:
        """Lay down *batches* as the part of *partition*; what is laid down again has the same name."""
        with self.part_writer(partition, fingerprinted=fingerprinted) as part_writer:
            for batch in batches:
                part_writer.add(batch)
            return part_writer.store_part()

    @contextlib.contextmanager
    def part_writer(self, partition: int, *, fingerprinted: bool = False) -> Iterator[PartWriter]:
        """The part of *partition* in the making, for the length of the block."""
        with tempfile.TemporaryFile() as file:
            yield PartWriter(self, partition, file, fingerprinted=fingerprinted)

    def put(self, partition: int, file: BinaryIO) -> tuple[str, str]:
        """Store *file* as the part of *partition*; returns its name and its SHA-256."""
        file.seek(0)
        digest = hash_stream(file).sha256
        file.seek(0)
        name = f"{self._prefix}/part-{partition:05}-{digest[:20]}.arrow"
        self._store.create_space(SPACE)
        self._store.put(SPACE, name, file, sha256=digest)
        return name, digest

    def commit(
        self,
        log: Log,
        write: str,
        number: int,
        parts: Sequence[StagedPart],
        *,
        keep: bool = False,
        claim: WriteClaim | None = None,
    ) -> int:
        """Append *parts*, or finish what an earlier driver began as commit *number* of *write*.

        Returns the number of messages appended: none where the commit was finished before. Afterwards its parts are
        deleted, unless *keep* says that there is more to be committed from them. *claim* says whose name *write* is.
        Raises :class:`PipelineError` where parts are damaged, :class:`StagedPartGoneError` where they are gone,
        :class:`PipelineInputError` where the name belongs to another write, and what the log raises.
        """
        with log.writer(_producer(write)) as writer:
            first, last = number * _PIECES, (number + 1) * _PIECES - 1
            before, intent = writer.last_id, None
            if writer.sequence <= first:
                intent = self._record_intent(log, write, number, parts, claim)
            elif writer.sequence > last:
                raise PipelineInputError(_rewound(log, write, number, writer.sequence // _PIECES))
            if writer.sequence < last:
                intent = intent or self._intent(write, number)
                self._append(writer, intent, first)
                self._discard_earlier(intent, write, number)
            if claim is not None:
                claim.check(log, write)
            if not keep:
                self.clear()
            return writer.last_id - before

    def check_stored(self, parts: Iterable[StagedPart]) -> None:
        """Raise :class:`StagedPartGoneError` where one of *parts* is not there as its task stored it."""
        sizes = {entry.content_id: entry.size for entry in self._entries(f"{self._prefix}/")}
        for part in parts:
            size = sizes.get(part.name)
            if size is None:  # of an earlier release: it has another prefix
                with contextlib.suppress(NotFoundError):
                    size = self._store.info(SPACE, part.name).size
            if size is None or (part.size and size != part.size):
                found = "is gone" if size is None else f"has {size:,} bytes, not {part.size:,}"
                raise StagedPartGoneError(
                    f"the staged part {part.name} {found} in {safe_url(self._url)}, and nothing was appended: set "
                    "'staging' to a storage provider that all hosts can reach"
                )

    def is_begun(self) -> bool:
        """Whether a commit has been written down and not been finished."""
        return any(_is_intent(name) for name in self._names())

    def clear(self) -> None:
        """Delete all objects below the prefix, intents last."""
        self.discard(sorted(self._names(), key=_is_intent))

    def discard(self, names: Iterable[str]) -> None:
        """Take away the objects of these names."""
        for name in names:
            with contextlib.suppress(NotFoundError):  # another attempt was faster
                self._store.delete(SPACE, name)

    def sweep(self, prefix: str, before: int) -> None:
        """Delete what writes whose names begin with *prefix* left behind and no process has added to since *before*.

        *before* is in microseconds since the epoch. What has no time is left.
        """
        newest: dict[str, int | None] = {}
        entries = list(self._entries(prefix))
        for entry in entries:
            name = entry.content_id.partition("/")[0]
            known = newest.get(name, 0)
            newest[name] = None if known is None or entry.modified is None else max(known, entry.modified)
        old = {name for name, modified in newest.items() if modified is not None and modified < before}
        self.discard(entry.content_id for entry in entries if entry.content_id.partition("/")[0] in old)

    def _names(self) -> list[str]:
        return [entry.content_id for entry in self._entries(f"{self._prefix}/")]

    def _entries(self, prefix: str) -> Iterator[Entry]:
        if self._store.has_space(SPACE):
            yield from all_entries(self._store, SPACE, prefix=prefix)

    def _discard_earlier(self, intent: CommitIntent, write: str, number: int) -> None:
        """Delete what an earlier release has staged of the appended *intent*."""
        names = [part.name for part in intent.parts if not part.name.startswith(f"{self._prefix}/")]
        if names and self._earlier:
            self.discard([*names, _intent_name(self._earlier, write, number)])

    def _record_intent(
        self, log: Log, write: str, number: int, parts: Sequence[StagedPart], claim: WriteClaim | None
    ) -> CommitIntent:
        """Decide that *parts* are what commit *number* of *write* appends, after everything that may be refused."""
        intent = CommitIntent(tuple(sorted((part for part in parts if part.rows), key=lambda part: part.partition)))
        if (total := sum(part.pieces for part in intent.parts)) >= _PIECES:
            raise PipelineInputError(
                f"the write {write!r} has {total:,} pieces, and one commit can have at most {_PIECES - 1:,}: split the "
                "rows into several writes"
            )
        if log.bodies_only:
            require_bodies_only(sorted({column for part in intent.parts for column in part.columns}))
        self.check_stored(intent.parts)
        if claim is not None:
            claim.claim(log, write)
        self._store.create_space(SPACE)
        name = _intent_name(self._prefix, write, number)
        self._store.put(SPACE, name, io.BytesIO(canonical_json(msgspec.to_builtins(intent))))
        return intent

    def _intent(self, write: str, number: int) -> CommitIntent:
        """The record of commit *number* of *write*, of which the log has pieces already."""
        known = self._read_intent(_intent_name(self._prefix, write, number))
        if known is None and self._earlier:
            known = self._read_intent(_intent_name(self._earlier, write, number))
        if known is None:
            raise PipelineError(
                f"commit {number} of the write {write!r} was started by another driver, but its record "
                f"is not in {safe_url(self._url)}: set 'staging' to the same URL as that driver"
            )
        return known

    def _read_intent(self, name: str) -> CommitIntent | None:
        try:
            with self._store.open(SPACE, name) as file:
                return msgspec.json.decode(file.read(64 << 20), type=prepared(CommitIntent))
        except NotFoundError:
            return None
        except msgspec.DecodeError as error:
            raise PipelineError(
                f"the commit record {name} in {safe_url(self._url)} is damaged ({error}), and a part of its rows "
                "may be in the log already: restore the record from a copy of the storage. A write under another name "
                "would append these rows again"
            ) from error

    def _append(self, writer: Writer, intent: CommitIntent, first: int) -> None:
        total = sum(part.pieces for part in intent.parts)
        sequences = itertools.chain(range(first + 1, first + total), [first + _PIECES - 1])
        for part in intent.parts:
            own = list(itertools.islice(sequences, part.pieces))
            if own[-1] > writer.sequence:
                with tempfile.TemporaryFile() as file:
                    self._fetch(part, file)
                    for sequence, piece in zip(own, pa.ipc.open_stream(file), strict=True):
                        writer.append(piece, sequence=sequence)

    def _fetch(self, part: StagedPart, file: BinaryIO) -> None:
        """The bytes of *part*, checked before any is appended."""
        with self._store.open(SPACE, part.name) as source:
            found = copy_stream(source, file).sha256
        if found != part.sha256:
            raise PipelineError(
                f"the staged part {part.name} in {safe_url(self._url)} is damaged: repeat the write under the "
                "same name with the same rows and partitions, or restore the part from a copy of the storage"
            )
        file.seek(0)


def _rewound(log: Log, write: str, number: int, last: int) -> str:
    return (
        f"commit {number} of the write {write!r} comes after commit {last}, which is in the log {log.name!r}: the "
        "stream has a new or an older checkpoint, and its rows would be appended in part or twice. Give a new "
        f"checkpoint a name of its own with .option('write', NAME){AFTER_STORED_ROWS}"
    )


def _producer(write: str) -> str:
    return f"spark.{write}"


def _intent_name(prefix: str, write: str, number: int) -> str:
    return f"{prefix}/{_INTENT}{write}-{number}.json"


def _is_intent(name: str) -> bool:
    return name.rpartition("/")[2].startswith(_INTENT)


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if batch.num_rows:
        size = max(1, batch.num_rows * PIECE_BYTES // max(batch.nbytes, PIECE_BYTES))
        for start in range(0, batch.num_rows, size):
            yield batch.slice(start, size)
