"""Ingest: what comes in from a broker, durably in a log before it is acknowledged.

Open first: :mod:`~millstream.ingest.loop` (receive, append, acknowledge), then :mod:`~millstream.ingest.receipts`
(how QoS 2 is kept exactly once).
"""

from typing import TYPE_CHECKING

from millstream.core.lazy_names import lazy_names

if TYPE_CHECKING:
    from millstream.ingest.broker_url import BrokerAddress, parse_broker
    from millstream.ingest.errors import (
        BrokerRefusedError,
        BrokerUnavailableError,
        IngestError,
        IngestInputError,
        MalformedError,
        ReceiptsError,
    )
    from millstream.ingest.payload_parsers import PayloadParser, payload_parser
    from millstream.ingest.plain_json import PlainJson
    from millstream.ingest.receipts import Receipts
    from millstream.ingest.received_message import ReceivedMessage

__all__ = [
    "BrokerAddress",
    "BrokerRefusedError",
    "BrokerUnavailableError",
    "IngestError",
    "IngestInputError",
    "MalformedError",
    "PayloadParser",
    "PlainJson",
    "Receipts",
    "ReceiptsError",
    "ReceivedMessage",
    "parse_broker",
    "payload_parser",
]

__getattr__ = lazy_names(__name__)
