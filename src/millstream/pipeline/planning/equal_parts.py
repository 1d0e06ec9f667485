"""Parts of equal work: items into bins by their cost, the largest first.

Only the items that could unbalance a bin on their own are placed one by one; the many small ones are spread by a hash
of their name, which evens out by itself. So the driver holds a few items a bin, however many there are in all.
"""

from __future__ import annotations

import heapq

import numpy as np
import numpy.typing as npt

Sizes = npt.NDArray[np.int64]

ITEM_COST = 64 << 10
"""The cost of an item besides its bytes (open, metadata), in bytes that could be hashed in the same time."""

_HEAVY_SHARE = 8
"""An item is heavy when it fills more than one part in eight of a bin."""


def count_bins(total: int, items: int, *, target: int, least: int, most: int) -> int:
    """How many bins of about *target* bytes *items* of *total* bytes need, between *least* and *most*."""
    cost = total + items * ITEM_COST
    return max(1, min(most, max(least, -(-cost // target)), items))


def heavy_threshold(total: int, items: int, bins: int) -> int:
    """The size in bytes from which an item is placed on its own."""
    return max(ITEM_COST, (total + items * ITEM_COST) // (bins * _HEAVY_SHARE))


def assign_largest_first(sizes: Sizes, loads: Sizes) -> npt.NDArray[np.int32]:
    """The bin of each of *sizes* (bytes): the largest first, each into the bin that is least full so far.

    *loads* are the bytes that already lie in each bin. Equal sizes go in the order given, equal bins by number, so the
    result is a function of the input. It is never worse than 4/3 of the best (Graham 1969).
    """
    heap = [(int(load), number) for number, load in enumerate(loads)]
    heapq.heapify(heap)
    bins = np.zeros(len(sizes), np.int32)
    for position in np.argsort(-sizes, kind="stable"):
        load, number = heap[0]
        bins[position] = number
        heapq.heapreplace(heap, (load + int(sizes[position]) + ITEM_COST, number))
    return bins
