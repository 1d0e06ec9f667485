"""Ingest: what comes in from a broker, durably in a log before it is acknowledged.

Open first: :mod:`~millstream.ingest.loop` (receive, append, acknowledge), then :mod:`~millstream.ingest.receipts`
(how QoS 2 is kept exactly once).
"""

from millstream.ingest.arrival import Arrival
from millstream.ingest.errors import (
    BrokerRefusedError,
    BrokerUnavailableError,
    IngestError,
    IngestInputError,
    MalformedError,
    ReceiptsError,
)
from millstream.ingest.place import BrokerPlace, parse_broker
from millstream.ingest.plain_json import PlainJson
from millstream.ingest.receipts import Receipts
from millstream.ingest.shapes import Shape, shape_named

__all__ = [
    "Arrival",
    "BrokerPlace",
    "BrokerRefusedError",
    "BrokerUnavailableError",
    "IngestError",
    "IngestInputError",
    "MalformedError",
    "PlainJson",
    "Receipts",
    "ReceiptsError",
    "Shape",
    "parse_broker",
    "shape_named",
]
