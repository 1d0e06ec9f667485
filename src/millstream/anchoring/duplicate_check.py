"""The rule "the first one holds": which batches may not be anchored because of others (docs/formats/records.md)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np


class BatchMembers(msgspec.Struct, frozen=True):
    """A batch id and its message ids, to be screened against what is anchored."""

    batch: str
    ids: Sequence[int]


def flat_ids(groups: Sequence[Sequence[int]]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """All ids of *groups* in one array, and beside it the number of the group that each comes from."""
    sizes = np.fromiter(map(len, groups), np.int64, len(groups))
    ids = np.fromiter(itertools.chain.from_iterable(groups), "<u8", int(sizes.sum()))
    return ids, np.repeat(np.arange(len(groups), dtype="<u4"), sizes)


def find_duplicates(
    members: Sequence[BatchMembers], messages: Mapping[int, int], batches: Mapping[str, int]
) -> dict[int, str]:
    """Why some of *members*, anchored in this order, are invalid: reasons by ordinal.

    *messages* and *batches* say which message ids and batch ids are anchored already, and in which anchor.
    """
    refused: dict[int, str] = {}
    seen_batches, seen_messages = set[str](), set[int]()
    for ordinal, member in enumerate(members):
        reason = _refusal(member, messages, batches, seen_batches, seen_messages)
        if reason is not None:
            refused[ordinal] = reason
            continue
        seen_batches.add(member.batch)
        seen_messages.update(member.ids)
    return refused


def _refusal(
    member: BatchMembers,
    messages: Mapping[int, int],
    batches: Mapping[str, int],
    seen_batches: set[str],
    seen_messages: set[int],
) -> str | None:
    if member.batch in batches:
        return f"this batch id is in anchor {batches[member.batch]} already"
    if member.batch in seen_batches:
        return "this batch id stands twice in one anchor"
    if len(set(member.ids)) != len(member.ids):
        return "a message stands twice in this batch"
    for number in member.ids:
        if number in messages:
            return f"message {number} is in a batch of anchor {messages[number]} already"
        if number in seen_messages:
            return f"message {number} is in another batch of the same anchor"
    return None
