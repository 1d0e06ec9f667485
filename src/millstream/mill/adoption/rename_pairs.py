"""Which items that vanished were renamed, and to which of the new ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from millstream.mill.adoption.catalog import AdoptedItem
from millstream.stores.protocol import EntryKind

_RENAMED = frozenset({EntryKind.FILE.value, EntryKind.SYMLINK.value})
"""The kinds of items of which a rename is recognised; empty folders are all alike."""


class _Content(NamedTuple):
    """The content and kind of an item: a file is not a renamed link with the same bytes."""

    kind: str
    sha256: str
    size: int


def pair_renames(
    gone: Iterable[AdoptedItem], holders: Sequence[AdoptedItem], is_new: Callable[[AdoptedItem], bool]
) -> Mapping[str, str]:
    """The new names of the files and symbolic links among *gone* that were renamed, by their old ones.

    *holders* are items that are there and have the bytes of one that is gone. Those that are new are paired with those
    that are gone, one to one and in the order of their names; a pair of an earlier run stays while its new name has
    these bytes, and what was renamed again is followed. A file is not a link that has its bytes. All empty files are
    equal, so that they are paired only where one is gone and one is new.
    """
    there = {item.content_id: _content(item) for item in holders if item.kind in _RENAMED}
    files = [item for item in gone if item.kind in _RENAMED]
    kept = {
        item.content_id: item.renamed_to
        for item in files
        if item.renamed_to is not None and there.get(item.renamed_to) == _content(item)
    }
    taken = set(kept.values())
    free = [item for item in holders if item.kind in _RENAMED and item.content_id not in taken]
    new = _by_content(item for item in free if is_new(item))
    contents = {item.content_id: _content(item) for item in files}
    again = {
        item.content_id: item.renamed_to
        for item in files
        if item.renamed_to is not None and contents.get(item.renamed_to) == _content(item)
    }
    known = kept.keys() | again.keys()
    paired: dict[str, str] = {}
    for key, before in _by_content(item for item in files if item.content_id not in known).items():
        after = new.get(key, [])
        if key.size or len(before) == len(after) == 1:
            paired.update(zip(before, after, strict=False))
    followed = {old: paired[name] for old, name in again.items() if name in paired}
    return kept | paired | followed


def _content(item: AdoptedItem) -> _Content:
    return _Content(item.kind, item.sha256, item.size)


def _by_content(items: Iterable[AdoptedItem]) -> Mapping[_Content, list[str]]:
    """The names of *items* in their order, by what they hold."""
    names: defaultdict[_Content, list[str]] = defaultdict(list)
    for item in items:
        names[_content(item)].append(item.content_id)
    return {key: sorted(some) for key, some in names.items()}
