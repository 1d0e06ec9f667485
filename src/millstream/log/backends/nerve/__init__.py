"""The nerve table layout in MariaDB or MySQL: ``mysql://user@host:port/database?layout=nerve&shards=4``.

A queue of the original (seed document nerve) can be read, written, and copied in both directions. What lies in the
tables, and what two kinds of publishers do to one another, is in ``docs/formats/nerve-layout.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from millstream.log.backends.nerve.address import NerveAddress, is_nerve, parse_nerve
    from millstream.log.backends.nerve.backend import NerveBackend
    from millstream.log.backends.nerve.queue import NerveHost, NerveQueue

__all__ = ["NerveAddress", "NerveBackend", "NerveHost", "NerveQueue", "is_nerve", "parse_nerve"]

__getattr__ = lazy_names(__name__)
