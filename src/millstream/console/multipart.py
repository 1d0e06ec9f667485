"""Forms with files (multipart/form-data, RFC 7578), as browsers send them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from millstream.core.errors import InputError

_MOST_PARTS = 100
_BOUNDARY = re.compile(r"""(?:^|;)\s*boundary=(?:"([^"]{1,70})"|([^\s;"]{1,70}))""", re.IGNORECASE)
_NAME = re.compile(rb"""(?:^|;)\s*name="([^"]*)\"""", re.IGNORECASE)
_FILE = re.compile(rb"""(?:^|;)\s*filename\*?=""", re.IGNORECASE)


class MultipartError(InputError):
    """The form is not one of multipart/form-data."""


def read_multipart(data: bytes, content_type: str) -> Mapping[str, Sequence[str]]:
    """The fields of a form, and the contents of its files as text, by name. A file that was not chosen is left out.

    Raises :class:`MultipartError`.
    """
    found = _BOUNDARY.search(content_type)
    if found is None:
        raise MultipartError(
            f"the Content-Type {content_type[:100]!r} of the form names no boundary: send multipart/form-data; "
            "boundary=…"
        )
    mark = b"--" + (found[1] or found[2]).encode("latin-1", "replace")
    parts = (b"\r\n" + data).split(b"\r\n" + mark, _MOST_PARTS + 1)
    if len(parts) > _MOST_PARTS + 1:
        raise MultipartError(f"the form has more than {_MOST_PARTS:,} fields: leave some out")
    if len(parts) < 2 or not parts[-1].startswith(b"--"):
        raise MultipartError("the form is incomplete (its last boundary is missing): send the form again")
    fields: dict[str, list[str]] = {}
    for number, part in enumerate(parts[1:-1], start=1):
        name, text = _field(part, number)
        if text is not None:
            fields.setdefault(name, []).append(text)
    return fields


def _field(part: bytes, number: int) -> tuple[str, str | None]:
    """Name and content of a *part*, which is *number* from 1; no content for a file that was not chosen."""
    head, blank, content = part.partition(b"\r\n\r\n")
    lines = (line.partition(b":") for line in head.split(b"\r\n"))
    disposition = next((value for key, _, value in lines if key.strip().lower() == b"content-disposition"), b"")
    name = _NAME.search(disposition)
    if not blank or name is None:
        raise MultipartError(
            f"part {number} of the form has no name: give each part a header Content-Disposition: form-data; name=…"
        )
    shown = name[1].decode("utf-8", "replace")
    is_file = _FILE.search(disposition) is not None
    if is_file and not content:
        return shown, None
    try:
        return shown, content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MultipartError(
            f"{shown}: {'the file' if is_file else 'the field'} is not in UTF-8: save it as UTF-8"
        ) from error
