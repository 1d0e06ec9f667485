"""Messages that are given together as they lie in their log: columns from the disk to the client.

An object a message would cost more than all the rest of giving it. What is not plain goes the way of single messages,
so that there is one place that says what such messages look like.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.messaging.broker.names import write_handles
from millstream.messaging.broker.storage.wire_codec import GROUP, ID, QUEUE, TAG, TYPE
from millstream.messaging.protocol import v2
from millstream.messaging.protocol.batch_calls import ReceiveBatchResponse, checksum

_PLAIN: Final = frozenset((ID, QUEUE, TAG, GROUP, TYPE))
"""Headers that columns are made of here; messages with others, users' own among them, go singly."""


class ColumnChunk(msgspec.Struct, frozen=True):
    """Messages that follow one another, none of them given before, as a slice of their log (``MESSAGE_SCHEMA``).

    ``token`` is what they were lent under.
    """

    arrow: Any
    token: int = 0

    def __len__(self) -> int:
        return int(self.arrow.num_rows)

    @property
    def first_id(self) -> int:
        """The id of the first; the others follow without a gap."""
        return int(self.arrow.column("id")[0].as_py())

    @property
    def body_bytes(self) -> int:
        """The bytes of all bodies."""
        return int(pc.sum(pc.binary_length(self.arrow.column("body"))).as_py() or 0)


def to_columns(run: ColumnChunk, delivered: int) -> ReceiveBatchResponse | None:
    """*run* as it is handed out at *delivered* (microseconds); None where its messages are not alike and plain."""
    found = _plain_headers(run.arrow.column("headers"), len(run))
    if found is None:
        return None
    bodies = run.arrow.column("body").to_pylist()
    names, keys, first = found, run.arrow.column("key").to_pylist(), run.first_id
    queues = {text: int(text) for text in set(names.get(QUEUE, ()))}
    return ReceiveBatchResponse(
        code=v2.OK,
        text="OK",
        delivered=delivered,
        crc=checksum(bodies),
        ids=names[ID],
        handles=write_handles(range(first, first + len(run)), run.token),
        attempts=[1] * len(run),
        bodies=bodies,
        queues=[queues[text] for text in names[QUEUE]] if QUEUE in names else [0] * len(run),
        offsets=list(range(first - 1, first - 1 + len(run))),
        born=_times(run, "event_time"),
        stored=_times(run, "received_at"),
        hosts=run.arrow.column("source").to_pylist(),
        tags=names.get(TAG, []),
        keys=[(key,) if key else () for key in keys] if any(keys) else [],
        groups=names.get(GROUP, []),
    )


def _times(run: ColumnChunk, name: str) -> list[int]:
    times: list[int] = run.arrow.column(name).fill_null(0).to_pylist()
    return times


def _plain_headers(headers: Any, count: int) -> dict[str, list[str]] | None:
    """The values of each header, where all *count* messages have the same plain ones in the same order, else None."""
    pairs = headers.flatten()
    width, rest = divmod(len(pairs), count)
    if rest or not width or len(pc.unique(pc.list_value_length(headers))) > 1:
        return None
    coded = pairs.field("name").dictionary_encode()
    codes = np.asarray(coded.indices).reshape(count, width)
    names = [coded.dictionary[int(code)].as_py() for code in codes[0]]
    if ID not in names or len(set(names)) < width or not _PLAIN.issuperset(names) or (codes != codes[0]).any():
        return None
    try:
        values = pairs.field("value").cast(pa.string()).to_pylist()
    except pa.ArrowInvalid:
        return None
    return {name: values[place::width] for place, name in enumerate(names)}
