"""The rule "the first one holds": which batches may not be anchored because of others (docs/formats/records.md)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

ANCHORED_BEFORE = "this batch id is already in anchor "
"""How the reason begins for which a batch is rejected that is anchored already."""


class BatchMembers(msgspec.Struct, frozen=True):
    """Batches and their messages, to be checked against what is anchored: the ids of the batches, those of all messages
    batch by batch (uint64), and how many each batch has (uint32)."""

    batches: Sequence[str]
    ids: npt.NDArray[np.uint64]
    counts: npt.NDArray[np.uint32]

    @classmethod
    def of(cls, batches: Sequence[str], ids: Sequence[Sequence[int]]) -> BatchMembers:
        """*batches*, each with those of *ids* that stand at its place."""
        counts = np.fromiter(map(len, ids), "<u4", len(ids))
        return cls(batches, np.fromiter(itertools.chain.from_iterable(ids), "<u8", int(counts.sum())), counts)

    @property
    def ordinals(self) -> npt.NDArray[np.uint32]:
        """The place of its batch, from 0 on, for each message."""
        return np.repeat(np.arange(len(self.counts), dtype="<u4"), self.counts)

    def each(self) -> Iterator[tuple[str, list[int]]]:
        """Each batch with its messages."""
        ids, ends = self.ids.tolist(), itertools.accumulate(self.counts.tolist(), initial=0)
        for batch, (begin, end) in zip(self.batches, itertools.pairwise(ends), strict=True):
            yield batch, ids[begin:end]


def find_duplicates(members: BatchMembers, messages: Mapping[int, int], batches: Mapping[str, int]) -> dict[int, str]:
    """Reasons why some of *members*, anchored in this order, are invalid, by ordinal.

    *messages* and *batches* say which message ids and batch ids are anchored already, and in which anchor.
    """
    refused: dict[int, str] = {}
    seen_batches, seen_messages = set[str](), set[int]()
    for ordinal, (batch, ids) in enumerate(members.each()):
        reason = _batch_refusal(batch, batches, seen_batches) or _message_refusal(ids, messages, seen_messages)
        if reason is not None:
            refused[ordinal] = reason
            continue
        seen_batches.add(batch)
        seen_messages.update(ids)
    return refused


def _batch_refusal(batch: str, batches: Mapping[str, int], seen: set[str]) -> str | None:
    if batch in batches:
        return f"{ANCHORED_BEFORE}{batches[batch]}"
    return "this batch id is in the same anchor twice" if batch in seen else None


def _message_refusal(ids: Sequence[int], messages: Mapping[int, int], seen: set[int]) -> str | None:
    if len(set(ids)) != len(ids):
        return "this batch contains a message twice"
    for number in ids:
        if number in messages:
            return f"message {number} is already in a batch of anchor {messages[number]}"
        if number in seen:
            return f"message {number} is in another batch of the same anchor"
    return None
