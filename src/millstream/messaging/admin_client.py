"""Asking a running broker about its topics and groups, or working on them where none runs."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

import msgspec

from millstream.core.clock import Clock, SystemClock
from millstream.core.errors import MillstreamError
from millstream.log import LogStore
from millstream.messaging.broker.address import Address
from millstream.messaging.broker.admin import ADMIN_SERVICE, AdminResponse, AdminService
from millstream.messaging.broker.core import BrokerCore
from millstream.messaging.broker.limits import Limits
from millstream.messaging.client.options import DEFAULTS, Options
from millstream.messaging.client.signing import Signer
from millstream.messaging.errors import BrokerError, MissingExtraError, UnreachableError

Result = TypeVar("Result")

_SECONDS = 30.0


class AdminCallError(BrokerError):
    """The broker refused."""


def call_broker(place: Address, name: str, request: Any, kind: type[Result], options: Options = DEFAULTS) -> Result:
    """What the call *name* of the broker at *place* returns, signed and encrypted as *options* say.

    Raises :class:`UnreachableError`, and what the broker raised.
    """
    try:
        import grpc
    except ImportError as error:
        raise MissingExtraError from error
    tls = options.tls
    target = str(place)
    headers = Signer("millstream", SystemClock(), credentials=options.credentials).headers()
    with (
        grpc.secure_channel(target, grpc.ssl_channel_credentials(tls.ca, tls.key, tls.certificate))
        if tls
        else grpc.insecure_channel(target)
    ) as channel:
        call: Any = channel.unary_unary(f"/{ADMIN_SERVICE}/{name}")
        try:
            return read_response(call(msgspec.json.encode(request), timeout=_SECONDS, metadata=headers), kind)
        except grpc.RpcError as error:
            if error.code() == grpc.StatusCode.UNIMPLEMENTED:
                raise AdminCallError(f"the broker at {place} is of an earlier release, and cannot do this") from error
            raise UnreachableError(f"no broker answers at {place}; is `millstream serve` running there?") from error


def call_store(
    store: LogStore,
    name: str,
    request: Any,
    kind: type[Result],
    *,
    clock: Clock | None = None,
    limits: Limits | None = None,
) -> Result:
    """Like :func:`call_broker`, on the topics in *store*, of which no broker may be running."""

    async def ask() -> bytes:
        core = BrokerCore(store, clock or SystemClock(), limits)
        try:
            return await AdminService(core).calls()[name](msgspec.json.encode(request))
        finally:
            core.close()

    return read_response(asyncio.run(ask()), kind)


def read_response(answer: bytes, kind: type[Result]) -> Result:
    """What the call of :class:`~millstream.messaging.broker.admin.AdminService` returned, or its error raised."""
    found = msgspec.json.decode(answer, type=AdminResponse)
    if found.error:
        raise _error(found)
    return msgspec.convert(found.result, kind)


def _error(answer: AdminResponse) -> MillstreamError:
    error = AdminCallError(answer.error)
    error.exit_code = answer.exit_code  # type: ignore[misc]
    return error
