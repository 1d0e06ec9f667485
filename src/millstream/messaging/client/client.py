"""The common base of producers and consumers: routes, settings, heartbeats, and connections to servers."""

from __future__ import annotations

import abc
import asyncio
import functools
import itertools
import logging
import platform
import socket
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from types import TracebackType
from typing import Any, ClassVar, Self

from millstream import __version__
from millstream.core.clock import Clock, SystemClock
from millstream.core.process_id import process_id
from millstream.messaging.client.command_answers import stack_trace_answer, verification_answer
from millstream.messaging.client.endpoints import Endpoints, parse_endpoints
from millstream.messaging.client.errors import (
    ClientError,
    ForkedError,
    NotRunningError,
    ResourceNotFoundError,
    StartupError,
    UnsupportedError,
)
from millstream.messaging.client.message_ids import client_id
from millstream.messaging.client.metrics import ClientMetrics, ClientMetricsExporter, metrics_endpoints
from millstream.messaging.client.options import DEFAULTS, Options
from millstream.messaging.client.route import Route, read_queue
from millstream.messaging.client.route_table import RouteTable
from millstream.messaging.client.server_connections import ServerConnections
from millstream.messaging.client.signing import Signer
from millstream.messaging.client.telemetry_stream import TelemetryStream
from millstream.messaging.client.transport import Transport
from millstream.messaging.protocol import v2
from millstream.messaging.protocol.batch_calls import PLATFORM_PREFIX, is_millstream_broker, offers_batches

_log = logging.getLogger(__name__)
_numbers = itertools.count()

