"""Asking a running broker about its topics and groups, or working on them where none runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import msgspec

from millstream.core.address import Address
from millstream.core.clock import Clock, SystemClock
from millstream.log import LogStore
from millstream.messaging.broker.admin import ADMIN_SERVICE, AdminCall, AdminCallError, AdminChange, AdminService
from millstream.messaging.broker.core import BrokerCore
from millstream.messaging.broker.limits import Limits
from millstream.messaging.client.options import DEFAULTS, Options
from millstream.messaging.client.signing import Signer
from millstream.messaging.errors import MissingExtraError, UnreachableError

Request = TypeVar("Request")
Result = TypeVar("Result")

_SECONDS = 30.0


class AskBroker(Protocol):
    """Makes a call of a broker's administration service."""

    def __call__(self, call: AdminCall[Request, Result], request: Request) -> Result:
        """The result of *call* for *request*."""
        ...


def call_broker(
    place: Address, call: AdminCall[Request, Result], request: Request, options: Options = DEFAULTS
) -> Result:
    """The result of *call* of the broker at *place*, signed and encrypted as *options* say.

    Raises :class:`UnreachableError`, and what the broker raised.
    """
    try:
        import grpc
    except ImportError as error:
        raise MissingExtraError from error
    tls = options.tls
    target = str(place)
    headers = Signer("millstream", SystemClock(), credentials=options.credentials).headers()
    arguments: list[tuple[str, Any]] = [
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
    ]
    if tls and tls.server_name:
        arguments.append(("grpc.ssl_target_name_override", tls.server_name))
    with (
        grpc.secure_channel(target, tls.credentials(), arguments) if tls else grpc.insecure_channel(target, arguments)
    ) as channel:
        send: Any = channel.unary_unary(f"/{ADMIN_SERVICE}/{call.name}")
        try:
            return call.result_of(send(msgspec.json.encode(request), timeout=_SECONDS, metadata=headers))
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.UNIMPLEMENTED:
                raise AdminCallError(
                    f"the server at {place} does not support this command: it is not a Millstream broker, or one of an "
                    "earlier release. Give the address of a Millstream broker, or upgrade the broker"
                ) from error
            if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
                raise UnreachableError(
                    f"the broker at {place} did not answer within {_SECONDS:g} seconds: it may have made a change that "
                    "was asked for. Examine the state before you repeat the command"
                ) from error
            reason = str(error.details() or error.code().name)[:200]
            raise UnreachableError(
                f"cannot call the broker at {place}: {reason}. Check the address, that `millstream serve` runs there, "
                "and whether the address needs TLS"
            ) from error


def call_store(
    store: LogStore,
    call: AdminCall[Request, Result],
    request: Request,
    *,
    clock: Clock | None = None,
    limits: Limits | None = None,
    record: Callable[[AdminChange], object] = lambda _: None,
) -> Result:
    """Like :func:`call_broker`, on the topics in *store*, of which no broker may be running.

    *record* gets what *call* changes: before the change where a repeated call would find nothing to do.
    """

    async def note(change: AdminChange) -> None:
        record(change)

    async def ask() -> Result:
        core = BrokerCore(store, clock or SystemClock(), limits)
        try:
            return await AdminService(core).change(call, request, note)
        finally:
            core.close()

    return asyncio.run(ask())
