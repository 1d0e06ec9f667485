"""Which entries of a source are left out: the globs of ``exclude=`` in its URL."""

from __future__ import annotations

import re
from collections.abc import Iterable

from millstream.stores.protocol import StoreInputError


class Exclusion:
    """The entries that one of *globs* leaves out.

    A glob without "/" matches a name at any depth, one with "/" the whole id. ``*`` and ``?`` do not match a "/",
    ``**`` does; ``[abc]`` and ``[!abc]`` are sets. A "/" at the end matches folders only. What is in a folder that is
    left out is left out, too. Raises :class:`StoreInputError` for a glob that cannot be.
    """

    def __init__(self, globs: Iterable[str] = ()) -> None:
        self.globs = tuple(globs)
        self._files = _compiled(glob for glob in self.globs if not glob.endswith("/"))
        self._folders = _compiled(glob.removesuffix("/") for glob in self.globs)

    def __bool__(self) -> bool:
        return bool(self.globs)

    def leaves_out(self, content_id: str, *, is_folder: bool = False) -> bool:
        """Whether the entry itself is left out; the folders above it are not looked at."""
        pattern = self._folders if is_folder else self._files
        return pattern is not None and pattern.fullmatch(content_id) is not None

    def covers(self, content_id: str) -> bool:
        """Whether the entry, or a folder above it, is left out."""
        if not self.globs:
            return False
        is_folder = content_id.endswith("/")
        path = content_id.removesuffix("/")
        above = (path[:end] for end, character in enumerate(path) if character == "/")
        return any(self.leaves_out(one, is_folder=True) for one in above) or self.leaves_out(path, is_folder=is_folder)


def _compiled(globs: Iterable[str]) -> re.Pattern[str] | None:
    alternatives = []
    for glob in globs:
        body = glob.removeprefix("/")
        if not body or "\0" in body:
            raise StoreInputError(
                f"invalid exclusion pattern {glob!r}: it must have a character other than a leading / and no NUL "
                "character; use a pattern such as *.tmp or cache/**"
            )
        start = "" if "/" in glob else "(?:.*/)?"
        try:
            re.compile(_translated(body))
        except re.error as error:
            raise StoreInputError(
                f"invalid exclusion pattern {glob!r}: {error.msg}; correct the characters in [ ]"
            ) from error
        alternatives.append(start + _translated(body))
    return re.compile("|".join(f"(?:{one})" for one in alternatives), re.DOTALL) if alternatives else None


_TOKEN = re.compile(r"\*\*/|\*\*|\*|\?|\[!?\]?[^\]]*\]|.", re.DOTALL)
_MEANINGS = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}


def _translated(glob: str) -> str:
    return "".join(_MEANINGS.get(token) or _set_or_text(token) for token in _TOKEN.findall(glob))


def _set_or_text(token: str) -> str:
    if len(token) == 1:
        return re.escape(token)
    negated, members = token[1] == "!", token[1:-1].removeprefix("!")
    escaped = members.replace("\\", r"\\").replace("[", r"\[").replace("]", r"\]").replace("^", r"\^")
    return f"(?!/)[{'^' if negated else ''}{escaped}]"
