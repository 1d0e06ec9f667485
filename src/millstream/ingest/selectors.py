"""The location of a value in a message: in its topic or in its payload."""

from __future__ import annotations

import re

import msgspec

from millstream.ingest.errors import IngestInputError, MalformedError
from millstream.ingest.json_members import is_null, members_of, text_of
from millstream.ingest.received_message import ReceivedMessage

_LEVELS = re.compile(r"(?P<first>-?\d+)?(?P<range>:)?(?P<last>-?\d+)?")


class Selector(msgspec.Struct, frozen=True):
    """A part of every message: levels of its topic (``levels``), or a member of its payload by its ``path``.

    An empty path is the whole payload.
    """

    text: str
    levels: slice | None = None
    path: tuple[str, ...] = ()

    @property
    def is_payload(self) -> bool:
        """Whether it is the whole payload."""
        return self.levels is None and not self.path

    def find(self, arrival: ReceivedMessage) -> bytes | msgspec.Raw | None:
        """The JSON value of the member of the payload; None if it is absent."""
        value: bytes | msgspec.Raw = arrival.payload
        for name in self.path:
            members = members_of(value, f"the parent of {name!r}")
            if name not in members:
                return None
            value = members[name]
        return value

    def require(self, arrival: ReceivedMessage) -> bytes | msgspec.Raw:
        """The JSON value of the member of the payload. Raises :class:`MalformedError` where it is absent or null."""
        raw = self.find(arrival)
        if raw is None:
            raise MalformedError("member", f"the payload has no member {self.text}")
        if is_null(raw):
            raise MalformedError("member", f"the member {self.text} of the payload is not set (null)")
        return raw

    def name(self, arrival: ReceivedMessage) -> str:
        """It as text. Raises :class:`MalformedError` where it is absent or no text."""
        if self.levels is not None:
            found = "/".join(arrival.topic.split("/")[self.levels])
        else:
            found = text_of(self.require(arrival), self.text)
        if not found:
            raise MalformedError("member", f"the part {self.text} of the message is empty")
        return found


def parse_selector(text: str) -> Selector:
    """The part that *text* names.

    ``topic`` is the whole topic, ``topic/2`` its second level, ``topic/-1`` the last, ``topic/:-1`` all but the last,
    ``topic/2:3`` the second and third; ``$`` is the payload, ``$.device.id`` a member of it. Raises
    :class:`IngestInputError`.
    """
    if text == "topic":
        return Selector(text, slice(None))
    if text.startswith("topic/"):
        return Selector(text, _levels(text))
    if text == "$":
        return Selector(text)
    path = text.removeprefix("$.").split(".")
    if not text.startswith("$.") or not all(path):
        raise IngestInputError(f"invalid selector {text!r}: write topic, topic/2, topic/:-1, $ or $.member")
    return Selector(text, path=tuple(path))


def _levels(text: str) -> slice:
    match = _LEVELS.fullmatch(text.removeprefix("topic/"))
    first, last = (int(match[end]) if match and match[end] else None for end in ("first", "last"))
    if not match or first is last is None or 0 in (first, last):
        raise IngestInputError(
            f"invalid topic level {text!r}: write topic/2, topic/-1 or topic/2:-1; levels count from 1, or from -1 at "
            "the end"
        )
    begin = first if first is None or first < 0 else first - 1
    if not match["range"]:
        return slice(begin, None if first == -1 else (begin or 0) + 1)
    return slice(begin, last)
