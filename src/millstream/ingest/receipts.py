"""What was received in a session under QoS 2 and not released yet, so that it is stored exactly once.

Under QoS 2 the broker may send a message again until it has our PUBREC, and gives its packet identifier to another one
only after our PUBCOMP. So a message is stored before its PUBREC is sent, and its identifier is kept from then until the
broker releases it (PUBREL). It is kept in two places, each written in one piece: a record carries the identifier of its
message in a header from the commit that stored it, and a document lists what was unreleased at a place in the log. The
document is written before a PUBCOMP is sent, and where it is read again the records behind that place are looked
through. Wherever the process dies, the two together know every identifier that the broker may still use for an old
message, also for a process on another host, if the document is in a database.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec
import pyarrow.compute as pc

from millstream.core import tracing
from millstream.core.decoding import prepared
from millstream.core.message import Message
from millstream.ingest.errors import ReceiptsError
from millstream.ingest.received_message import ReceivedMessage
from millstream.log import Log

if TYPE_CHECKING:
    from millstream.core.documents import Document

PACKET_HEADER = "mqtt-packet"
"""The header of the first record of a message under QoS 2: its packet identifier in decimal digits."""


class SessionRecord(msgspec.Struct, frozen=True):
    """The document: who we are to the broker, what is subscribed, and the unreleased identifiers at places of logs.

    ``had_qos_2`` says that the session has had a subscription with QoS 2: the broker may have messages from that time.
    """

    client: str
    topics: Mapping[str, int] = {}
    held: tuple[int, ...] = ()
    places: Mapping[str, int] = {}
    had_qos_2: bool = False


class Receipts:
    """The receipts of one session, kept in *document* and in the headers of *logs*, whose writers this process has.

    *client* is the name under which the broker knows us; without one it is that in the document, else what
    *make_name* gives. Raises :class:`ReceiptsError` where the document is damaged, the errors of the log, and as
    :meth:`release` does :class:`~millstream.core.documents.DocumentBusyError` where another process has the session.
    """

    def __init__(
        self, document: Document, logs: Sequence[Log], *, client: str = "", make_name: Callable[[], str]
    ) -> None:
        self._document, self._logs = document, logs
        kept = _read(document)
        if kept is None or client not in ("", kept.client):
            self._session, self._held = SessionRecord(client or make_name()), set[int]()
        else:
            self._session, self._held = kept, set(kept.held)
            for log in logs if kept.had_qos_2 or 2 in kept.topics.values() else ():
                self._held.update(_packets_in(log, kept.places.get(log.name, 0)))
        self._write()

    @property
    def client(self) -> str:
        """Our name in this session."""
        return self._session.client

    @property
    def topics(self) -> Mapping[str, int]:
        """The subscriptions of this session, with their QoS."""
        return self._session.topics

    @property
    def held(self) -> frozenset[int]:
        """The identifiers of stored messages that the broker has not released."""
        return frozenset(self._held)

    def begin(self) -> None:
        """The broker knows of no session, so it has nothing under way: forget what was subscribed and received."""
        self._held.clear()
        self._session = msgspec.structs.replace(self._session, topics={}, had_qos_2=False)
        self._write()

    def subscribed(self, topics: Mapping[str, int]) -> None:
        """From now on *topics* are what is subscribed in this session."""
        had_qos_2 = self._session.had_qos_2 or 2 in (*self.topics.values(), *topics.values())
        self._session = msgspec.structs.replace(self._session, topics=dict(topics), had_qos_2=had_qos_2)
        self._write()

    def is_stored(self, arrival: ReceivedMessage) -> bool:
        """Whether *arrival* was stored before, and the broker just has not heard of it.

        One that the broker sends for the first time is another message, whatever its identifier: the broker lost its
        own memory then, and what is unknown is kept rather than lost.
        """
        return arrival.qos == 2 and arrival.again and arrival.packet in self._held

    def stored(self, packets: Iterable[int]) -> None:
        """The messages of *packets* are in the log, durably, and carry their identifiers."""
        self._held.update(packets)

    def release(self, packets: Iterable[int]) -> None:
        """The broker has released *packets*: forget them, durably, before it is told so."""
        self._held.difference_update(packets)
        self._write()

    def _write(self) -> None:
        places = {log.name: log.last_id for log in self._logs}
        self._session = msgspec.structs.replace(self._session, held=tuple(sorted(self._held)), places=places)
        self._document.write(msgspec.json.format(msgspec.json.encode(self._session)) + b"\n")


def marked(messages: Sequence[Message], arrival: ReceivedMessage) -> Sequence[Message]:
    """*messages* with the packet identifier of *arrival* on the first, where it will be needed, and its kind; all of
    them with its trace."""
    if arrival.trace:
        own = (tracing.HEADER, arrival.trace.encode("ascii", "replace"))
        messages = [msgspec.structs.replace(each, headers=(*each.headers, own)) for each in messages]
    headers: list[tuple[str, bytes]] = []
    if arrival.qos == 2:
        headers.append((PACKET_HEADER, b"%d" % arrival.packet))
    if arrival.retained:
        headers.append(("mqtt-retained", b"1"))
    if not headers or not messages:
        return messages
    first = messages[0]
    return [msgspec.structs.replace(first, headers=(*first.headers, *headers)), *messages[1:]]


def _packets_in(log: Log, after: int) -> set[int]:
    """The identifiers in the headers of the records of *log* after the id *after*."""
    if after >= log.last_id:
        return set()
    found: set[int] = set()
    for batch in log.read(after + 1, columns=["headers"]):
        headers = batch.arrow.column("headers").flatten()
        packets = headers.field("value").filter(pc.equal(headers.field("name"), PACKET_HEADER))
        found.update(map(int, packets.to_pylist()))
    return found


def _read(document: Document) -> SessionRecord | None:
    try:
        data = document.read()
        return None if data is None else msgspec.json.decode(data, type=prepared(SessionRecord))
    except OSError as error:
        raise ReceiptsError(f"cannot read {document}: {error.strerror or error}") from error
    except msgspec.DecodeError as error:
        raise ReceiptsError(
            f"{document} is not a valid session record: {error}. Move the file away (in a database: delete the row) "
            "and restart the ingest: the client then subscribes again, and unacknowledged messages may be stored twice"
        ) from error
