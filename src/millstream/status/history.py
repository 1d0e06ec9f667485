"""A day of a node's counters, one sample a minute, in its database: charts continue where they were after a restart."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import msgspec
import sqlalchemy as sa

from millstream.core.clock import MICROSECONDS
from millstream.core.column_types import EXACT_LONG_TEXT
from millstream.core.decoding import prepared
from millstream.core.errors import MillstreamError
from millstream.core.sql import make_tables, writing
from millstream.status.models import QueueSample, Sample

MINUTES = 1_440
"""Rows that are kept: one for each minute of a day."""

_MINUTE = 60 * MICROSECONDS
_log = logging.getLogger(__name__)
metadata = sa.MetaData()

_samples = sa.Table(
    "console_history",
    metadata,
    sa.Column("minute", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("sample", EXACT_LONG_TEXT, nullable=False),
)


class MinuteSample(msgspec.Struct, frozen=True, kw_only=True):
    """The sample of one minute: the counters, the tasks of each queue, and sizes in bytes.

    ``free`` is the free space of each disk of ``host`` by mount point, ``sizes`` what is stored, by part of the node.
    ``host`` is empty for a node that can have only one.
    """

    counters: Sample
    queues: Mapping[str, QueueSample] = {}
    host: str = ""
    free: Mapping[str, int] = {}
    sizes: Mapping[str, int] = {}


class StatusHistory:
    """The samples of the last day in the database of *engine*; its table is created if absent. Thread-safe.

    At most :data:`MINUTES` rows are kept. A row is written in one transaction, so a crash leaves it whole or absent. Of
    several processes on one database the first that has a sample of a minute writes it.
    """

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._is_failing = False
        make_tables(engine, metadata)

    def read(self, now: int) -> Sequence[MinuteSample]:
        """The samples of the day before *now* (microseconds), the oldest first, without rows that cannot be read."""
        last = now // _MINUTE
        wanted = _samples.c.minute.between(last - MINUTES + 1, last)
        found, unreadable = list[MinuteSample](), 0
        with self._engine.connect() as connection:
            for text in connection.scalars(sa.select(_samples.c.sample).where(wanted).order_by(_samples.c.minute)):
                try:
                    found.append(msgspec.json.decode(text, type=prepared(MinuteSample)))
                except (msgspec.DecodeError, UnicodeError):
                    unreadable += 1
        if unreadable:
            _log.warning("rows of the chart history that cannot be read and are skipped: %d", unreadable)
        return found

    def add(self, sample: MinuteSample) -> None:
        """Write *sample*, unless its minute has one, and delete what is not of the day before it.

        Where it cannot be written, the process logs a warning once, and charts lack that minute after a restart.
        """
        minute = sample.counters.at // _MINUTE
        row = {"minute": minute, "sample": msgspec.json.encode(sample).decode()}
        kept = _samples.c.minute.between(minute - MINUTES + 1, minute)
        try:
            with writing(self._engine) as connection:
                connection.execute(sa.delete(_samples).where(~kept))
                if connection.scalar(sa.select(_samples.c.minute).where(_samples.c.minute == minute)) is None:
                    connection.execute(sa.insert(_samples), row)
        except sa.exc.IntegrityError:  # another process was first
            pass
        except (sa.exc.SQLAlchemyError, MillstreamError) as error:
            if not self._is_failing:
                _log.warning("cannot write the chart history: %s", str(error).partition("\n")[0])
            self._is_failing = True
        else:
            self._is_failing = False
