"""The tasks of the mill: frozen structs, written to work queues as tagged JSON."""

from __future__ import annotations

import enum
from collections.abc import Set as AbstractSet

import msgspec

from millstream.core.decoding import prepared
from millstream.mill.errors import TaskError

MAX_TASK_BYTES = 64 * 1024
"""No task is larger: ids have at most 1,024 bytes."""


class QueueName(enum.StrEnum):
    """The queues of the mill (seed document, "Queues"); dead letters stay with the queue they died in.

    The storage statistics have their own queue, as in the later original, and so have repairs.
    """

    DUPLICATION_HIGH = "duplication-high"
    DUPLICATION_LOW = "duplication-low"
    BIT_INTEGRITY = "bit-integrity"
    BIT_ERROR = "bit-error"
    BIT_REPORT = "bit-report"
    AUDIT = "audit"
    REPAIR = "repair"
    STORAGE_STATISTICS = "storage-statistics"


class Duplicate(msgspec.Struct, frozen=True, tag="duplicate", forbid_unknown_fields=True, gc=False):
    """Bring one content item of a destination in line with the source; an empty ``content_id`` means the space."""

    source: str
    destination: str
    space: str
    content_id: str = ""


class BitCheck(msgspec.Struct, frozen=True, tag="bit-check", forbid_unknown_fields=True, gc=False):
    """Check every bit of one content item in one store."""

    store: str
    space: str
    content_id: str


class BitError(msgspec.Struct, frozen=True, tag="bit-error", forbid_unknown_fields=True):
    """A finding for people: which row of the table, and what each source said."""

    store: str
    space: str
    content_id: str
    row: str
    detail: str
    manifest: str | None = None
    provider: str | None = None
    content: str | None = None


class BitReport(msgspec.Struct, frozen=True, tag="bit-report", forbid_unknown_fields=True):
    """Report on the check of one space, all of whose checks have ended, or died.

    The checks began at ``since`` (microseconds since the epoch, UTC), and there were ``listed`` of them; a ``note``
    says why they cannot have been all, where the space could not be listed to its end. Items that were found good at
    ``good_since`` or later were not checked again (None: every item was).
    """

    store: str
    space: str
    since: int
    listed: int
    note: str = ""
    good_since: int | None = None


class StorageStatistics(msgspec.Struct, frozen=True, tag="storage-statistics", forbid_unknown_fields=True):
    """Count the items and bytes of a space, as the manifest has them."""

    store: str
    space: str


class Repair(msgspec.Struct, frozen=True, tag="repair", forbid_unknown_fields=True):
    """Repair the copies of one content item by a vote; ``reason`` is the finding that asked for it."""

    space: str
    content_id: str
    reason: str = ""


class Audit(msgspec.Struct, frozen=True, tag="audit", forbid_unknown_fields=True, gc=False):
    """Process one audited change: the event of this ``number`` in the outbox."""

    number: int


class Notify(msgspec.Struct, frozen=True, tag="notify", forbid_unknown_fields=True):
    """Tell people that *user* made a new space, at ``at`` (microseconds since the epoch, UTC)."""

    account: str
    store: str
    space: str
    user: str
    at: int


class NotifyReport(msgspec.Struct, frozen=True, tag="notify-report", forbid_unknown_fields=True):
    """Tell people of a report that does not say SUCCESS; ``text`` is what it says, for them."""

    store: str
    space: str
    result: str
    text: str


Task = Duplicate | BitCheck | BitError | BitReport | StorageStatistics | Repair | Audit | Notify | NotifyReport

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Task] = msgspec.json.Decoder(prepared(Task))


def encode_task(task: Task) -> bytes:
    """The body of *task* on a queue."""
    return _encoder.encode(task)


def stores_of(task: Task) -> AbstractSet[str]:
    """The stores that *task* names; it may need others, too, such as a repair."""
    return {getattr(task, field) for field in ("source", "destination", "store") if hasattr(task, field)}


def decode_task(body: bytes) -> Task:
    """The task of a queue's *body*. Raises :class:`TaskError` for anything that is not a task of the mill."""
    if len(body) > MAX_TASK_BYTES:
        raise TaskError(f"the task has {len(body):,} bytes; a task has at most {MAX_TASK_BYTES:,} bytes")
    try:
        return _decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise TaskError(
            f"not a task of the mill: {error}. Correct its JSON, which begins with "
            f"{body[:80].decode('utf-8', 'replace')!r}; a dead task is corrected with `millstream queue amend`"
        ) from error
