"""Paths of a folder as content ids, reversibly.

An id is the path below the root as it is, as long as it is UTF-8. Only two things are escaped, with "%" and two
upper-case hex digits: a byte that is part of no UTF-8 character (``%80`` to ``%FF``), and a "%" that stands in front of
what would otherwise read as an escape (``%25``). So ``50%`` and ``a%20b`` are ids without escapes.
"""

from __future__ import annotations

import re

_LONE_BYTE = re.compile("[\udc80-\udcff]")
_AMBIGUOUS = re.compile(r"%(?=25|[89A-F][0-9A-F])")
_ESCAPE = re.compile(rb"%(25|[89A-F][0-9A-F])")


def encode_name(name: bytes) -> str:
    """The part of a content id that stands for the file name, or path, *name*."""
    text = name.decode("utf-8", "surrogateescape")
    if "%" in text:
        text = _AMBIGUOUS.sub("%25", text)
    return text if text.isascii() else _LONE_BYTE.sub(lambda found: f"%{ord(found.group()) - 0xDC00:02X}", text)


def encode_path(path: bytes) -> str:
    """The content id of *path*, relative to the root; "/" stays as it is."""
    return encode_name(path)


def decode_path(content_id: str) -> bytes | None:
    """The path that has the id *content_id*; None where no path has it.

    A path has no empty segments, no ``.`` and no ``..``, and no NUL; the id of an empty folder ends with "/".
    """
    try:
        path = _ESCAPE.sub(lambda found: bytes.fromhex(found.group(1).decode("ascii")), content_id.encode("utf-8"))
    except UnicodeEncodeError:
        return None
    names = path.removesuffix(b"/").split(b"/")
    if b"\0" in path or any(name in (b"", b".", b"..") for name in names) or encode_path(path) != content_id:
        return None
    return path
