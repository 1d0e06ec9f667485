"""Finding the newest of objects that are numbered without a gap and never deleted, by GETs alone."""

from __future__ import annotations

from collections.abc import Callable


def find_newest(get: Callable[[int], bytes | None], known: int) -> tuple[int, bytes | None]:
    """The last number for which *get* has an object, and that object.

    The object *known* exists (0: there may be none). Without a newer one it is *known* and None after one request;
    otherwise the requests grow with the logarithm of what was added.
    """
    low, found, step = known, None, 1
    while (data := get(low + step)) is not None:
        low, found, step = low + step, data, step * 2
    high = low + step
    while high - low > 1:
        middle = (low + high) // 2
        data = get(middle)
        if data is None:
            high = middle
        else:
            low, found = middle, data
    return low, found
