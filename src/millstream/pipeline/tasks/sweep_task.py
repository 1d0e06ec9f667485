"""Tasks of the job ``integrity``: read every item of a bin, and record the observations.

Nothing is judged here. A fact says what provider and bytes answered; what that means is decided later, from the facts
alone, and can be decided again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import msgspec
import pyarrow as pa

from millstream.core.clock import Clock, SystemClock
from millstream.core.errors import NotFoundError
from millstream.core.retry import NO_RETRY, RetryPolicy
from millstream.mill.integrity_decision import SourceAnswer
from millstream.mill.merge_join import groups
from millstream.mill.mount_check import MountCheck
from millstream.pipeline.planning.binned_work import BinTarget, Work, fill_bin
from millstream.stores import DamagedRecordError, Digests, Store, StoreError, hash_stream, open_provider
from millstream.stores.bulk import SMALL, Reading, bulk_of, reads_at_once
from millstream.stores.protocol import READ_REFUSALS

PLAN_SCHEMA = pa.schema(
    [
        pa.field("store", pa.string(), nullable=False),
        pa.field("space", pa.string(), nullable=False),
        pa.field("content_id", pa.string(), nullable=False),
        pa.field("manifest", pa.string()),
        pa.field("deleted", pa.bool_(), nullable=False),
        pa.field("elsewhere", pa.bool_(), nullable=False),
        pa.field("listed", pa.bool_(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
    ]
)
"""One row an item to check. ``manifest`` is the recorded sha256 (hex), null without a row; ``deleted`` marks a
tombstone; ``elsewhere`` whether another store's live row has the same sum; ``listed`` whether the inventory has it;
``size`` is in bytes, as listed or else as recorded."""

FACT_SCHEMA = pa.schema(
    [
        *PLAN_SCHEMA,
        pa.field("provider", pa.string(), nullable=False),
        pa.field("content", pa.string(), nullable=False),
        pa.field("read", pa.int64(), nullable=False),
        pa.field("modified", pa.int64()),
        pa.field("checked_at", pa.int64(), nullable=False),
        pa.field("seconds", pa.float64(), nullable=False),
        pa.field("error", pa.string()),
    ]
)
"""A planned item with what was seen: ``provider`` and ``content`` are sums (hex) or answers (:class:`SourceAnswer`),
``read`` the bytes that were hashed, ``modified`` and ``checked_at`` microseconds since the epoch, UTC."""


_TOGETHER = 250
"""Items that are examined and read together."""


class ItemObservation(msgspec.Struct, frozen=True):
    """The observation of one item."""

    provider: str
    content: str
    read: int = 0
    modified: int | None = None
    error: str | None = None


def sweep_part(
    parts: Iterable[pa.RecordBatch], stores: Mapping[str, str], facts: BinTarget, *, filled: Collection[str] = ()
) -> Iterator[pa.RecordBatch]:
    """Check the items of one bin (rows of :data:`PLAN_SCHEMA` with ``bin``) and write its facts, whole or not at all.

    *stores* gives the URL of each store id, *filled* the ids of those that should have items: one that lists no space
    is not mounted, and its items are not missing but unreachable. Yields what :func:`.binned_work.fill_bin` does.
    """

    def begin() -> Work:
        sweeper = Sweeper({name: open_provider(url) for name, url in stores.items()}, SystemClock(), filled=filled)
        return lambda part: [sweeper.check_part(part.drop_columns(["bin"]))]

    yield from fill_bin(parts, begin, FACT_SCHEMA, facts, size="read")


class Sweeper:
    """Checks items of *stores* (by id); a store that did not answer is asked only once an item until it does again.

    Small items of a space are examined and read together where their store can do that: from a bucket several at a
    time, with one request each.
    """

    def __init__(self, stores: Mapping[str, Store], clock: Clock, *, filled: Collection[str] = ()) -> None:
        self._stores = stores
        self._mount_check = MountCheck(filled.__contains__, clock)
        self._clock = clock
        self._patience = dict.fromkeys(stores, RetryPolicy())

    def check_part(self, part: pa.RecordBatch) -> pa.RecordBatch:
        """The facts of the items in *part* (rows of :data:`PLAN_SCHEMA`)."""
        items = part.to_pylist()
        together = self._read_together(items)
        facts = [together.get(place) or self._check(item) for place, item in enumerate(items)]
        return pa.RecordBatch.from_pylist(facts, FACT_SCHEMA)

    def _read_together(self, items: Sequence[dict[str, Any]]) -> dict[int, dict[str, Any]]:
        """The facts of those of *items* that their store has read together, by place."""
        small = [place for place, item in enumerate(items) if item["listed"] and item["size"] <= SMALL]
        facts = dict[int, dict[str, Any]]()
        for (name, space), places in groupby(small, lambda place: (items[place]["store"], items[place]["space"])):
            bulk = bulk_of(self._stores[name])
            at_once = None if bulk is None else reads_at_once(bulk)
            if at_once is None:
                continue
            for some in groups(places, _TOGETHER):
                began = self._clock.monotonic()
                try:
                    found = at_once.readings(space, [items[place]["content_id"] for place in some])
                except StoreError:
                    continue  # each of them is asked for alone, and has the answer of the store
                seconds = (self._clock.monotonic() - began) / len(some)
                for place, one in zip(some, found, strict=True):
                    if isinstance(one, Reading):
                        facts[place] = self._fact(items[place], _observed(one), seconds)
        return facts

    def _check(self, item: dict[str, Any]) -> dict[str, Any]:
        name, began = item["store"], self._clock.monotonic()
        seen = observe(self._stores[name], item["space"], item["content_id"], self._clock, self._patience[name])
        if SourceAnswer.MISSING in (seen.provider, seen.content):
            seen = self._require_mounted(name) or seen
        self._patience[name] = NO_RETRY if seen.provider == SourceAnswer.UNREACHABLE else RetryPolicy()
        return self._fact(item, seen, self._clock.monotonic() - began)

    def _require_mounted(self, name: str) -> ItemObservation | None:
        """What is to be said of an item that was not found in the store *name*, where the store itself is not there."""
        store = self._stores[name]
        try:
            spaces = partial(self._patience[name].call, store.spaces, self._clock)
            self._mount_check.require(name, store, spaces, seconds=0)
        except (StoreError, OSError) as error:
            return ItemObservation(SourceAnswer.UNREACHABLE, SourceAnswer.NOT_READ, error=str(error))
        return None

    def _fact(self, item: dict[str, Any], seen: ItemObservation, seconds: float) -> dict[str, Any]:
        return item | msgspec.structs.asdict(seen) | {"checked_at": self._clock.now(), "seconds": seconds}


def _observed(read: Reading) -> ItemObservation:
    return ItemObservation(read.provider or SourceAnswer.NO_CHECKSUM, read.sha256, read.size, read.modified)


def observe(
    store: Store, space: str, content_id: str, clock: Clock, retry: RetryPolicy | None = None
) -> ItemObservation:
    """Ask the provider for the item, then read its bytes; what goes wrong is an answer, not an error."""
    retry = retry or RetryPolicy()
    try:
        info = retry.call(lambda: store.info(space, content_id), clock)
    except NotFoundError:
        return ItemObservation(SourceAnswer.MISSING, SourceAnswer.MISSING)
    except DamagedRecordError as error:
        return ItemObservation(SourceAnswer.DAMAGED_RECORD, SourceAnswer.NOT_READ, error=str(error))
    except (StoreError, OSError) as error:
        return ItemObservation(SourceAnswer.UNREACHABLE, SourceAnswer.NOT_READ, error=str(error))
    provider = info.checksum() or SourceAnswer.NO_CHECKSUM
    try:
        read = retry.call(lambda: _hash(store, space, content_id), clock)
    except NotFoundError:
        return ItemObservation(provider, SourceAnswer.MISSING, modified=info.modified)
    except (StoreError, OSError) as error:
        answer = SourceAnswer.REFUSED if isinstance(error, READ_REFUSALS) else SourceAnswer.UNREADABLE
        return ItemObservation(provider, answer, modified=info.modified, error=str(error))
    return ItemObservation(provider, read.sha256, read.size, info.modified)


def _hash(store: Store, space: str, content_id: str) -> Digests:
    with store.open(space, content_id) as file:
        return hash_stream(file)
