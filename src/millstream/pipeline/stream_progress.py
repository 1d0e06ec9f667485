"""How far a stream of the data source is behind its log, from what Spark reports of each trigger.

Spark 4.3 takes no metrics from a data source in Python. Its progress has the offsets of every source, which are ids.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from millstream.core.decoding import prepared
from millstream.log import Log, LogSpec
from millstream.pipeline.errors import PipelineInputError
from millstream.pipeline.planning_store import open_to_plan


class StreamLag(msgspec.Struct, frozen=True, kw_only=True):
    """The messages and bytes that the last trigger of a stream read, and those that remained after it."""

    read_messages: int
    read_bytes: int
    lag_messages: int
    lag_bytes: int


def stream_lag(progress: Mapping[str, Any], store_url: str, log: str, *, source: int = 0) -> StreamLag:
    """The lag of a query at its *progress* (``query.lastProgress``), whose *source* (from 0 on) is *log*.

    Bytes are those of whole blocks as they are stored. Raises :class:`PipelineInputError` where *progress* has
    no offsets of a log at *source*.
    """
    try:
        reported = progress["sources"][source]
        start, end, latest = (_offset(reported[name]) for name in ("startOffset", "endOffset", "latestOffset"))
    except (LookupError, TypeError, ValueError, msgspec.MsgspecError) as error:
        raise PipelineInputError(
            f"source {source} of this progress reads no log: give as `source` the position (from 0) of the source that "
            f"reads {log!r}, and call it after the first trigger of the query"
        ) from error
    end = end or 0
    latest = latest or end
    if start is None:  # the first trigger of a stream
        start = end - int(reported["numInputRows"])
    with open_to_plan(store_url) as store:
        found = store.log(LogSpec(log), create=False)
        return StreamLag(
            read_messages=end - start,
            read_bytes=_bytes(found, start + 1, end),
            lag_messages=latest - end,
            lag_bytes=_bytes(found, end + 1, latest),
        )


def _offset(text: str | None) -> int | None:
    """The id in an offset as Spark reports it; None before the first trigger."""
    offset = msgspec.json.decode(text or "null", type=prepared(dict[str, int] | None))
    return None if offset is None else offset["id"]


def _bytes(log: Log, first_id: int, last_id: int) -> int:
    return sum(block.bytes for block in log.block_ranges(first_id, last_id)) if first_id <= last_id else 0
