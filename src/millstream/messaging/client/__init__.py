"""Clients of RocketMQ 5: of Millstream's broker, and of Apache RocketMQ itself.

They are for asyncio, and for one event loop each; nothing happens on import and nothing before they start.
"""

from millstream.messaging.client.errors import (
    BadRequestError,
    ClientError,
    ForbiddenError,
    ForkedError,
    InvalidHandleError,
    NotRunningError,
    PartialFailureError,
    PayloadError,
    ResourceNotFoundError,
    ServerFailedError,
    StartupError,
    ThrottledError,
    TransportError,
    UnauthorizedError,
    UnsupportedError,
)
from millstream.messaging.client.message import Message, Receipt, Received
from millstream.messaging.client.options import Intervals, Options, Tls
from millstream.messaging.client.producer import Producer
from millstream.messaging.client.push_consumer import PushConsumer
from millstream.messaging.client.signing import Credentials
from millstream.messaging.client.simple_consumer import SimpleConsumer
from millstream.messaging.client.subscription import Filter
from millstream.messaging.client.transaction import Transaction

__all__ = [
    "BadRequestError",
    "ClientError",
    "Credentials",
    "Filter",
    "ForbiddenError",
    "ForkedError",
    "Intervals",
    "InvalidHandleError",
    "Message",
    "NotRunningError",
    "Options",
    "PartialFailureError",
    "PayloadError",
    "Producer",
    "PushConsumer",
    "Receipt",
    "Received",
    "ResourceNotFoundError",
    "ServerFailedError",
    "SimpleConsumer",
    "StartupError",
    "ThrottledError",
    "Tls",
    "Transaction",
    "TransportError",
    "UnauthorizedError",
    "UnsupportedError",
]
