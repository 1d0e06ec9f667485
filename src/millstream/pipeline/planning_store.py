"""The log store as the driver opens it, again and again: one in a bucket is kept open, since it is dear to open."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Iterator

from millstream.core.clock import SystemClock
from millstream.log import LogStore
from millstream.log.backends.objects.bucket import is_bucket_url
from millstream.stores import tiers

MOST_KEPT = 8

_lock = threading.Lock()
_kept: OrderedDict[str, LogStore] = OrderedDict()


@contextlib.contextmanager
def open_to_plan(store_url: str) -> Iterator[LogStore]:
    """The log store at *store_url* for the length of a ``with`` block.

    Opening a log in a bucket reads up to a few hundred commits, and asking it again a few objects. So a store there
    stays open for the next block of this process: a stream plans every second.
    """
    if not is_bucket_url(store_url):
        with tiers.open_log_store(store_url, clock=SystemClock(), create=False) as store:
            yield store
        return
    with _lock:
        if store_url not in _kept:
            _kept[store_url] = tiers.open_log_store(store_url, clock=SystemClock(), create=False)
        _kept.move_to_end(store_url)
        kept = _kept[store_url]
        if len(_kept) > MOST_KEPT:
            _kept.popitem(last=False)  # not closed: another thread may be using it
    yield kept


def forget_stores() -> None:
    """Open each store again from now on."""
    with _lock:
        _kept.clear()
