"""The broker's methods as gRPC calls them: who calls, what goes wrong, and where it goes."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from urllib.parse import unquote

import msgspec

from millstream.log import LogError
from millstream.messaging.broker.admin import ADMIN_SERVICE, AdminCall, AdminChange, AdminResponse
from millstream.messaging.broker.handlers.call_context import CallContext
from millstream.messaging.broker.handlers.method_table import (
    BATCH_CALLS,
    REQUIRED_PERMISSIONS,
    STREAM_CALLS,
    TELEMETRY,
    UNARY_CALLS,
    BatchCall,
    StreamCall,
    UnaryCall,
)
from millstream.messaging.broker.handlers.request_decoder import read_request
from millstream.messaging.broker.handlers.telemetry import serve
from millstream.messaging.broker.handlers.validation import check_caller_id
from millstream.messaging.broker.security.access_keys import UNRESTRICTED, CallerPermissions, Keyring
from millstream.messaging.broker.security.required_permissions import RequiredPermission, check_admin, check_call
from millstream.messaging.broker.server.forwarder import FORWARDED, forwarding_proof
from millstream.messaging.broker.server.supervisor import BrokerSupervisor
from millstream.messaging.errors import ChangeNotRecordedError, MessagingError, StatusError
from millstream.messaging.protocol import v2
from millstream.messaging.protocol.batch_calls import BATCH_SERVICE, BatchMethod, write_answer
from millstream.messaging.protocol.descriptor_methods import SERVICE, Method, methods

if TYPE_CHECKING:
    import grpc

Request = TypeVar("Request")
Response = TypeVar("Response")

RecordChange: TypeAlias = Callable[[str, AdminChange], object]
"""Records durably that a user made a change over the network. It may wait for a database, and is called in a thread."""

_log = logging.getLogger(__name__)


class CallAuthorizer:
    """Checks who makes a call, and what they may do, before *supervisor* gets it.

    *member_key* is the secret of the members of the node, if it has several; see :func:`forwarding_proof`.
    """

    def __init__(self, supervisor: BrokerSupervisor, keys: Keyring, member_key: bytes | None = None) -> None:
        self.supervisor = supervisor
        self.keys = keys
        self._member_key = member_key

    def is_forwarded(self, method: str, headers: Mapping[str, str | bytes]) -> bool:
        """Whether a member of the node passed on this call of *method* (its path)."""
        if self._member_key is None or FORWARDED not in headers:
            return False
        proof = forwarding_proof(self._member_key, method, headers)
        return hmac.compare_digest(proof.encode(), str(headers[FORWARDED]).encode())

    def authorize(self, need: RequiredPermission, request: Any, context: Any) -> CallContext:
        """The caller of a method that has this *need*. Raises like :func:`check_caller`."""
        headers = call_headers(context)
        client_id, namespace, access = check_caller(self.keys, need, request, headers)
        core = self.supervisor.core
        connection = context.peer()
        core.sessions.touch(client_id, core.clock.now(), access, connection)
        language = str(headers.get("x-mq-language", ""))
        return CallContext(
            client_id, namespace, context.time_remaining, access, connection, language, context.auth_context
        )


def check_caller(
    keys: Keyring, need: RequiredPermission, request: Any, headers: Mapping[str, str | bytes]
) -> tuple[str, str, CallerPermissions]:
    """The client, its namespace, and its permissions, which suffice for *request* of a method that has this *need*.

    Raises UNAUTHORIZED, FORBIDDEN, CLIENT_ID_REQUIRED, BAD_REQUEST.
    """
    client_id, namespace, access = check_headers(keys, headers)
    if access is not UNRESTRICTED:
        check_call(need, request, access, namespace)
    return client_id, namespace, access


def check_headers(keys: Keyring, headers: Mapping[str, str | bytes]) -> tuple[str, str, CallerPermissions]:
    """The client, its namespace, and its permissions. Raises UNAUTHORIZED, CLIENT_ID_REQUIRED, BAD_REQUEST."""
    access = keys.access(headers)
    client_id, namespace = str(headers.get("x-mq-client-id", "")), str(headers.get("x-mq-namespace", ""))
    if not client_id:
        raise StatusError(
            v2.CLIENT_ID_REQUIRED, "the header x-mq-client-id is missing: set the header to the id of the client"
        )
    check_caller_id("client id", client_id)
    if access is not UNRESTRICTED:
        key = access.name.replace("%", "%25").replace("/", "%2F")
        client_id = f"{key}/{client_id}"  # no client speaks for a client of another key
    return client_id, namespace, access


FindHandler: TypeAlias = "Callable[[str], grpc.RpcMethodHandler[Any, Any] | None]"
"""The handler of a method by its name; None where there is no such method."""


def admitted_service(keys: Keyring, find: FindHandler) -> grpc.GenericRpcHandler:
    """The methods of the protocol for callers with one of *keys*."""

    def refused(name: str, error: MessagingError) -> bytes:
        response: bytes = refused_response(methods()[name], error).SerializeToString()
        return response

    return _admitted(SERVICE, find, lambda headers: check_headers(keys, headers), refused)


def admitted_batches(keys: Keyring, find: FindHandler) -> grpc.GenericRpcHandler:
    """The methods of the batch service for callers with one of *keys*."""

    def refused(name: str, error: MessagingError) -> bytes:
        return write_answer(_refused_batch(BATCH_CALLS[name].method, error))

    return _admitted(BATCH_SERVICE, find, lambda headers: check_headers(keys, headers), refused)


def admitted_administration(keys: Keyring, find: FindHandler) -> grpc.GenericRpcHandler:
    """The administrative calls for callers whose key permits them."""

    def refused(_name: str, error: MessagingError) -> bytes:
        return msgspec.json.encode(AdminResponse(error=str(error), exit_code=error.exit_code))

    return _admitted(ADMIN_SERVICE, find, lambda headers: check_admin(keys.access(headers)), refused)


def _admitted(
    service: str,
    find: FindHandler,
    check: Callable[[Mapping[str, str | bytes]], object],
    refused: Callable[[str, MessagingError], bytes],
) -> grpc.GenericRpcHandler:
    """The methods of *service* for calls whose headers pass *check*.

    Where it raises, the call is answered with what *refused* returns for the method and the error, and its request is
    not read: a caller without a key cannot make the broker receive and decode a large one.
    """
    import grpc

    class Admitted(grpc.GenericRpcHandler):
        def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
            called, _, name = handler_call_details.method[1:].rpartition("/")
            handler = find(name) if called == service else None
            if handler is None:
                return None
            try:
                check(dict(handler_call_details.invocation_metadata or ()))
            except MessagingError as error:
                return grpc.stream_stream_rpc_method_handler(_answer_unread(refused(name, error)))
            return handler

    return Admitted()


def _answer_unread(answer: bytes) -> Callable[[Any, Any], Awaitable[None]]:
    async def behaviour(_requests: Any, context: Any) -> None:
        await context.write(answer)

    return behaviour


def broker_handlers(auth: CallAuthorizer, record: RecordChange | None = None) -> Sequence[grpc.GenericRpcHandler]:
    """All calls of a broker, behind *auth*. With *record* administrative changes are recorded."""
    return service_handlers(auth), batch_handlers(auth), admin_handlers(auth, record)


def service_handlers(auth: CallAuthorizer) -> grpc.GenericRpcHandler:
    """The methods of the protocol, behind *auth*."""
    import grpc

    handlers: dict[str, Any] = {}
    for name, method in methods().items():
        if name == TELEMETRY:
            make, behaviour = grpc.stream_stream_rpc_method_handler, _telemetry(auth)
        elif name in STREAM_CALLS:
            make, behaviour = grpc.unary_stream_rpc_method_handler, _stream(method, STREAM_CALLS[name], auth)
        elif name in UNARY_CALLS:
            make, behaviour = grpc.unary_unary_rpc_method_handler, _unary(method, UNARY_CALLS[name], auth)
        else:
            make, behaviour = grpc.unary_unary_rpc_method_handler, _unsupported(method)
        handlers[name] = make(behaviour, request_reader(method), method.response.SerializeToString)
    return admitted_service(auth.keys, handlers.get)


def request_reader(method: Method | BatchMethod) -> Callable[[bytes], Any]:
    """Decodes requests of *method* for gRPC. Where one is refused, the result is the :class:`StatusError`: gRPC would
    end the call without the status if it was raised. The handler of the call raises it (:func:`accepted`)."""

    def read(data: bytes) -> Any:
        try:
            return read_request(method, data)
        except StatusError as refusal:
            return refusal

    return read


def accepted(request: Request | StatusError) -> Request:
    """*request* as :func:`request_reader` has read it. Raises the status of one that is refused."""
    if isinstance(request, StatusError):
        raise request
    return request


def _unary(
    method: Method, call: UnaryCall[Request, Response], auth: CallAuthorizer
) -> Callable[[Request | StatusError, Any], Awaitable[Response]]:
    async def behaviour(received: Request | StatusError, context: Any) -> Response:
        try:
            request = accepted(received)
            return await call.handler(auth.supervisor.service, request, auth.authorize(call.needs, request, context))
        except Exception as error:
            auth.supervisor.report_failure(error)
            refusal: Response = refused_response(method, error)
            return refusal

    return behaviour


def _stream(
    method: Method, call: StreamCall[Request, Response], auth: CallAuthorizer
) -> Callable[[Request | StatusError, Any], AsyncIterator[Response]]:
    async def behaviour(received: Request | StatusError, context: Any) -> AsyncIterator[Response]:
        try:
            request = accepted(received)
            admitted = auth.authorize(call.needs, request, context)
            async for response in call.handler(auth.supervisor.service, request, admitted):
                yield response
        except Exception as error:
            auth.supervisor.report_failure(error)
            yield refused_response(method, error)

    return behaviour


def _unsupported(method: Method) -> Callable[[Any, Any], Awaitable[Any]]:
    async def behaviour(_request: Any, _context: Any) -> Any:
        return refused_response(
            method, StatusError(v2.UNSUPPORTED, f"this broker does not support the call {method.name}")
        )

    return behaviour


def _telemetry(auth: CallAuthorizer) -> Any:
    async def behaviour(requests: Any, context: Any) -> None:
        try:
            call, supervisor = auth.authorize(REQUIRED_PERMISSIONS[TELEMETRY], None, context), auth.supervisor
            session = supervisor.core.sessions.touch(call.client_id, supervisor.core.clock.now(), call.access)
            commands = (accepted(each) async for each in requests)
            await serve(lambda: supervisor.telemetry, session, call, commands, context.write)
        except StatusError as refused:
            command = v2.TelemetryCommand()
            command.status.code, command.status.message = refused.code, str(refused)  # type: ignore[assignment]
            await context.write(command)

    return behaviour


def batch_handlers(auth: CallAuthorizer) -> grpc.GenericRpcHandler:
    """Batches of our clients, behind *auth*; see :mod:`millstream.messaging.protocol.batch_calls`."""
    import grpc

    handlers: dict[str, Any] = {
        name: grpc.unary_unary_rpc_method_handler(_batch(call, auth), request_reader(call.method), write_answer)
        for name, call in BATCH_CALLS.items()
    }
    return admitted_batches(auth.keys, handlers.get)


def _batch(
    call: BatchCall[Request, Response], auth: CallAuthorizer
) -> Callable[[Request | StatusError, Any], Awaitable[Response]]:
    method = call.method

    async def behaviour(received: Request | StatusError, context: Any) -> Response:
        try:
            request = accepted(received)
            return await call.handler(auth.supervisor.service, request, auth.authorize(call.needs, request, context))
        except Exception as error:
            auth.supervisor.report_failure(error)
            refusal: Response = _refused_batch(method, error)
            return refusal

    return behaviour


def admin_handlers(auth: CallAuthorizer, record: RecordChange | None) -> grpc.GenericRpcHandler:
    """The administrative calls of a broker, behind *auth*; requests and answers are JSON."""
    import grpc

    handlers: dict[str, Any] = {
        call.name: grpc.unary_unary_rpc_method_handler(_asked(auth, call, record))
        for call in auth.supervisor.admin.calls
    }
    return admitted_administration(auth.keys, handlers.get)


def _asked(auth: CallAuthorizer, call: AdminCall[Any, Any], record: RecordChange | None) -> Any:
    async def behaviour(request: bytes, context: Any) -> bytes:
        try:
            access = auth.keys.access(call_headers(context))
            user, origin, admin = _user(access, context), _origin(auth, call, context), auth.supervisor.admin
        except MessagingError as error:
            return msgspec.json.encode(AdminResponse(error=str(error), exit_code=error.exit_code))

        async def note(change: AdminChange) -> None:
            if record is not None:
                await _record(record, user, AdminChange(change.action, change.target, {**change.facts, **origin}))

        async def ask(asked: Any) -> Any:
            return await admin.change(call, asked, note)

        # A caller who goes away cannot prevent that a change is recorded.
        return await asyncio.shield(asyncio.ensure_future(call.served_by(ask)(request)))

    return behaviour


async def _record(record: RecordChange, user: str, change: AdminChange) -> None:
    try:
        await asyncio.to_thread(record, user, change)
    except Exception as error:
        _log.exception("this change by %s is not in the operator audit log: %s", user, change)
        raise ChangeNotRecordedError from error


def _user(access: CallerPermissions, context: Any) -> str:
    """The caller in the operator audit log: the access key, or the name in the client certificate, or ``local``."""
    if access is not UNRESTRICTED:
        return f"key:{access.name}"
    known: Mapping[str, Sequence[bytes]] = context.auth_context()
    names = [*known.get("x509_common_name", ()), *known.get("x509_subject_alternative_name", ())]
    return f"certificate:{names[0].decode('utf-8', 'replace')}" if names else "local"


def _origin(auth: CallAuthorizer, call: AdminCall[Any, Any], context: Any) -> Mapping[str, Any]:
    """The address from which *call* came, and whether another process of the node passed it on from there."""
    peer: str = context.peer()  # ipv4:127.0.0.1:50000, or ipv6:%5B::1%5D:50000
    address = unquote(peer).partition(":")[2].rpartition(":")[0].strip("[]") or peer
    is_forwarded = auth.is_forwarded(f"/{ADMIN_SERVICE}/{call.name}", call_headers(context))
    return {"address": address} | ({"forwarded": True} if is_forwarded else {})


def refused_response(method: Method, error: Exception) -> Any:
    """The response of *method* that says why it failed."""
    return method.response(status=_status(method, error))


def _refused_batch(method: BatchMethod, error: Exception) -> Any:
    status = _status(method, error)
    return method.answer(code=status.code, text=status.message)


def call_headers(context: Any) -> dict[str, str | bytes]:
    """The headers of a call."""
    return dict(context.invocation_metadata() or ())


def _status(method: Method | BatchMethod, error: Exception) -> v2.Status:
    if isinstance(error, StatusError):
        code: Any = error.code
        return v2.Status(code=code, message=str(error))
    if isinstance(error, LogError):
        _log.error("%s failed: %s", method.name, error)
        return v2.Status(
            code=v2.INTERNAL_SERVER_ERROR,
            message=f"the message store failed ({type(error).__name__}); the broker's log says why",
        )
    _log.error("%s failed", method.name, exc_info=error)
    return v2.Status(code=v2.INTERNAL_SERVER_ERROR, message="the broker failed; its log says why")