SETTLING = 3.0
"""Seconds that a server may take for its settings, beside the time of a request."""


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
        self.access_point = parse_endpoints(endpoints)
        self.id = client_id(next(_numbers), self.clock)
        self.topics = set(topics)
        self._signer = Signer(self.id, self.clock, namespace=options.namespace, credentials=options.credentials)
        self._metrics_exporter: ClientMetricsExporter | None = None
        self._connections = ServerConnections(self._connect, self._open_stream, self.clock, self.id)
        self._routes = RouteTable(self._query_route, self._prepare, self.id)
        self._tasks: set[asyncio.Future[Any]] = set()
        self._heart: asyncio.Future[None] | None = None
        self._closing: asyncio.Future[None] | None = None
        self._is_running = False
        self._is_prepared = False
        self._is_looking = False
        self._process = 0
        self.batch_servers: set[Endpoints] = set()
        """Servers that give many messages in one answer."""
        self.millstream_servers: set[Endpoints] = set()
        """Servers that are Millstream's, of any version."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        """Fetch the route of every declared topic and settle with its servers; to start again does nothing.

        Raises :class:`StartupError`, or the server's own error, naming topic and endpoint; the client is closed then.
        """
        if self._is_running:
            return
        self._is_running, self._process = True, process_id()
        self._metrics_exporter = self._new_metering()
        try:
            async with asyncio.timeout(self.options.startup_timeout):
                for topic in sorted(self.topics):
                    await self.route(topic)
                await self.on_start()
        except TimeoutError as error:
            await self.close()
            raise StartupError(
                f"{self.access_point} did not return routes and settings for "
                f"{', '.join(sorted(self.topics))} within {self.options.startup_timeout:g} seconds: "
                "check the address and that the server runs"
            ) from error
        except BaseException:
            await self.close()
            raise
        self._is_prepared = True
        every = self.options.intervals
        self._heart = asyncio.ensure_future(self._repeat(every.first_heartbeat, every.heartbeat, self._send_heartbeats))
        self.spawn(self._repeat(every.first_route, every.route, self._refresh_routes))
        self.spawn(self._repeat(every.settings, every.settings, self.sync_settings))
        self.spawn(self._repeat(every.sweep, every.sweep, self._sweep))

    async def close(self) -> None:
        """End everything in order, and tell the servers. Closing again does nothing, nor does it in a forked process.

        A caller that is cancelled while waiting does not stop it.
        """
        if self._process != process_id():
            return
        if self._closing is None and self._is_running:
            self._closing = asyncio.ensure_future(self._close())
        if self._closing is not None:
            await asyncio.shield(self._closing)

    async def _close(self) -> None:
        try:
            for task in list(self._tasks):
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self.on_close()  # heartbeats continue: messages that are being handled are kept for this client
        finally:
            self._is_running = self._is_prepared = False
            await self._disconnect()
            self._closing = None

    async def _disconnect(self) -> None:
        ending = [*self._tasks, *self._routes.fetching, *([] if self._heart is None else [self._heart])]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        await asyncio.gather(*map(self._say_goodbye, self._connections.with_streams), return_exceptions=True)
        await self._connections.close()
        self._routes.clear()
        self.batch_servers.clear()
        self.millstream_servers.clear()
        if self._metrics_exporter is not None:
            await self._metrics_exporter.close()

    # What kinds of clients do differently

    async def on_start(self) -> None:  # noqa: B027 - most clients have nothing to do here
        """Do what else a start needs."""

    async def on_routes(self) -> None:  # noqa: B027
        """Routes are requested again because a server did not answer."""

    async def on_close(self) -> None:  # noqa: B027
        """Finish what is under way."""

    @abc.abstractmethod
    def declare(self, settings: v2.Settings) -> None:
        """Add to *settings* what this client declares."""

    @abc.abstractmethod
    def apply_settings(self, settings: v2.Settings) -> None:
        """Keep to what a server answered."""

    def group_resource(self) -> v2.Resource | None:
        """The consumer group; None for a producer."""
        return None

    def cached(self) -> Mapping[str, tuple[int, int]]:
        """How many messages and bytes of each topic wait for a listener."""
        return {}

    def on_healthy(self, endpoints: Endpoints) -> None:  # noqa: B027
        """A heartbeat was answered."""

    async def on_command(self, endpoints: Endpoints, command: v2.TelemetryCommand) -> v2.TelemetryCommand | None:
        """Do what else a server asks for; the answer, if there is one."""
        if command.HasField("verify_message_command"):
            return verification_answer(command.verify_message_command.nonce, v2.NOT_IMPLEMENTED)
        _log.info("%s asks for what this client does not do: %s", endpoints, command.WhichOneof("command"))
        return None

    # What they share

    @property
    def metrics(self) -> ClientMetrics | None:
        """The metrics of the client, if any."""
        return None if self._metrics_exporter is None else self._metrics_exporter.metrics

    def require_running(self) -> None:
        """Raise :class:`NotRunningError` before the start and from the end on, also in a process forked since."""
        if not self._is_running or self._closing is not None:
            raise NotRunningError
        if self._process != process_id():
            raise ForkedError

    def resource(self, name: str) -> v2.Resource:
        """*name* in the client's namespace."""
        return v2.Resource(resource_namespace=self.options.namespace, name=name)

    def transport(self, endpoints: Endpoints) -> Transport:
        """The connection to *endpoints*."""
        return self._connections.transport(endpoints)

    async def route(self, topic: str) -> Route:
        """The route of *topic*: from the cache, else from the server."""
        found = self._routes.get(topic)
        if found is not None:
            return found
        return await self.fetch_route(topic)

    async def fetch_route(self, topic: str) -> Route:
        """The route of *topic* from the server, once for all who ask at the same time."""
        if not self._is_running:
            raise NotRunningError
        return await self._routes.fetch(topic)

    def route_endpoints(self, topic: str) -> Collection[Endpoints]:
        """The servers that have *topic*, as far as is known."""
        found = self._routes.get(topic)
        return () if found is None else found.endpoints

    def server_of(self, topic: str, former: Endpoints) -> Endpoints:
        """The server at which a message of *topic* is settled: *former*, its server so far, or the present server of
        the topic."""
        servers = self.route_endpoints(topic)
        return next(iter(servers)) if len(servers) == 1 else former

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Future[Any]:
        """Run *work* beside everything else; it is cancelled when the client closes."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _prepare(self, route: Route) -> None:
        """Settle with the servers of *route*."""
        for endpoints in route.endpoints:
            if self._is_prepared:
                await self._connections.sync([endpoints])  # its stream was opened before the topic was declared
            limit = self.options.request_timeout + SETTLING
            await self._connections.settle(endpoints, route.topic, seconds=limit)

    async def _query_route(self, topic: str) -> Route:
        request = v2.QueryRouteRequest(topic=self.resource(topic), endpoints=self.access_point.to_wire())
        transport = self.transport(self.access_point)
        try:
            response = await transport.call_checked("QueryRoute", request, self.options.request_timeout)
        except ClientError as error:
            text = f"the route of topic {topic} could not be fetched from {self.access_point}: {error}"
            raise type(error)(text, code=error.code, request_id=error.request_id) from error
        if not response.message_queues:
            raise ResourceNotFoundError(
                f"{self.access_point} has no queue of topic {topic}: check the topic name", code=v2.NOT_FOUND
            )
        return Route(topic, tuple(map(read_queue, response.message_queues)))

    def _connect(self, endpoints: Endpoints) -> Transport:
        unavailable = functools.partial(self._look_for_owner, endpoints)
        tls = self.options.tls
        targets = endpoints.targets(encrypted=tls is not None)
        return Transport(targets, self._signer, tls=tls, unavailable=unavailable)

    def _open_stream(self, endpoints: Endpoints) -> TelemetryStream:
        async def handle(command: v2.TelemetryCommand) -> v2.TelemetryCommand | None:
            return await self._handle(endpoints, command)

        return TelemetryStream(self.transport(endpoints), self._settings, handle, reopen=self.options.intervals.reopen)

    def _new_metering(self) -> ClientMetricsExporter:
        group = self.group_resource()
        return ClientMetricsExporter(
            self.id,
            "" if group is None else group.name,
            self.cached,
            provider=self.options.meter_provider,
            signer=self._signer,
            tls=self.options.tls,
        )

    def _settings(self) -> v2.Settings:
        kind: Any = self.kind
        settings = v2.Settings(client_type=kind, access_point=self.access_point.to_wire())
        settings.request_timeout.FromMilliseconds(round(self.options.request_timeout * 1000))
        settings.user_agent.language, settings.user_agent.version = v2.PYTHON, __version__
        settings.user_agent.platform, settings.user_agent.hostname = (
            PLATFORM_PREFIX + platform.platform(),
            socket.gethostname(),
        )
        self.declare(settings)
        return settings

    async def _handle(self, endpoints: Endpoints, command: v2.TelemetryCommand) -> v2.TelemetryCommand | None:
        which = command.WhichOneof("command")
        if which == "settings":
            self._keep_settings(endpoints, command.settings)
            return None
        if which == "print_thread_stack_trace_command":
            return stack_trace_answer(command.print_thread_stack_trace_command.nonce)
        if which == "reconnect_endpoints_command":
            self._connections.reconnect(endpoints)
            return None
        return await self.on_command(endpoints, command)

    def _keep_settings(self, endpoints: Endpoints, settings: v2.Settings) -> None:
        mine, theirs = self._settings().WhichOneof("pub_sub"), settings.WhichOneof("pub_sub")
        if mine != theirs:
            raise UnsupportedError(
                f"{endpoints} sent settings for {theirs}, but this client needs settings for {mine}: check the "
                "address and the version of the broker"
            )
        _note(self.batch_servers, endpoints, holds=offers_batches(settings))
        _note(self.millstream_servers, endpoints, holds=is_millstream_broker(settings))
        if self._metrics_exporter is not None:
            self._metrics_exporter.export_to(metrics_endpoints(settings))
        self.apply_settings(settings)

    def _look_for_owner(self, endpoints: Endpoints) -> None:
        """Request routes again if a route names *endpoints*, which did not answer: the topic may have another server
        now."""
        if self._is_prepared and not self._is_looking and endpoints in self._routes.endpoints:
            self._is_looking = True
            self.spawn(self._look())

    async def _look(self) -> None:
        try:
            await self._follow_topics()
            await asyncio.sleep(self.options.intervals.retry)
        finally:
            self._is_looking = False

    async def _follow_topics(self) -> None:
        try:
            await self._refresh_routes()
            await self.on_routes()
        except ClientError as error:  # the next call that no server answers asks again
            _log.warning("client %s cannot update the routes of its topics: %s", self.id, error)

    async def _refresh_routes(self) -> None:
        await self._routes.refresh()
        await self._connections.keep_streams(self._routes.endpoints)

    async def _sweep(self) -> None:
        """Close the connections that no client has used for long, to servers that no route names."""
        needed = {self.access_point, *self._routes.endpoints}
        await self._connections.close_idle(self.options.intervals.idle, needed)

    async def _send_heartbeats(self) -> None:
        await asyncio.gather(*map(self._send_heartbeat, self._connections.with_streams))

    async def _send_heartbeat(self, endpoints: Endpoints) -> None:
        kind: Any = self.kind
        request = v2.HeartbeatRequest(client_type=kind, group=self.group_resource())
        try:
            await self.transport(endpoints).call_checked("Heartbeat", request, self.options.request_timeout)
        except ClientError as error:
            _log.warning("the heartbeat of %s to %s failed: %s", self.id, endpoints, error)
            self._connections.heartbeat_failed(endpoints, error)
        else:
            self._connections.heartbeat_succeeded(endpoints)
            self.on_healthy(endpoints)

    async def sync_settings(self) -> None:
        """Send the settings to every server."""
        await self._connections.sync()

    async def _say_goodbye(self, endpoints: Endpoints) -> None:
        request = v2.NotifyClientTerminationRequest(group=self.group_resource())
        await self.transport(endpoints).call("NotifyClientTermination", request, 1.0)

    async def _repeat(self, first: float, pause: float, chore: Callable[[], Awaitable[None]]) -> None:
        await asyncio.sleep(first)
        while True:
            try:
                await chore()
            except ClientError as error:
                _log.warning("a periodic task of client %s failed, and is repeated: %s", self.id, error)
            except Exception:
                _log.exception("a chore of client %s failed and is tried again", self.id)
            await asyncio.sleep(pause)


def _note(servers: set[Endpoints], endpoints: Endpoints, *, holds: bool) -> None:
    """Have *endpoints* in *servers* if that *holds*, else not."""
    if holds:
        servers.add(endpoints)
    else:
        servers.discard(endpoints)
