"""Where tasks lay down what is to be appended to a log, until the driver appends it: exactly once.

Tasks cannot append: a log has one writer, and a task may run twice. So each lays its rows down as one *part*, under a
name made of its bytes, at a storage provider that all hosts reach. The driver writes down which parts make up the
*commit* (its *intent*), appends them under the log's lease in pieces that the log numbers, and takes the parts away.
Whoever comes after a driver that died finds the intent, and appends the pieces that the log has not got.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO

import msgspec
import pyarrow as pa

from millstream.core.canonical import canonical_json
from millstream.core.errors import NotFoundError
from millstream.log import Log, Writer
from millstream.log.backends.database.address import mask_password
from millstream.pipeline.errors import PipelineError, PipelineInputError
from millstream.stores import Store, all_entries, copy_stream, hash_stream, open_provider

SPACE = "x-staging"
"""The space of staged parts: one of the system's own, which no policy copies and no sweep reads."""

PIECE_BYTES = 16 << 20
"""About the most bytes of one append."""

_PIECES = 1 << 24
"""The pieces of commit *n* have the sequences from n · 2^24 + 1 on; the last has the last sequence of that range."""

_INTENT = "intent-"


class StagedPart(msgspec.Struct, frozen=True):
    """What one task laid down: its partition, the name of its object, its rows and pieces, and the object's SHA-256."""

    partition: int
    name: str
    rows: int
    pieces: int
    sha256: str


class CommitIntent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The parts of a commit, in the order in which they are appended."""

    parts: tuple[StagedPart, ...]


class PartWriter:
    """A part in the making, in a temporary file of this host."""

    def __init__(self, staging: Staging, partition: int, file: BinaryIO) -> None:
        self._staging, self._partition, self._file = staging, partition, file
        self._stream: pa.ipc.RecordBatchStreamWriter | None = None
        self.rows = self._pieces = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Append *batch*; all of a part have one schema."""
        for piece in _pieces(batch):
            if self._stream is None:
                self._stream = pa.ipc.new_stream(self._file, piece.schema)
            self._stream.write_batch(piece)
            self.rows, self._pieces = self.rows + piece.num_rows, self._pieces + 1

    def store_part(self) -> StagedPart:
        """Store the part. One without rows is no object."""
        if self._stream is None:
            return StagedPart(self._partition, "", 0, 0, "")
        self._stream.close()
        name, digest = self._staging.put(self._partition, self._file)
        return StagedPart(self._partition, name, self.rows, self._pieces, digest)


class Staging:
    """The parts of one write at the provider of *url*, below a *prefix* of their own."""

    def __init__(self, url: str, prefix: str) -> None:
        self._store: Store = open_provider(url, create=True)
        self._url, self._prefix = url, prefix

    def store_part(self, partition: int, batches: Iterable[pa.RecordBatch]) -> StagedPart:
        """Lay down *batches* as the part of *partition*; what is laid down again has the same name."""
        with self.part_writer(partition) as part_writer:
            for batch in batches:
                part_writer.add(batch)
            return part_writer.store_part()

    @contextlib.contextmanager
    def part_writer(self, partition: int) -> Iterator[PartWriter]:
        """The part of *partition* in the making, for the length of the block."""
        with tempfile.TemporaryFile() as file:
            yield PartWriter(self, partition, file)

    def put(self, partition: int, file: BinaryIO) -> tuple[str, str]:
        """Store *file* as the part of *partition*; returns its name and its SHA-256."""
        file.seek(0)
        digest = hash_stream(file).sha256
        file.seek(0)
        name = f"{self._prefix}/part-{partition:05}-{digest[:20]}.arrow"
        self._store.create_space(SPACE)
        self._store.put(SPACE, name, file, sha256=digest)
        return name, digest

    def commit(self, log: Log, write: str, number: int, parts: Sequence[StagedPart], *, keep: bool = False) -> int:
        """Append *parts*, or what an earlier commit *number* of *write* was about; returns how many messages.

        A commit that was finished before appends nothing. Afterwards its parts are deleted, unless *keep* says that
        there is more to be committed from it. Raises :class:`PipelineError` where parts are damaged or
        gone, and what the log raises.
        """
        with log.writer(f"spark.{write}") as writer:
            first, last = number * _PIECES, (number + 1) * _PIECES - 1
            before = writer.last_id
            if writer.sequence < last:
                self._append(writer, self._intended(write, number, parts, begun=writer.sequence > first), first)
            if not keep:
                self.clear()
            return writer.last_id - before

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

    def _names(self) -> list[str]:
        if not self._store.has_space(SPACE):
            return []
        return [entry.content_id for entry in all_entries(self._store, SPACE, prefix=f"{self._prefix}/")]

    def _intended(self, write: str, number: int, parts: Sequence[StagedPart], *, begun: bool) -> CommitIntent:
        """The intent of commit *number*: the one that is there, else *parts*, from now on."""
        name = f"{self._prefix}/{_INTENT}{write}-{number}.json"
        known = self._read_intent(name)
        if known is not None:
            return known
        if begun:
            raise PipelineError(
                f"commit {number} of the write {write!r} was begun by another driver, but its intent is not in "
                f"{mask_password(self._url)}: name the same 'staging' as that one"
            )
        intent = CommitIntent(tuple(sorted((part for part in parts if part.rows), key=lambda part: part.partition)))
        self._store.create_space(SPACE)
        self._store.put(SPACE, name, io.BytesIO(canonical_json(msgspec.to_builtins(intent))))
        return intent

    def _read_intent(self, name: str) -> CommitIntent | None:
        try:
            with self._store.open(SPACE, name) as file:
                return msgspec.json.decode(file.read(64 << 20), type=CommitIntent)
        except NotFoundError:
            return None
        except msgspec.DecodeError as error:
            raise PipelineError(f"{name} in {mask_password(self._url)} is damaged: {error}") from error

    def _append(self, writer: Writer, intent: CommitIntent, first: int) -> None:
        total = sum(part.pieces for part in intent.parts)
        if total >= _PIECES:
            raise PipelineInputError(f"{total:,} pieces are more than one commit takes: write in several")
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
                f"the staged part {part.name} in {mask_password(self._url)} is damaged; run the write again"
            )
        file.seek(0)


def _is_intent(name: str) -> bool:
    return name.rpartition("/")[2].startswith(_INTENT)


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    if batch.num_rows:
        size = max(1, batch.num_rows * PIECE_BYTES // max(batch.nbytes, PIECE_BYTES))
        for start in range(0, batch.num_rows, size):
            yield batch.slice(start, size)
