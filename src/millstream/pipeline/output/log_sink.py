"""Writing a DataFrame or a stream into a log: tasks stage, the driver appends (see ``staging.py``)."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import ArrayType, BinaryType, DataType, LongType, StringType, StructType, TimestampType

from millstream.core.clock import SystemClock
from millstream.core.errors import MillstreamError
from millstream.core.message import MESSAGE_SCHEMA
from millstream.core.secrets import safe_url
from millstream.log import LogSpec, user_log
from millstream.log.backend_schemes import store_files
from millstream.pipeline.errors import PipelineError, PipelineInputError
from millstream.pipeline.read_options import required
from millstream.pipeline.staging import StagedPart, Staging, staging_prefix
from millstream.pipeline.write_names import (
    JobClaim,
    JobOwner,
    StreamClaim,
    StreamOwner,
    WriteClaim,
    add_fingerprints,
)
from millstream.stores.tiers import open_log_store

_TEXT = (StringType,)
_BYTES = (BinaryType, StringType)
_TIME = (LongType, TimestampType)
_TAKES: Mapping[str, tuple[type[DataType], ...]] = {
    "body": _BYTES, "source": _TEXT, "key": _TEXT, "event_time": _TIME, "received_at": _TIME,
    "headers": (ArrayType,), "id": (LongType,),
}  # fmt: skip

_NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")

_UNNAMED = "once-"
"""The prefix of generated names of writes."""

_KEPT_DAYS = 7
"""The time in which a failed write without a name can still be completed."""


class StagedPartMessage(WriterCommitMessage):
    """The message of a task to the driver: its part."""

    def __init__(self, part: StagedPart) -> None:
        self.part = part


class StagedWrite:
    """The options of a write, checked: ``store`` and ``log``, ``staging`` and ``write``."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        self.store, self.log = required(options, "store"), required(options, "log")
        if overwrite:
            raise PipelineInputError(f"log {self.log!r} can only be appended to: use .mode('append')")
        user_log(self.log)  # a name that no such log can have is refused before anything is computed
        self.staging = options.get("staging") or beside(self.store)
        self.columns = check_schema(schema)

    def messages(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """*batches* with the columns that a log takes, as it takes them."""
        schema = pa.schema([pa.field(name, MESSAGE_SCHEMA.field(name).type) for name in self.columns])
        for batch in batches:
            yield pa.RecordBatch.from_arrays(
                [_column(batch.column(name), schema.field(name).type) for name in self.columns], schema=schema
            )

    def prefix(self, name: str) -> str:
        """Where writes called *name* into this log stage. The log is made where absent."""
        with open_log_store(self.store, clock=SystemClock()) as store:
            return staging_prefix(store.log(LogSpec(self.log)), name)

    def stage(
        self, prefix: str, batches: Iterator[pa.RecordBatch], *, fingerprinted: bool = False
    ) -> StagedPartMessage:
        """Lay down what one task has. Raises :class:`LogInputError` for rows that no log takes."""
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        staging = Staging(self.staging, prefix)
        return StagedPartMessage(staging.store_part(partition, self.messages(batches), fingerprinted=fingerprinted))

    def append(
        self,
        prefix: str,
        write: str,
        number: int,
        parts: Sequence[StagedPart],
        *,
        earlier: str,
        claim: WriteClaim | None = None,
    ) -> None:
        """Append what tasks have staged as commit *number* of *write*."""
        staging = Staging(self.staging, prefix, earlier=earlier)
        with open_log_store(self.store, clock=SystemClock()) as store:
            staging.commit(store.log(LogSpec(self.log)), write, number, parts, claim=claim)

    def abandon(self, prefix: str, parts: Sequence[StagedPart]) -> None:
        """Delete what tasks have staged, unless its commit has begun: then the same write finishes it."""
        staging = Staging(self.staging, prefix)
        if staging.is_begun():
            return
        if prefix.startswith(_UNNAMED):  # no other write stages there: files of dead tasks are deleted too
            staging.clear()
        else:
            staging.discard(part.name for part in parts if part.rows)


class LogWriter(DataSourceArrowWriter):
    """Appends a DataFrame to a log, once a name of a write."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        self._request = StagedWrite(options, schema, overwrite=overwrite)
        self._named = _named(options.get("write"))
        self._write = self._named or f"{_UNNAMED}{secrets.token_hex(8)}"
        self._prefix = self._request.prefix(self._write)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedPartMessage:
        return self._request.stage(self._prefix, iterator, fingerprinted=self._named is not None)

    def commit(self, messages: list[StagedPartMessage | None]) -> None:
        parts = _parts(messages)
        if self._named:
            rows = JobOwner(
                rows=sum(part.rows for part in parts),
                fingerprint=add_fingerprints(*(part.fingerprint for part in parts)),
            )
            self._append(parts, JobClaim(rows))
        else:
            self._commit_once(parts)

    def abort(self, messages: list[StagedPartMessage | None]) -> None:
        self._request.abandon(self._prefix, _parts(messages))

    def _append(self, parts: Sequence[StagedPart], claim: JobClaim | None = None) -> None:
        self._request.append(self._prefix, self._write, 0, parts, earlier=self._write, claim=claim)

    def _commit_once(self, parts: Sequence[StagedPart]) -> None:
        """Append *parts* of a write without a name, and delete what such writes left behind long ago."""
        staging = Staging(self._request.staging, self._prefix)
        try:
            self._append(parts)
        except MillstreamError as error:
            if staging.is_begun():
                raise PipelineError(
                    f"{error}. Some rows may be in the log already: repeat the write with "
                    f".option('write', '{self._write}') within {_KEPT_DAYS} days to append only the "
                    "missing ones"
                ) from error
            raise
        staging.sweep(_UNNAMED, SystemClock().now() - _KEPT_DAYS * 86_400_000_000)


class LogStreamWriter(DataSourceStreamArrowWriter):
    """Appends each trigger of a stream to a log, once."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        self._request = StagedWrite(options, schema, overwrite=overwrite)
        self._named = _named(options.get("write"))
        self._checkpoint = options.get("checkpointLocation")
        if not (self._named or self._checkpoint):
            raise PipelineInputError(
                f"a stream into log {self._request.log!r} needs .option('checkpointLocation', …), which identifies a "
                "repeated trigger"
            )
        # not the query's id: tasks may not be able to see the checkpoint
        checkpoint = hashlib.sha256(str(self._checkpoint).encode()).hexdigest()[:20]
        self._earlier = self._named or f"stream-{checkpoint}"
        self._prefix = self._request.prefix(self._earlier)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedPartMessage:
        return self._request.stage(self._prefix, iterator)

    def commit(self, messages: list[StagedPartMessage | None], batchId: int) -> None:  # noqa: N803
        write, claim = self._identity()
        self._request.append(self._prefix, write, batchId, _parts(messages), earlier=self._earlier, claim=claim)

    def abort(self, messages: list[StagedPartMessage | None], batchId: int) -> None:  # noqa: ARG002, N803
        self._request.abandon(self._prefix, _parts(messages))

    def _identity(self) -> tuple[str, StreamClaim | None]:
        """The name of the write, and whose it is: the query's that the checkpoint was made by."""
        if not self._named:
            return _query_id(str(self._checkpoint)), None
        query = ""
        if self._checkpoint:
            with contextlib.suppress(PipelineInputError):  # it is elsewhere: then its URL says whose the name is
                query = _query_id(self._checkpoint)
        return self._named, StreamClaim(StreamOwner(query=query, checkpoint=self._checkpoint or ""))


def _query_id(checkpoint: str) -> str:
    """The id of the query whose checkpoint is at the URL *checkpoint*: a new checkpoint is a new query."""
    path = Path(unquote(urlsplit(checkpoint).path), "metadata")
    try:
        return str(json.loads(path.read_text("utf-8"))["id"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = error.strerror if isinstance(error, OSError) else f"{path} is not a JSON object with an id"
        raise PipelineInputError(
            f"cannot read the checkpoint {checkpoint} here ({why}): name a new stream with .option('write', NAME), and "
            "use a new name with each new checkpoint; if the stream has run before, make the checkpoint readable here"
        ) from error


def _parts(messages: Sequence[StagedPartMessage | None]) -> list[StagedPart]:
    return [message.part for message in messages if message is not None]


def beside(store_url: str) -> str:
    """The URL of the folder for staged parts beside the files of a log store.

    Raises :class:`PipelineInputError` for a store that has no files: there the place must be named.
    """
    path = store_files(store_url)
    if path is None:
        raise PipelineInputError(
            f"option 'staging' is missing, and {safe_url(store_url)} has no folder for it: name a storage "
            "provider that all hosts reach, such as file:///shared/folder or s3://bucket/prefix"
        )
    return path.with_name(f"{path.name}.staging").as_uri()


def check_schema(schema: StructType) -> list[str]:
    """The columns of *schema* that a log takes; ids are left out. Raises :class:`PipelineInputError`."""
    names = schema.fieldNames()
    if "body" not in names or set(names) - set(_TAKES):
        raise PipelineInputError(
            f"cannot write the columns {', '.join(names) or '(none)'}: a log accepts {', '.join(_TAKES)}, "
            "and needs at least body"
        )
    for field in schema.fields:
        if field.name == "headers":
            fits, wanted = _are_headers(field.dataType), "array<struct<name:string,value:binary>>"
        else:
            fits = isinstance(field.dataType, _TAKES[field.name])
            wanted = " or ".join(kind.typeName() for kind in _TAKES[field.name])
        if not fits:
            raise PipelineInputError(
                f"column {field.name!r} has the type {field.dataType.simpleString()}; a log takes {wanted}: "
                "cast the column"
            )
    return [name for name in names if name != "id"]


def _are_headers(kind: DataType) -> bool:
    """Whether *kind* is an array of names and values."""
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return False
    if kind.elementType.fieldNames() != ["name", "value"]:
        return False
    name, value = (field.dataType for field in kind.elementType.fields)
    return isinstance(name, _TEXT) and isinstance(value, _BYTES)


def _named(write: str | None) -> str | None:
    if write is not None and not _NAME.fullmatch(write):
        raise PipelineInputError(f"option 'write': invalid name {write!r}: use 1 to 100 letters, digits and '._-'")
    return write


def _column(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", column.type.tz))
    return column.cast(kind)
