"""Objects that no row names and none ever will: runs that were killed, or were slower than others, have left them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from millstream.log.tiering.objects import TierObjects
from millstream.log.tiering.sealed_objects import RowPage

_NAME = re.compile(r".*/\d{20}-(\d{20})(?:-[0-9a-f]{32})?(?:\.(\d{8})-(\d+))?\.tier(?:\.parquet)?")


def find_leftovers(objects: TierObjects, folder: str, pages: Sequence[RowPage]) -> list[str]:
    """The names in *folder* that none of *pages* names, and no later version of them will name.

    A new object is added behind the last row, so that one which ends before it can never be; one that takes the place
    of others states in its name the version of the page that would name it. So this holds for pages of any age.
    """
    known = {row.name for page in pages for row in page.rows}
    last_id = max((row.last_id for page in pages for row in page.rows), default=0)
    versions = {page.key: page.version for page in pages}

    def is_left(name: str) -> bool:
        found = _NAME.fullmatch(name)
        if found is None or name.removesuffix(".parquet") in known:
            return False
        last, key, version = found.groups()
        return int(last) <= last_id if key is None else int(version) <= versions.get(key, 0)

    return [name for name in objects.names(f"{folder}/") if is_left(name)]
