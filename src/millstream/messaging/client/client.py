"""What producers and consumers have in common: routes, settings, heartbeats, and the connections to servers."""

from __future__ import annotations

import abc
import asyncio
import itertools
import logging
import platform
import socket
import sys
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from types import TracebackType
from typing import Any, ClassVar, Self

from millstream import __version__
from millstream.core.clock import Clock, SystemClock
from millstream.messaging.client.errors import ClientError, NotRunningError, ResourceNotFoundError, StartupError
from millstream.messaging.client.ids import client_id
from millstream.messaging.client.options import DEFAULTS, Options
from millstream.messaging.client.places import Endpoints, read_endpoints
from millstream.messaging.client.route import Route, read_queue
from millstream.messaging.client.signing import Signer
from millstream.messaging.client.stream import Stream
from millstream.messaging.client.transport import Transport
from millstream.messaging.protocol import v2
from millstream.messaging.protocol.batches import OURS, is_offered

_log = logging.getLogger(__name__)
_numbers = itertools.count()


class Client(abc.ABC):
    """A client of the servers at *endpoints* (``host:port``), for one event loop. Nothing happens before it starts.

    Use it in an ``async with`` block, or call :meth:`start` and :meth:`close`.
    """

    kind: ClassVar[int]

    def __init__(
        self, endpoints: str, topics: Iterable[str] = (), *, options: Options = DEFAULTS, clock: Clock | None = None
    ) -> None:
        self.options = options
        self.clock = clock or SystemClock()
        self.access_point = read_endpoints(endpoints)
        self.id = client_id(next(_numbers), self.clock)
        self.topics = set(topics)
        self._signer = Signer(self.id, self.clock, namespace=options.namespace, credentials=options.credentials)
        self._transports: dict[Endpoints, Transport] = {}
        self._streams: dict[Endpoints, Stream] = {}
        self._routes: dict[str, Route] = {}
        self._fetching: dict[str, asyncio.Future[Route]] = {}
        self._tasks: set[asyncio.Future[Any]] = set()
        self._is_running = False
        self.batched: set[Endpoints] = set()
        """Servers that give many messages in one answer."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Fetch the route of every declared topic and settle with its servers.

        Raises :class:`StartupError`, or the server's own error, naming topic and endpoint; the client is closed then.
        """
        self._is_running = True
        try:
            async with asyncio.timeout(self.options.startup_timeout):
                for topic in sorted(self.topics):
                    await self.route(topic)
                await self.on_start()
        except TimeoutError as error:
            await self.close()
            raise StartupError(
                f"{self.access_point} gave no routes and settings for {', '.join(sorted(self.topics))} within "
                f"{self.options.startup_timeout:g} seconds; is a server there?"
            ) from error
        except BaseException:
            await self.close()
            raise
        every = self.options.intervals
        self.spawn(self._repeat(every.first_route, every.route, self._refresh_routes))
        self.spawn(self._repeat(every.first_heartbeat, every.heartbeat, self._send_heartbeats))
        self.spawn(self._repeat(every.settings, every.settings, self._sync_settings))

    async def close(self) -> None:
        """End everything in order, and tell the servers. Closing again does nothing."""
        if not self._is_running:
            return
        await self.on_close()
        self._is_running = False
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*map(self._say_goodbye, list(self._streams)), return_exceptions=True)
        for stream in self._streams.values():
            await stream.close()
        for transport in self._transports.values():
            await transport.close()
        self._streams.clear()
        self._transports.clear()

    # What kinds of clients do differently

    async def on_start(self) -> None:  # noqa: B027 - most clients have nothing to do here
        """Do what else a start needs."""

    async def on_close(self) -> None:  # noqa: B027
        """Finish what is under way."""

    @abc.abstractmethod
    def declare(self, settings: v2.Settings) -> None:
        """Add to *settings* what this client declares."""

    @abc.abstractmethod
    def settle(self, settings: v2.Settings) -> None:
        """Keep to what a server answered."""

    def group_resource(self) -> v2.Resource | None:
        """The consumer group; None for a producer."""
        return None

    def on_healthy(self, endpoints: Endpoints) -> None:  # noqa: B027
        """A heartbeat was answered."""

    async def on_command(self, endpoints: Endpoints, command: v2.TelemetryCommand) -> v2.TelemetryCommand | None:
        """Do what else a server asks for; the answer, if there is one."""
        if command.HasField("verify_message_command"):
            return _answer(v2.NOT_IMPLEMENTED, verify=command.verify_message_command.nonce)
        _log.info("%s asks for what this client does not do: %s", endpoints, command.WhichOneof("command"))
        return None

    # What they share

    def require_running(self) -> None:
        """Raise :class:`NotRunningError` before the start and after the end."""
        if not self._is_running:
            raise NotRunningError

    def resource(self, name: str) -> v2.Resource:
        """*name* in the client's namespace."""
        return v2.Resource(resource_namespace=self.options.namespace, name=name)

    def transport(self, endpoints: Endpoints) -> Transport:
        """The connection to *endpoints*."""
        found = self._transports.get(endpoints)
        if found is None:
            found = self._transports[endpoints] = Transport(
                endpoints.target, self._signer, credentials=self._channel_credentials()
            )
        return found

    async def route(self, topic: str) -> Route:
        """The route of *topic*: from the cache, else from the server, once for all who ask at the same time."""
        found = self._routes.get(topic)
        if found is not None:
            return found
        self.require_running()
        fetching = self._fetching.get(topic)
        if fetching is None:
            fetching = self._fetching[topic] = self.spawn(self._prepare(topic))
            fetching.add_done_callback(lambda _: self._fetching.pop(topic, None))
        return await asyncio.shield(fetching)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Future[Any]:
        """Run *work* beside everything else; it is cancelled when the client closes."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _prepare(self, topic: str) -> Route:
        route = await self._fetch(topic)
        for endpoints in route.endpoints:
            stream = self._streams.get(endpoints)
            if stream is None:
                stream = self._streams[endpoints] = self._open_stream(endpoints)
            try:
                await stream.settled()
            except ClientError as error:
                self._streams.pop(endpoints, None)
                await stream.close()
                raise StartupError(
                    f"{endpoints} did not settle with this client about {topic}: {error}", code=error.code
                ) from error
        self._routes[topic] = route
        return route

    async def _fetch(self, topic: str) -> Route:
        request = v2.QueryRouteRequest(topic=self.resource(topic), endpoints=self.access_point.to_wire())
        transport = self.transport(self.access_point)
        try:
            response = await transport.call_checked("QueryRoute", request, self.options.request_timeout)
        except ClientError as error:
            text = f"the route of topic {topic} could not be had from {self.access_point}: {error}"
            raise type(error)(text, code=error.code, request_id=error.request_id) from error
        if not response.message_queues:
            raise ResourceNotFoundError(f"{self.access_point} knows no queue of topic {topic}", code=v2.NOT_FOUND)
        return Route(topic, tuple(map(read_queue, response.message_queues)))

    def _open_stream(self, endpoints: Endpoints) -> Stream:
        async def handle(command: v2.TelemetryCommand) -> v2.TelemetryCommand | None:
            return await self._handle(endpoints, command)

        return Stream(self.transport(endpoints), self._settings, handle, reopen=self.options.intervals.reopen)

    def _settings(self) -> v2.Settings:
        kind: Any = self.kind
        settings = v2.Settings(client_type=kind, access_point=self.access_point.to_wire())
        settings.request_timeout.FromMilliseconds(round(self.options.request_timeout * 1000))
        settings.user_agent.language, settings.user_agent.version = v2.PYTHON, __version__
        settings.user_agent.platform, settings.user_agent.hostname = OURS + platform.platform(), socket.gethostname()
        self.declare(settings)
        return settings

    async def _handle(self, endpoints: Endpoints, command: v2.TelemetryCommand) -> v2.TelemetryCommand | None:
        which = command.WhichOneof("command")
        if which == "settings":
            if is_offered(command.settings):
                self.batched.add(endpoints)
            else:
                self.batched.discard(endpoints)
            self.settle(command.settings)
            return None
        if which == "print_thread_stack_trace_command":
            return _answer(v2.OK, trace=command.print_thread_stack_trace_command.nonce)
        if which == "reconnect_endpoints_command":
            self._streams[endpoints].restart()
            return None
        return await self.on_command(endpoints, command)

    async def _refresh_routes(self) -> None:
        for topic in list(self._routes):
            self._routes[topic] = await self._fetch(topic)
        living = set().union(*(route.endpoints for route in self._routes.values()))
        for endpoints in [each for each in self._streams if each not in living]:
            await self._streams.pop(endpoints).close()
        for endpoints in living.difference(self._streams):
            self._streams[endpoints] = self._open_stream(endpoints)

    async def _send_heartbeats(self) -> None:
        await asyncio.gather(*map(self._send_heartbeat, list(self._streams)))

    async def _send_heartbeat(self, endpoints: Endpoints) -> None:
        kind: Any = self.kind
        request = v2.HeartbeatRequest(client_type=kind, group=self.group_resource())
        try:
            await self.transport(endpoints).call_checked("Heartbeat", request, self.options.request_timeout)
        except ClientError as error:
            _log.warning("the heartbeat of %s to %s failed: %s", self.id, endpoints, error)
        else:
            self.on_healthy(endpoints)

    async def _sync_settings(self) -> None:
        for stream in list(self._streams.values()):
            await stream.sync()

    async def _say_goodbye(self, endpoints: Endpoints) -> None:
        request = v2.NotifyClientTerminationRequest(group=self.group_resource())
        await self.transport(endpoints).call("NotifyClientTermination", request, 1.0)

    async def _repeat(self, first: float, pause: float, chore: Callable[[], Awaitable[None]]) -> None:
        await asyncio.sleep(first)
        while True:
            try:
                await chore()
            except ClientError as error:
                _log.warning("a chore of client %s failed and is tried again: %s", self.id, error)
            except Exception:
                _log.exception("a chore of client %s failed and is tried again", self.id)
            await asyncio.sleep(pause)

    def _channel_credentials(self) -> Any:
        tls = self.options.tls
        if tls is None:
            return None
        import grpc

        return grpc.ssl_channel_credentials(tls.ca, tls.key, tls.certificate)


def _answer(code: int, *, trace: str = "", verify: str = "") -> v2.TelemetryCommand:
    """An answer to a command, by its nonce: the stacks of all threads, or that a message was not verified."""
    kind: Any = code
    answer = v2.TelemetryCommand(status=v2.Status(code=kind))
    if verify:
        answer.verify_message_result.nonce = verify
        return answer
    answer.thread_stack_trace.nonce = trace
    stacks = ("".join(traceback.format_stack(frame)) for frame in sys._current_frames().values())
    answer.thread_stack_trace.thread_stack_trace = "\n".join(stacks)
    return answer
