"""Types that several threads decode into.

msgspec gathers what it has to know of a type when that is first decoded into, and lets other threads run meanwhile:
those that decode into the same type then end the process (seen in each version from 0.19 to 0.22). So all that is
decoded here names its type by :func:`prepared`.
"""

from __future__ import annotations

import threading
from typing import Any, TypeVar

import msgspec

Kind = TypeVar("Kind")

_lock = threading.Lock()
_known: set[Any] = set()


def prepared(kind: Kind) -> Kind:
    """*kind*, a type that msgspec takes, once msgspec has gathered what it has to know of it. Thread-safe.

    Raises TypeError for a type that cannot be decoded into.
    """
    if kind not in _known:
        with _lock:
            msgspec.msgpack.Decoder(kind)
            _known.add(kind)
    return kind
