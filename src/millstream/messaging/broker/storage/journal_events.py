"""The decisions of the broker, as messages of its journal: JSON bodies, with the kind of decision as key.

Ids are ranges with both ends included; times are microseconds since the epoch, UTC.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from millstream.core.decoding import prepared
from millstream.core.message import Message
from millstream.messaging.errors import DamagedJournalError

Ids = list[tuple[int, int]]


class TopicMade(msgspec.Struct, frozen=True, tag_field="did", tag="make-topic"):
    """A topic is there, of this type (``NORMAL`` …) and with this many queues."""

    topic: str
    type: str
    queues: int


class TopicDropped(msgspec.Struct, frozen=True, tag_field="did", tag="drop-topic"):
    """A topic takes and gives no messages any more; its log stays.

    What was held back for it is dropped: its messages up to ``held`` in the log of held messages.
    """

    topic: str
    held: int = 0


class MessagesLeased(msgspec.Struct, kw_only=True, frozen=True, tag_field="did", tag="lend", omit_defaults=True):
    """Messages went to a consumer; the number of this event is the token of their handles.

    ``skipped`` are those that the group has no use for. See ``LeaseTerms``.
    """

    group: str
    topic: str
    ids: Ids
    at: int
    until: int
    client: str = ""
    renew: bool = False
    attempt_id: str = ""
    skipped: Ids = []


class Finished(msgspec.Struct, frozen=True, tag_field="did", tag="finish", omit_defaults=True):
    """The group is done with these messages; ``dead`` says why it gave up, if it did."""

    group: str
    topic: str
    ids: Ids
    dead: str = ""


class Hidden(msgspec.Struct, frozen=True, tag_field="did", tag="hide"):
    """A message comes back at ``until``; the number of this event is the token of its new handle."""

    group: str
    topic: str
    id: int
    until: int


class OffsetReset(msgspec.Struct, frozen=True, tag_field="did", tag="restart"):
    """The group continues at the message ``next``, as if it had seen nothing from there on."""

    group: str
    topic: str
    next: int


class GroupConfigured(msgspec.Struct, frozen=True, tag_field="did", tag="configure-group", omit_defaults=True):
    """The rules of a group; 0 and empty mean the broker's. See ``GroupSpec``."""

    group: str
    max_attempts: int = 0
    backoff: tuple[int, ...] = ()


class OffsetMoved(msgspec.Struct, frozen=True, tag_field="did", tag="move-offset"):
    """A consumer that pulls has stored its offset of a queue."""

    group: str
    topic: str
    queue: int
    offset: int


class Released(msgspec.Struct, frozen=True, tag_field="did", tag="release"):
    """Messages that were held back (by their ids in the log of held messages) are in their topics, or dropped."""

    ids: Ids
    dropped: bool = False


class TransactionChecked(msgspec.Struct, frozen=True, tag_field="did", tag="ask"):
    """A producer was asked for the ``count``-th time how a transaction ends."""

    id: int
    count: int


class InFlightSnapshot(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True, array_like=True):
    """A message in flight, in a snapshot."""

    id: int
    attempts: int
    until: int
    token: int
    away: bool
    client: str = ""
    renew: bool = False
    since: int = 0
    attempt_id: str = ""


class DeliverySnapshot(msgspec.Struct, frozen=True, tag_field="did", tag="keep-delivery", omit_defaults=True):
    """The progress of a group in a topic, in a snapshot.

    With ``more`` it only adds its ``flights`` to those of the event before, which are too many for one message.
    """

    group: str
    topic: str
    pointer: int
    ahead: Ids
    flights: list[InFlightSnapshot]
    more: bool = False


class DelayedMessagesSnapshot(msgspec.Struct, frozen=True, tag_field="did", tag="keep-holds"):
    """Which of the held messages up to ``upto`` are still held, in a snapshot; how often was asked about some."""

    upto: int
    ids: Ids
    asked: dict[int, int] = {}


Event = (
    TopicMade
    | TopicDropped
    | MessagesLeased
    | Finished
    | Hidden
    | OffsetReset
    | GroupConfigured
    | OffsetMoved
    | Released
    | TransactionChecked
    | DeliverySnapshot
    | DelayedMessagesSnapshot
)


class _EncodedDelivery(msgspec.Struct, frozen=True, tag_field="did", tag="keep-delivery", omit_defaults=True):
    """A :class:`DeliverySnapshot` with encoded flights."""

    group: str
    topic: str
    pointer: int
    ahead: Ids
    flights: msgspec.Raw
    more: bool = False


_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(prepared(Event))


def event_message(event: Event | _EncodedDelivery) -> Message:
    """The message that records *event*."""
    return Message(_encoder.encode(event), key=str(event.__struct_config__.tag))


def flights_json(alike: InFlightSnapshot, last: int) -> str:
    """The entries of the messages from that of *alike* to *last*, which differ in their ids only, as JSON."""
    begin, end = f"[{alike.id}", _encoder.encode(alike).decode("utf-8")
    same = end.removeprefix(begin)
    return "[" + f"{same},[".join(map(str, range(alike.id, last + 1))) + same


def delivery_message(
    group: str, topic: str, pointer: int, ahead: Ids, flights: Iterable[str], *, more: bool = False
) -> Message:
    """The message of a :class:`DeliverySnapshot`, with the texts of :func:`flights_json` instead of an object for each
    message in flight, of which there may be hundreds of thousands."""
    raw = msgspec.Raw(f"[{','.join(flights)}]".encode())
    return event_message(_EncodedDelivery(group, topic, pointer, ahead, raw, more))


def read_event(message: Message) -> Event:
    """The event of a message. Raises :class:`DamagedJournalError`."""
    try:
        return read_event_body(message.body)
    except msgspec.DecodeError as error:
        raise DamagedJournalError(
            f"message {message.id} of the broker's journal is not an event that this release knows ({error}): check "
            "whether a newer release or another program wrote to the journal"
        ) from error


def read_event_body(body: bytes) -> Event:
    """The event in the *body* of a message. Raises :class:`msgspec.DecodeError`."""
    return _decoder.decode(body)
