"""The broker of a node."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

from millstream.core.address import Address, is_wildcard, parse_address
from millstream.core.documents import KEY_BYTES, shared_key
from millstream.node.context import NodeContext
from millstream.node.databases import DatabasesPart
from millstream.node.logs import LogsPart
from millstream.node.members.assignment import BROKER_ROLE

if TYPE_CHECKING:
    from millstream.messaging.broker.address import RouteEndpoints
    from millstream.messaging.broker.admin import AdminCall
    from millstream.messaging.broker.security.tls import ServerTls
    from millstream.messaging.broker.server.broker_server import BrokerServer
    from millstream.messaging.broker.server.rpc import RecordChange
    from millstream.messaging.broker.server.shared_broker import SharedBroker
    from millstream.messaging.broker.settings import KeySettings
    from millstream.messaging.client.signing import Credentials

Request = TypeVar("Request")
Result = TypeVar("Result")

_TLS = "broker-tls"


class MessagingPart:
    """Makes brokers on the node's logs."""

    def __init__(self, context: NodeContext, logs: LogsPart, databases: DatabasesPart) -> None:
        self._context = context
        self._logs = logs
        self._databases = databases

    def broker(
        self, place: Address, tls_place: Address | None = None, *, record: RecordChange | None = None
    ) -> BrokerServer:
        """A broker on the node's logs, listening on *place* while its block is open.

        At *tls_place*, if given, it uses TLS, with the certificate of the settings or else a generated one. *record*
        gets each change by an administrative call over the network. Raises
        :class:`~millstream.messaging.errors.BrokerCredentialsError` where its keys or certificates cannot be used.
        """
        from millstream.messaging.broker.limits import limits_of
        from millstream.messaging.broker.security.access_keys import read_keyring
        from millstream.messaging.broker.server.broker_server import BrokerServer

        settings, clock = self._context.settings.broker, self._context.clock
        return BrokerServer(
            self._logs.store,
            place,
            clock=clock,
            limits=limits_of(settings),
            keys=read_keyring(settings.keys),
            tls=self._tls(tls_place),
            tls_place=tls_place,
            advertised=parse_address(settings.advertised) if settings.advertised else None,
            record=record,
        )

    def shared_broker(
        self, place: Address, tls_place: Address | None = None, *, record: RecordChange | None = None
    ) -> SharedBroker:
        """The broker of a member of the node: like :meth:`broker`, but on standby until it is told to begin."""
        from millstream.messaging.broker.limits import limits_of
        from millstream.messaging.broker.security.access_keys import read_keyring
        from millstream.messaging.broker.server.listener import Listener
        from millstream.messaging.broker.server.shared_broker import SharedBroker

        settings, clock = self._context.settings.broker, self._context.clock
        advertised = parse_address(settings.advertised) if settings.advertised else None
        if advertised is None and is_wildcard(place):
            advertised = Address(socket.gethostname(), 0)
        return SharedBroker(
            self._logs.store,
            Listener(place, keys=read_keyring(settings.keys), tls=self._tls(tls_place), tls_place=tls_place),
            self._owner,
            clock=clock,
            member_key=self._member_key(),
            limits=limits_of(settings),
            advertised=advertised,
            record=record,
        )

    def _member_key(self) -> bytes:
        """The secret by which members recognize calls that another one passed on; in the node's database."""
        if not self._databases.members.is_shared:
            return secrets.token_bytes(KEY_BYTES)  # there is no other member
        return shared_key(self._databases.documents.document("broker/member.key"))

    def ask_owner(self, call: AdminCall[Request, Result], request: Request) -> Result:
        """The result of *call* of the broker if another member owns it.

        Raises :class:`~millstream.messaging.broker.server.standby.NoOwnerError` and what
        :func:`~millstream.messaging.admin_client.call_broker` does,
        :class:`~millstream.messaging.errors.BrokerCredentialsError` where no access key may administer, and
        :class:`~millstream.messaging.errors.BrokerElsewhereError` where the broker takes encrypted calls alone: its
        certificate is for its clients to check.
        """
        from millstream.messaging.admin_client import call_broker
        from millstream.messaging.broker.server.standby import NoOwnerError
        from millstream.messaging.client.options import Options
        from millstream.messaging.errors import BrokerElsewhereError

        routes, settings = self._owner(), self._context.settings.broker
        if routes is None:
            raise NoOwnerError
        if settings.tls_certificate and routes.tls_address is None:
            raise BrokerElsewhereError(str(routes.address))
        return call_broker(routes.address, call, request, Options(credentials=_credentials(settings.keys)))

    def _owner(self) -> RouteEndpoints | None:
        """The address that the owner of the broker advertises."""
        from millstream.messaging.broker.address import RouteEndpoints

        member = self._databases.members.table.owner(BROKER_ROLE)
        addresses = {} if member is None else member.details.addresses
        if BROKER_ROLE not in addresses:
            return None
        tls = parse_address(addresses[_TLS]) if _TLS in addresses else None
        return RouteEndpoints(address=parse_address(addresses[BROKER_ROLE]), tls_address=tls, as_asked=False)

    def _tls(self, tls_place: Address | None) -> ServerTls | None:
        from millstream.messaging.broker.security.tls import read_tls

        tls = read_tls(self._context.settings.broker)
        return self.generated_tls(tls_place) if tls is None and tls_place is not None else tls

    def generated_tls(self, place: Address) -> ServerTls:
        """The certificate that the broker creates itself to encrypt at *place*, and where it is advertised.

        Raises :class:`~millstream.messaging.errors.BrokerCredentialsError`.
        """
        from millstream.messaging.broker.security.generated_certificate import generated_tls

        advertised = self._context.settings.broker.advertised
        hosts = {place.host, parse_address(advertised).host if advertised else place.host}
        return generated_tls(self._context.folder, hosts, self._context.clock)


def _credentials(keys: Mapping[str, KeySettings]) -> Credentials | None:
    """The signer of administrative calls; None if calls are not signed."""
    from millstream.messaging.broker.security.access_keys import admin_key
    from millstream.messaging.client.signing import Credentials

    if not keys:
        return None
    name, key = admin_key(keys)
    return Credentials(name, key.secret, key.token)


def member_addresses(routes: RouteEndpoints) -> Mapping[str, str]:
    """How a member tells the others where *routes* to its broker lead."""
    tls = {} if routes.tls_address is None else {_TLS: str(routes.tls_address)}
    return {BROKER_ROLE: str(routes.address), **tls}
