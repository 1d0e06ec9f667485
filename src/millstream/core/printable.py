"""Names that other people chose, made safe to print."""

from __future__ import annotations

import re

_ACTS = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that break a line, act on a terminal, or change the direction of what follows."""

MAX_SHOWN = 300
"""The most characters that are shown of a text that a stranger wrote, such as the answer of a server."""


def printable(text: str, most: int | None = None) -> str:
    """*text* with escapes (``\\n``, ``\\x1b``) for characters that a name may have and a terminal would act on.

    With *most* no more than this many characters of it.
    """
    return _ACTS.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text[:most])
