"""Plain JSON: one record a message, its source, key, time and value where the user says they are."""

from __future__ import annotations

import msgspec

from millstream.core.message import Message, MessageError, check_source
from millstream.ingest.errors import IngestInputError, MalformedError
from millstream.ingest.json_members import check_json, is_null
from millstream.ingest.received_message import ReceivedMessage
from millstream.ingest.selectors import Selector, parse_selector
from millstream.ingest.timestamps import Unit, read_timestamp


class PlainJson(msgspec.Struct, frozen=True):
    """Makes a record of a message: by default, one on the topic ``fleet/pump-7/temperature`` is of the source
    ``fleet/pump-7`` and has the key ``temperature``; its body is the payload, and its time the member ``time`` of that.

    Without a ``time`` in the payload, or with null, the record happened when the log takes it. Counts are in
    ``unit``. Raises :class:`IngestInputError` where the time or the value is looked for in the topic.
    """

    source: Selector = parse_selector("topic/:-1")
    key: Selector = parse_selector("topic/-1")
    time: Selector = parse_selector("$.time")
    value: Selector = parse_selector("$")
    unit: Unit = "s"

    def __post_init__(self) -> None:
        if self.time.levels is not None or self.time.is_payload:
            raise IngestInputError(
                f"invalid time selector {self.time.text!r}: name a member of the payload, such as $.time"
            )
        if self.value.levels is not None:
            raise IngestInputError(
                f"invalid value selector {self.value.text!r}: name the payload ($) or a member of it"
            )

    def __call__(self, arrival: ReceivedMessage) -> list[Message]:
        """The one record of *arrival*. Raises :class:`MalformedError`."""
        raw = None if _is_bare(arrival.payload) else self.time.find(arrival)
        time = None if raw is None or is_null(raw) else read_timestamp(raw, self.unit)
        return [checked_source(Message(self._body(arrival), self.key.name(arrival), self.source.name(arrival), time))]

    def _body(self, arrival: ReceivedMessage) -> bytes:
        if self.value.is_payload:
            check_json(arrival.payload)
            return arrival.payload
        return bytes(self.value.require(arrival))


def checked_source(record: Message) -> Message:
    """*record*. Raises :class:`MalformedError` where its source is reserved."""
    try:
        check_source(record)
    except MessageError as error:
        raise MalformedError("source", str(error)) from error
    return record


def plain_json(*, source: str, key: str, time: str, value: str, unit: Unit) -> PlainJson:
    """How a payload is read by the selectors *source*, *key*, *time* and *value*, as they are written.

    Raises :class:`IngestInputError` that names the one that is invalid.
    """
    parsed = dict[str, Selector]()
    for name, text in {"source": source, "key": key, "time": time, "value": value}.items():
        try:
            parsed[name] = parse_selector(text)
        except IngestInputError as error:
            raise IngestInputError(f"{name}: {error}") from error
    return PlainJson(**parsed, unit=unit)


def _is_bare(payload: bytes) -> bool:
    """Whether *payload* is a bare value such as ``21.5``, which has no members to look for a time in."""
    return payload.lstrip()[:1] not in (b"{", b"")
