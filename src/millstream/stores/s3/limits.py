"""The sizes of the parts of uploads to S3."""

from __future__ import annotations

import msgspec

MIB = 1024 * 1024

MAX_KEY_BYTES = 1024
"""The longest key that S3 keeps, in bytes of UTF-8."""

MAX_PARTS = 10_000
"""The most parts that S3 takes of one upload."""


class S3Limits(msgspec.Struct, frozen=True):
    """Sizes in bytes. The defaults suit S3 itself and every server that we know."""

    single: int = 16 * MIB
    """Larger content is uploaded in parts."""
    part: int = 8 * MIB
    """The size of the first 200 parts; each 200 further ones are twice as large, up to ``largest_part``."""
    largest_part: int = 640 * MIB
    """With it, 10,000 parts hold more than 5 TiB."""
    in_flight: int = 64 * MIB
    """Bytes of parts that one upload holds in memory to send them, or one part where that is larger; the part that is
    read meanwhile is held beside them."""
    single_copy: int = 5 * 1024 * MIB
    """S3 copies no larger object in one call."""
    copy_part: int = 512 * MIB

    def part_size(self, number: int) -> int:
        """The size of part *number* (from 1) of an upload."""
        return min(self.part << (number - 1) // 200, max(self.largest_part, self.part))
