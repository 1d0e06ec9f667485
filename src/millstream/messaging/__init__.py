"""RocketMQ 5 messaging on the log: a broker that official clients use unchanged, and clients for asyncio.

The broker and the clients need the extra ``millstream[messaging]``. Importing this package does not: public names are
loaded on first use.

:mod:`millstream.messaging.protocol` is the wire protocol, :mod:`millstream.messaging.client` the clients and
:mod:`millstream.messaging.broker` the broker; :mod:`millstream.messaging.admin_client` calls the administration service
of a broker, and :mod:`millstream.messaging.rocketmq_work_queue` is the work queue on a RocketMQ server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.core.lazy_names import lazy_names
from millstream.messaging.errors import BrokerError, MessagingError, MissingExtraError

if TYPE_CHECKING:
    from millstream.core.address import Address, parse_address
    from millstream.messaging.admin_client import call_broker, call_store
    from millstream.messaging.broker.limits import GroupSpec, Limits
    from millstream.messaging.broker.server.broker_server import BrokerServer
    from millstream.messaging.broker.storage.topic import TopicSpec
    from millstream.messaging.client import (
        ClientError,
        Credentials,
        Filter,
        Message,
        Options,
        Producer,
        PushConsumer,
        Receipt,
        Received,
        SimpleConsumer,
        Tls,
        Transaction,
    )
    from millstream.messaging.rocketmq_work_queue import RocketWorkQueue

__all__ = [
    "Address",
    "BrokerError",
    "BrokerServer",
    "ClientError",
    "Credentials",
    "Filter",
    "GroupSpec",
    "Limits",
    "Message",
    "MessagingError",
    "MissingExtraError",
    "Options",
    "Producer",
    "PushConsumer",
    "Receipt",
    "Received",
    "RocketWorkQueue",
    "SimpleConsumer",
    "Tls",
    "TopicSpec",
    "Transaction",
    "call_broker",
    "call_store",
    "parse_address",
]

__getattr__ = lazy_names(__name__)
