"""The broker of a node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.node.context import NodeContext
from millstream.node.logs import LogsPart

if TYPE_CHECKING:
    from millstream.core.address import Address
    from millstream.messaging.broker.server.broker_server import BrokerServer


class MessagingPart:
    """Makes brokers on the node's logs."""

    def __init__(self, context: NodeContext, logs: LogsPart) -> None:
        self._context = context
        self._logs = logs

    def broker(self, place: Address, tls_place: Address | None = None) -> BrokerServer:
        """A broker on the node's logs, listening on *place* while its block is open.

        At *tls_place*, if that is given, it encrypts, by the certificate of the settings or else by one of its own.
        Raises :class:`~millstream.messaging.errors.BrokerCredentialsError` where its keys or certificates cannot be
        used.
        """
        from millstream.messaging.broker.limits import limits_of
        from millstream.messaging.broker.security.access_keys import read_keyring
        from millstream.messaging.broker.security.generated_certificate import generated_tls
        from millstream.messaging.broker.security.tls import read_tls
        from millstream.messaging.broker.server.broker_server import BrokerServer

        settings, clock, store = self._context.settings.broker, self._context.clock, self._logs.store
        keys, tls = read_keyring(settings.keys), read_tls(settings)
        if tls is None and tls_place is not None:
            tls = generated_tls(self._context.folder, tls_place.host, clock)
        limits = limits_of(settings)
        return BrokerServer(store, place, clock=clock, limits=limits, keys=keys, tls=tls, tls_place=tls_place)
