"""How content ids are spelled as paths of a local folder, reversibly.

The rules, in full, are in ``docs/formats/local-store.md``. An id is spelled *naturally*: its segments are folders and a
file, with only odd characters escaped. Where that is impossible (an empty segment, a file where a folder is needed) it
is spelled *flat*: one name in the folder ``%2F`` of the space, with the slashes escaped too.
"""

from __future__ import annotations

import functools
import re
from urllib.parse import unquote_to_bytes

from millstream.stores.names import check_content_id

FLAT_FOLDER = "%2F"
"""Holds the ids that are spelled flat. No natural spelling has this name: a "/" never stands inside a segment."""

_NAME_BYTES = 255
_LONGEST_PATH = 2048
_ODD = re.compile(r"[%\x00-\x1f\x7f]")
_ODD_OR_SLASH = re.compile(r"[%/\x00-\x1f\x7f]")
_PLAIN = re.compile(r"(?:[A-Za-z0-9_-][A-Za-z0-9_. -]*/)*[A-Za-z0-9_-][A-Za-z0-9_. -]*")
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_. -]*")
_SHORT = 80
"""So long a plain id is one name even where each of its bytes is escaped."""
_UNIT = re.compile(r"%[0-9A-F]{2}|[^%]", re.DOTALL)


def encoded_paths(content_id: str) -> tuple[tuple[str, ...], ...]:
    """The relative paths (as tuples of names) under which *content_id* may be kept, the natural one first."""
    segments = content_id.split("/")
    if len(content_id) <= _SHORT and _PLAIN.fullmatch(content_id):
        return tuple(segments), (FLAT_FOLDER, content_id.replace("/", "%2F"))
    flat = (FLAT_FOLDER, *_names(_escape(content_id, _ODD_OR_SLASH)))
    if not all(segments):
        return (flat,)
    natural = tuple(name for segment in segments for name in _names(_escape(segment, _ODD)))
    if sum(len(name.encode("utf-8")) + 1 for name in natural) > _LONGEST_PATH:
        return (flat,)
    return natural, flat


@functools.lru_cache(4096)
def item_paths(space: str, content_id: str) -> tuple[tuple[str, ...], ...]:
    """The same paths below a store's folder, that of the *space* before them. Raises :class:`StoreInputError`."""
    name = encode_name(space)
    return tuple((name, *path) for path in encoded_paths(check_content_id(content_id)))


def plain_path(space: str, content_id: str) -> tuple[tuple[str, ...], str] | None:
    """The folder below a store's, and the name in it, under which a plain id is kept naturally; None for other ids.

    It is the first of :func:`item_paths`, found at a fraction of the cost.
    """
    head, slash, name = content_id.rpartition("/")
    if len(content_id) > _SHORT or _PLAIN_NAME.fullmatch(name) is None:
        return None
    folder = _plain_folder(space, head) if slash else (encode_name(space),)
    return None if folder is None else (folder, name)


@functools.lru_cache(1024)
def _plain_folder(space: str, head: str) -> tuple[str, ...] | None:
    return (encode_name(space), *head.split("/")) if _PLAIN.fullmatch(head) else None


@functools.lru_cache(1024)
def encode_name(text: str) -> str:
    """*text*, a space's name, as one file name."""
    return _undotted(_escape(text, _ODD))


def decode_name(name: str) -> bytes | None:
    """The UTF-8 bytes that the file name *name* spells (as a whole segment); None where we would not spell it so."""
    try:
        data = name.encode("utf-8")
    except UnicodeEncodeError:
        return None
    if name[0] != "." and not _ODD.search(name):
        return data
    return _unescape(name, _ODD)


def decode_flat_name(name: str) -> bytes | None:
    """The UTF-8 bytes that *name* spells in the flat folder; None where we would not spell it so."""
    return _unescape(name, _ODD_OR_SLASH)


def _unescape(name: str, odd: re.Pattern[str]) -> bytes | None:
    try:
        data = unquote_to_bytes(name)
        respelled = _undotted(_escape(data.decode("utf-8"), odd))
    except (UnicodeEncodeError, UnicodeDecodeError):
        return None
    return data if respelled == name else None


def _escape(text: str, odd: re.Pattern[str]) -> str:
    return odd.sub(lambda match: f"%{ord(match.group()):02X}", text)


def _undotted(name: str) -> str:
    """Names with a leading dot are hidden, or mean a folder: the dot is escaped."""
    return f"%2E{name[1:]}" if name.startswith(".") else name


def _names(escaped: str) -> list[str]:
    """*escaped* as one name or, where it is too long for one, as pieces; each but the last ends with a lone "%"."""
    name = _undotted(escaped)
    if len(name.encode("utf-8")) <= _NAME_BYTES:
        return [name]
    pieces, piece = [], b""
    for unit in _UNIT.findall(escaped):
        if len(piece) + len(unit.encode("utf-8")) > _NAME_BYTES - 1:
            pieces.append(f"{piece.decode('utf-8')}%")
            piece = b""
        piece += (unit if piece else _undotted(unit)).encode("utf-8")
    return [*pieces, piece.decode("utf-8")]
