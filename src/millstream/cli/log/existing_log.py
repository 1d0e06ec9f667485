"""The log of a command, which must exist."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from millstream.log.log import Log
from millstream.log.spec import LogSpec
from millstream.settings import Settings
from millstream.stores.tiers import open_log_store


@contextlib.contextmanager
def existing_log(settings: Settings, name: str, **options: Any) -> Iterator[Log]:
    """The log *name* of the store of *settings*, opened with *options* for the length of a ``with`` block.

    Raises :class:`~millstream.log.LogNotFoundError`.
    """
    with open_log_store(settings.log_url, **options) as store:
        yield store.log(LogSpec(name), create=False)
