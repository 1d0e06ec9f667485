"""Which items that vanished were renamed, and to which of the new ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from millstream.mill.adoption.catalog import AdoptedItem, ItemKind


def pair_renames(
    gone: Iterable[AdoptedItem], holders: Sequence[AdoptedItem], is_new: Callable[[AdoptedItem], bool]
) -> Mapping[str, str]:
    """The new names of the files among *gone* that were renamed, by their old ones.

    *holders* are items that are there and have the bytes of one that is gone. Those that are new are paired with those
    that are gone, one to one and in the order of their names; a pair of an earlier run stays while its new name has
    these bytes, and what was renamed again is followed. All empty files are equal, so that they are paired only where
    one is gone and one is new.
    """
    there = {item.content_id: item.sha256 for item in holders if item.kind == ItemKind.FILE}
    files = [item for item in gone if item.kind == ItemKind.FILE]
    kept = {
        item.content_id: item.renamed_to
        for item in files
        if item.renamed_to is not None and there.get(item.renamed_to) == item.sha256
    }
    taken = set(kept.values())
    free = [item for item in holders if item.kind == ItemKind.FILE and item.content_id not in taken]
    new = _by_sum(item for item in free if is_new(item))
    sums = {item.content_id: item.sha256 for item in files}
    again = {
        item.content_id: item.renamed_to
        for item in files
        if item.renamed_to is not None and sums.get(item.renamed_to) == item.sha256
    }
    known = kept.keys() | again.keys()
    paired: dict[str, str] = {}
    for key, before in _by_sum(item for item in files if item.content_id not in known).items():
        after = new.get(key, [])
        if key[1] or len(before) == len(after) == 1:
            paired.update(zip(before, after, strict=False))
    followed = {old: paired[name] for old, name in again.items() if name in paired}
    return kept | paired | followed


def _by_sum(items: Iterable[AdoptedItem]) -> Mapping[tuple[str, int], list[str]]:
    """The names of *items* in their order, by checksum and size."""
    names: defaultdict[tuple[str, int], list[str]] = defaultdict(list)
    for item in items:
        names[item.sha256, item.size].append(item.content_id)
    return {key: sorted(some) for key, some in names.items()}
