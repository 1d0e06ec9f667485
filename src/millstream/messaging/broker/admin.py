"""The administration calls of a broker: topics, groups and clients.

Each call is declared once, and served in two ways: by the HTTP interface of the node in which the broker runs
(``millstream/rest/views/topics.py``), and as JSON by a gRPC service beside RocketMQ's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Annotated, Any, Final, Generic, TypeVar

import msgspec

from millstream.core.decoding import prepared
from millstream.core.errors import InputError, MillstreamError
from millstream.messaging.broker.clients.sessions import ClientSession
from millstream.messaging.broker.core import BrokerCore
from millstream.messaging.broker.handlers.telemetry import TelemetryHandler
from millstream.messaging.broker.handlers.validation import check_group_name
from millstream.messaging.broker.limits import GroupSpec
from millstream.messaging.broker.names import enum_name, split_name
from millstream.messaging.broker.storage.topic import TopicSpec, changes_topic, missing_topic
from millstream.messaging.broker.storage.wire_codec import DeliveryInfo, to_wire
from millstream.messaging.errors import (
    BrokerError,
    ChangeNotMadeError,
    ChangeNotRecordedError,
    ConnectionNotFoundError,
    GroupNotFoundError,
    StatusError,
    TopicNotFoundError,
)
from millstream.messaging.protocol import v2

Request = TypeVar("Request")
Result = TypeVar("Result")

ADMIN_SERVICE: Final = "millstream.broker.v1.Admin"


class TopicInfo(msgspec.Struct, kw_only=True, frozen=True):
    """The status of a topic: ``messages`` is the last id of its log, ``first`` the first available id, ``held`` the
    number of delayed messages and messages in open transactions, and ``groups`` its consumer groups.
    """

    name: str
    type: str
    queues: int
    messages: int
    groups: list[str]
    first: int = 1
    held: int = 0


class GroupInfo(msgspec.Struct, kw_only=True, frozen=True):
    """The status of a group on a topic: all messages up to ``done`` are processed, ``in_flight`` messages are delivered
    but not acknowledged, ``lag`` messages are not delivered yet, and ``consumers`` are connected. A message is
    delivered at most ``max_attempts`` times, with the pauses ``backoff`` (microseconds) in between.
    """

    group: str
    topic: str
    done: int
    in_flight: int
    lag: int
    consumers: int
    max_attempts: int = 0
    backoff: tuple[int, ...] = ()


class ClientInfo(msgspec.Struct, kw_only=True, frozen=True):
    """A client: its type (the protocol's ``ClientType``), the time of its last call (microseconds), and whether it has
    an open telemetry stream, which queries to the client need.
    """

    client_id: str
    kind: str
    group: str
    topics: list[str]
    seen_at: int
    is_connected: bool


class VerificationRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The message ``id`` of ``topic``, for the listener of a push consumer."""

    client_id: str
    topic: str
    id: int


class VerificationResult(msgspec.Struct, frozen=True):
    """The result: the name of a status of the protocol, and its text."""

    status: str
    text: str = ""


class AdminResponse(msgspec.Struct, frozen=True):
    """The answer to a call: a result, or an error's text and exit code."""

    result: Any = None
    error: str = ""
    exit_code: int = 0


class OffsetResetRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The new position of a group: the next message ``next_id``, or the first one stored at or after ``time``
    (microseconds).
    """

    group: str
    topic: str
    next_id: Annotated[int, msgspec.Meta(ge=1, le=2**53 - 1)] | None = None
    time: Annotated[int, msgspec.Meta(ge=0, le=2**53 - 1)] | None = None


class GroupConfigRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """New delivery limits of a group; limits that are not given do not change, or with ``defaults`` become those of the
    broker's settings.
    """

    group: str
    max_attempts: int | None = None
    backoff: tuple[int, ...] | None = None
    defaults: bool = False


class OffsetResetError(BrokerError, InputError):
    """Give exactly one of next_id and time."""


class GroupNameError(BrokerError, InputError):
    """This cannot be the name of a consumer group."""


class AdminChange(msgspec.Struct, frozen=True):
    """A change by a call, as the operator audit log records it."""

    action: str
    target: str
    facts: Mapping[str, Any] = {}


class AdminCallError(BrokerError):
    """The broker refused."""


class AdminCall(Generic[Request, Result]):
    """A call: its *name* in the gRPC service, and the types of what it takes and returns.

    In the HTTP interface it is *route*, a method and a path. A request that is only text is called *argument* there.
    """

    def __init__(self, name: str, request: type[Request], result: type[Result], route: str, argument: str = "") -> None:
        self.name, self._request, self._result = name, request, result
        self.method, _, self.path = route.partition(" ")
        self._argument = argument

    def served_by(self, method: Callable[[Request], Awaitable[Result]]) -> Callable[[bytes], Awaitable[bytes]]:
        """The call from JSON to JSON, done by *method*."""

        async def serve(request: bytes) -> bytes:
            try:
                answer = AdminResponse(result=await method(msgspec.json.decode(request, type=prepared(self._request))))
            except MillstreamError as error:
                answer = AdminResponse(error=str(error), exit_code=error.exit_code)
            except msgspec.ValidationError as error:
                answer = AdminResponse(error=f"invalid request: {error}", exit_code=2)
            return msgspec.json.encode(answer)

        return serve

    def parameters(self, request: Request) -> Mapping[str, Any]:
        """The members of *request* in the HTTP interface."""
        return {self._argument: request} if self._argument else dict(msgspec.to_builtins(request))

    def rest_result(self, answer: Any) -> Result:
        """The result in *answer* of the HTTP interface, which has a list as the ``items`` of an object."""
        is_listing = isinstance(answer, dict) and "items" in answer
        return msgspec.convert(answer["items"] if is_listing else answer, prepared(self._result))

    def result_of(self, response: bytes) -> Result:
        """The result of the call. Raises :class:`AdminCallError` with the error of the broker."""
        answer = msgspec.json.decode(response, type=prepared(AdminResponse))
        if not answer.error:
            return msgspec.convert(answer.result, prepared(self._result))
        error = AdminCallError(answer.error)
        error.exit_code = answer.exit_code  # type: ignore[misc]
        raise error


CREATE_TOPIC = AdminCall("MakeTopic", TopicSpec, TopicInfo, "POST /topics")
DROP_TOPIC = AdminCall("DropTopic", str, str, "POST /topics/delete", "topic")
TOPICS = AdminCall("Topics", str, list[TopicInfo], "GET /topics", "topic")
GROUPS = AdminCall("Groups", str, list[GroupInfo], "GET /groups", "group")
CONFIGURE_GROUP = AdminCall("ConfigureGroup", GroupConfigRequest, GroupSpec, "POST /groups/configure")
GROUP_SPECS = AdminCall("GroupSpecs", str, list[GroupSpec], "GET /groups/limits", "group")
RESET_OFFSET = AdminCall("RestartGroup", OffsetResetRequest, GroupInfo, "POST /groups/reset")
CLIENTS = AdminCall("Clients", str, list[ClientInfo], "GET /clients", "group")
STACK_TRACE = AdminCall("StackTrace", str, str, "GET /clients/stack", "client_id")
VERIFY = AdminCall("Verify", VerificationRequest, VerificationResult, "POST /clients/verify")

_CHANGES: Final[Mapping[AdminCall[Any, Any], Callable[[Any, Any], AdminChange]]] = {
    CREATE_TOPIC: lambda _, topic: AdminChange(
        "create topic", f"topic {topic.name}", {"type": topic.type, "queues": topic.queues}
    ),
    DROP_TOPIC: lambda _, name: AdminChange("delete topic", f"topic {name}"),
    CONFIGURE_GROUP: lambda _, spec: AdminChange(
        "configure group", f"group {spec.name}", {"max_attempts": spec.max_attempts, "backoff": list(spec.backoff)}
    ),
    RESET_OFFSET: lambda _, group: AdminChange(
        "reset offset", f"group {group.group}", {"topic": group.topic, "done": group.done}
    ),
    VERIFY: lambda asked, result: AdminChange(
        "verify message",
        f"client {asked.client_id}",
        {"topic": asked.topic, "id": asked.id, "status": result.status},
    ),
}
"""Of a request and its result: what was changed."""


RECORDED_FIRST: Final[Collection[AdminCall[Any, Any]]] = (CREATE_TOPIC, DROP_TOPIC)
"""Calls that are recorded before the change: a repeated one finds nothing left to do, and would not be recorded."""


def planned_change(
    call: AdminCall[Any, Any], request: Any, find_topic: Callable[[str], TopicSpec | None]
) -> AdminChange | None:
    """What *call* of *request*, of :data:`RECORDED_FIRST`, will change; None where a topic exists as requested, which
    programs ask for each time they start. *find_topic* returns the topic of a name.

    Raises the errors with which the broker will refuse: :class:`TopicError`, :class:`TopicNotFoundError`.
    """
    if call is CREATE_TOPIC:
        has_effect = changes_topic(find_topic(request.name), request)
    elif find_topic(request) is None:
        raise missing_topic(request)
    else:
        has_effect = True
    return _CHANGES[call](request, request) if has_effect else None  # the request has all facts of the result


def change_by(call: AdminCall[Request, Result], request: Request, result: Result) -> AdminChange | None:
    """What *call* of *request*, with this *result*, has changed; None for a call that only reads."""
    return _CHANGES[call](request, result) if call in _CHANGES else None


_ERRORS: Final[Mapping[int, type[BrokerError]]] = {
    v2.TOPIC_NOT_FOUND: TopicNotFoundError,
    v2.ILLEGAL_CONSUMER_GROUP: GroupNameError,
}


class AdminService:
    """The calls, on *core*."""

    def __init__(self, core: BrokerCore) -> None:
        self._core = core
        self._methods: Mapping[AdminCall[Any, Any], Callable[[Any], Awaitable[Any]]] = {
            CREATE_TOPIC: self.create_topic,
            DROP_TOPIC: self.drop_topic,
            TOPICS: self.topics,
            GROUPS: self.groups,
            CONFIGURE_GROUP: self.configure_group,
            GROUP_SPECS: self.group_specs,
            RESET_OFFSET: self.reset_offset,
            CLIENTS: self.clients,
            STACK_TRACE: self.stack_trace,
            VERIFY: self.verify,
        }

    @property
    def calls(self) -> Collection[AdminCall[Any, Any]]:
        """Every call."""
        return self._methods.keys()

    async def ask(self, call: AdminCall[Request, Result], request: Request) -> Result:
        """The result of *call* for *request*, within this process.

        Raises :class:`BrokerError` instead of the statuses that clients of the messaging protocol get.
        """
        try:
            result: Result = await self._methods[call](request)
        except StatusError as error:
            raise _ERRORS.get(error.code, BrokerError)(str(error)) from error
        return result

    async def change(
        self,
        call: AdminCall[Request, Result],
        request: Request,
        record: Callable[[AdminChange], Awaitable[object]],
    ) -> Result:
        """:meth:`ask`, of which *record* gets what it changes: nothing of a call that only reads, or that creates a
        topic that exists as requested.

        Where *record* raises :class:`ChangeNotRecordedError`, a repeated call is recorded. A topic is therefore created
        or deleted only after it is recorded, since a repeated call would find nothing to do: else it raises
        :class:`ChangeNotMadeError`.
        """
        if call not in RECORDED_FIRST:
            result = await self.ask(call, request)
            if (change := change_by(call, request, result)) is not None:
                await record(change)
            return result
        if (change := planned_change(call, request, self._core.find_spec)) is not None:
            try:
                await record(change)
            except ChangeNotRecordedError as error:
                raise ChangeNotMadeError from error
        return await self.ask(call, request)

    async def create_topic(self, spec: TopicSpec) -> TopicInfo:
        """Make a topic, or give it more queues."""
        await self._core.create_topic(spec)
        return self._topic_info(spec)

    async def drop_topic(self, name: str) -> str:
        """Forget a topic; its log stays."""
        await self._core.drop_topic(name)
        return name

    async def topics(self, name: str) -> list[TopicInfo]:
        """The status of the topic *name*, or of all topics where it is empty."""
        found = [spec for spec in self._core.specs if name in ("", spec.name)]
        if name and not found:
            raise missing_topic(name)
        return [self._topic_info(spec) for spec in found]

    async def groups(self, name: str) -> list[GroupInfo]:
        """The progress of the group *name* in its topics, or of all groups where it is empty."""
        known = sorted(key for key in self._core.journal.state.deliveries if name in ("", key[0]))
        if name and not known and name not in self._core.journal.state.groups:
            raise GroupNotFoundError(
                f"unknown consumer group {name}: no consumer of this group has connected yet; `millstream group list` "
                "lists all groups"
            )
        return [self._group_info(group, topic) for group, topic in known]

    async def configure_group(self, change: GroupConfigRequest) -> GroupSpec:
        """Set the rules of a group, notify its connected consumers, and return the new rules."""
        check_group_name(change.group)
        known = GroupSpec(change.group)
        if not change.defaults:
            known = self._core.journal.state.groups.get(change.group, known)
        attempts = known.max_attempts if change.max_attempts is None else change.max_attempts
        backoff = known.backoff if change.backoff is None else change.backoff
        await self._core.configure_group(GroupSpec(change.group, attempts, backoff))
        TelemetryHandler(self._core).resend_settings(change.group)
        return self._core.group(change.group)

    async def group_specs(self, name: str) -> list[GroupSpec]:
        """The rules of the group *name*, or of all groups that consume something or have their own rules."""
        state = self._core.journal.state
        known = {group for group, _ in state.deliveries} | set(state.groups)
        return [self._core.group(each) for each in sorted(known) if name in ("", each)]

    async def reset_offset(self, restart: OffsetResetRequest) -> GroupInfo:
        """Send a group back, or on."""
        check_group_name(restart.group)
        if (restart.next_id is None) == (restart.time is None):
            raise OffsetResetError
        topic = self._core.topic(restart.topic)
        next_id = restart.next_id
        if next_id is None:
            next_id = await asyncio.to_thread(topic.first_id_since, restart.time or 0)
        next_id = min(max(next_id, 1), topic.last_id + 1)
        await self._core.reset_offset(restart.group, restart.topic, next_id)
        return self._group_info(restart.group, restart.topic)

    async def clients(self, group: str) -> list[ClientInfo]:
        """The clients that are known, in the order of their ids: all, or the consumers of *group*."""
        found = [each for each in self._core.sessions if not group or each.group == group]
        return [
            ClientInfo(
                client_id=each.client_id,
                kind=enum_name(v2.ClientType, each.kind),
                group=each.group,
                topics=sorted(each.topics),
                seen_at=each.seen,
                is_connected=bool(each.streams),
            )
            for each in sorted(found, key=lambda each: each.client_id)
        ]

    async def stack_trace(self, client_id: str) -> str:
        """The thread stacks of a client. Raises :class:`ClientNotRespondingError`."""
        answer = await self._core.client_commands.stack_trace(self._session(client_id))
        return answer.thread_stack_trace.thread_stack_trace or f"({enum_name(v2.Code, answer.status.code)})"

    async def verify(self, verify: VerificationRequest) -> VerificationResult:
        """Let a push consumer handle a message; its group's progress stays as it is."""
        session = self._session(verify.client_id)
        topic = self._core.topic(verify.topic)
        found = await topic.message_cache.read_ids([verify.id]) if 0 < verify.id <= topic.last_id else {}
        if not found:
            raise TopicNotFoundError(f"topic {verify.topic} has no message {verify.id}; it may have been trimmed")
        message = to_wire(found[verify.id], DeliveryInfo(*split_name(verify.topic)))
        answer = await self._core.client_commands.verify(session, message)
        return VerificationResult(enum_name(v2.Code, answer.status.code), answer.status.message)

    def _session(self, client_id: str) -> ClientSession:
        found = self._core.sessions.get(client_id)
        if found is None:
            raise ConnectionNotFoundError(f"unknown client {client_id}; `millstream client list` lists all clients")
        return found

    def _topic_info(self, spec: TopicSpec) -> TopicInfo:
        groups = sorted(group for group, topic in self._core.journal.state.deliveries if topic == spec.name)
        first, last = self._core.extent(spec.name)
        held = sum(hold.topic == spec.name for hold in self._core.journal.state.delayed)
        return TopicInfo(
            name=spec.name, type=spec.type, queues=spec.queues, messages=last, groups=groups, first=first, held=held
        )

    def _group_info(self, group: str, topic: str) -> GroupInfo:
        delivery, rules = self._core.journal.state.delivery(group, topic), self._core.group(group)
        consumers = len(self._core.sessions.in_group(group))
        lag = delivery.lag(*self._core.extent(topic))
        done, in_flight = delivery.done.pointer, delivery.in_flight.messages
        return GroupInfo(
            group=group,
            topic=topic,
            done=done,
            in_flight=in_flight,
            lag=lag,
            consumers=consumers,
            max_attempts=rules.max_attempts,
            backoff=rules.backoff,
        )
