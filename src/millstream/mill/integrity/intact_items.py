"""Items of a sweep on which all sources plainly agree, found and recorded in columns: nearly all of them are so."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

from millstream.mill.integrity.checker import INTACT, BitChecker, ItemReading
from millstream.mill.integrity_decision import SourceAnswer
from millstream.mill.manifest import ComparisonRow
from millstream.mill.manifest_table import IntactItems


class ItemsToCheck(NamedTuple):
    """Items to check in columns: the sum of each row of the manifest (None where there is none, or it has none), the
    rest of what :class:`ComparisonRow` has, the sum that is expected (:func:`expected_sums`), and what was seen of them
    together: the size alone of those that were as expected, None of those that are to be seen alone."""

    content_ids: Sequence[str]
    sums: Sequence[str | None]
    sizes: Sequence[int | None]
    times: Sequence[int | None]
    deleted: Sequence[bool | None]
    expected: Sequence[str | None]
    seen: Sequence[int | ItemReading | None]

    def reading(self, place: int) -> ItemReading | None:
        """The observation of the item at *place*, if more than its size was read."""
        seen = self.seen[place]
        return seen if isinstance(seen, ItemReading) else None

    def row(self, place: int) -> ComparisonRow | None:
        """The row of the manifest of the item at *place*; None where there is none."""
        size, modified = self.sizes[place], self.times[place]
        if size is None or modified is None:
            return None
        return ComparisonRow(self.content_ids[place], self.sums[place], size, modified, bool(self.deleted[place]))


def expected_sums(
    sums: Sequence[str | None], deleted: Sequence[bool | None], logged: Sequence[str | None]
) -> Sequence[str | None]:
    """The checksum that each item has if it is intact: what rows of the manifest (*sums* and *deleted*) and the audit
    log agree on; None where they do not, and where there is no live row."""
    rows = zip(sums, deleted, logged, strict=True)
    return [sha256 if sha256 == event and not gone else None for sha256, gone, event in rows]


def find_intact(checker: BitChecker, store: str, space: str, items: ItemsToCheck) -> tuple[IntactItems, list[int]]:
    """Those of *items* on which all sources plainly agree, and the places of the others.

    On an item that was seen to be as expected all agree. On others they do where :meth:`BitChecker.check_row` finds
    them to with what the audit says of them now, and nothing more needs to be asked.
    """
    intact = IntactItems(store, space, checker.clock.now(), INTACT, [], [], [])
    odd = [place for place, seen in enumerate(items.seen) if not isinstance(seen, int)]
    if not odd:
        sums, sizes = cast("list[str]", items.expected), cast("list[int]", items.seen)
        return intact._replace(content_ids=list(items.content_ids), sums=list(sums), sizes=list(sizes)), []
    audit = checker.audit_sums(store, space, [items.content_ids[place] for place in odd])
    others = []
    rows = zip(items.content_ids, items.sums, items.deleted, items.seen, strict=True)
    for place, (content_id, sha256, deleted, seen) in enumerate(rows):
        if isinstance(seen, int):
            size = seen
        elif (
            seen is not None
            and seen.content == sha256 == seen.provider
            and seen.links == 1
            and not deleted
            and audit[content_id] in (sha256, SourceAnswer.NOT_KEPT)
        ):
            size = seen.size
        else:
            others.append(place)
            continue
        intact.content_ids.append(content_id)
        intact.sums.append(cast("str", sha256))
        intact.sizes.append(size)
    return intact, others
