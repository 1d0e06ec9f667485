"""``millstream serve``: a node in the foreground: its broker, and its console."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import click
import msgspec

from millstream.cli.common import log_options, own_settings, setting_origins, store_options
from millstream.cli.examples import example
from millstream.core.errors import InputError, MillstreamError
from millstream.core.settings import seconds
from millstream.settings import Settings
from millstream.settings.console import DEFAULT_ADDRESS

if TYPE_CHECKING:
    from millstream.cli.serve_roles import ServeRoles
    from millstream.core.address import Address
    from millstream.messaging.broker.server.broker_server import BrokerServer
    from millstream.messaging.broker.server.rpc import RecordChange
    from millstream.messaging.broker.server.shared_broker import SharedBroker
    from millstream.node import Node
    from millstream.rest.broker_link import BrokerLink


_Places: TypeAlias = "tuple[Address, Address | None]"
"""The broker's address, and its address with TLS, if any."""

_log = logging.getLogger(__name__)
_ALARMS_EVERY = 20.0
"""Seconds between two reads of the verdict, which this process has in memory."""

_RELEASE_SECONDS = 30.0
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class MissingConsoleError(InputError):
    """The console needs more packages: pip install 'millstream[serve]'."""


class MissingRegistryError(InputError):
    """The setting serve.registry_http needs more packages: pip install 'millstream[serve,sidetree]'."""


class NothingToServeError(InputError):
    """Both the broker and the console are switched off: omit --no-broker or --no-console."""


@example("millstream serve --console 127.0.0.1:8460 --no-broker")
@click.command()
@click.option(
    "--broker", metavar="HOST:PORT", default="127.0.0.1:8081", show_default=True, help="Address for RocketMQ clients."
)
@click.option("--no-broker", is_flag=True, help="Do not run the broker.")
@click.option(
    "--broker-tls",
    metavar="HOST:PORT",
    help="Address for clients with TLS (default: on loopback the next port, unless the settings have a certificate).",
)
@click.option("--no-broker-tls", is_flag=True, help="Disable TLS, unless the settings have a certificate.")
@click.option(
    "--console",
    metavar="HOST:PORT",
    help=f"Address of the console (default: the setting console.address, or {DEFAULT_ADDRESS}).",
)
@click.option("--no-console", is_flag=True, help="Do not run the console.")
@store_options
@log_options
def serve(
    settings: Settings,
    broker: str,
    no_broker: bool,
    broker_tls: str | None,
    no_broker_tls: bool,
    console: str | None,
    no_console: bool,
) -> None:
    """Run a node until it is interrupted: a broker for RocketMQ 5 clients of any language, and the web console.

    Prints one line for each when it is ready. Topics are logs of the node: create them with `millstream topic create`.
    Both listen on loopback unless told otherwise. Other addresses require access control: access keys or an authority
    of client certificates for the broker (section broker), users for the console (`millstream config user`). On
    loopback the broker has a second port with TLS, with a certificate that it creates itself (broker-tls.pem in the
    data folder). If the console's default port is in use, another one is chosen and printed. The node tiers and trims
    logs by the rules in the settings (log.rules) or stored with the logs.

    The settings (section serve) name further roles of this process: ingest from MQTT brokers and outboxes, batching
    logs and anchoring batches, workers in pools, looping producers, and the registry of identifiers over HTTP. Events
    are logged on standard error, as JSON if that is not a terminal.

    SIGTERM or Ctrl-C drains it: no new work is begun, running work is finished, finished batches are anchored. A second
    signal ends it at once, also without loss.
    """
    from millstream.cli.log_owners import claim_logs
    from millstream.core.event_loop import run_server
    from millstream.core.interpreter import share_heaps
    from millstream.node import Node

    share_heaps()
    if no_broker and no_console:
        raise NothingToServeError
    if broker_tls and (no_broker or no_broker_tls):
        raise click.UsageError("--broker-tls cannot be combined with --no-broker or --no-broker-tls: omit one")
    origins = setting_origins()
    if console is not None:
        origins["console.address"] = "flag"
        settings = msgspec.structs.replace(settings, console=msgspec.structs.replace(settings.console, address=console))
    with Node.open(settings, create=True) as node:
        places = None if no_broker else _places(node, broker, broker_tls, encrypts=not no_broker_tls)
        claim = functools.partial(claim_logs, node, own_settings(), *_logs_with_states(settings))
        run_server(_serve(node, places, origins, claim, with_console=not no_console, chosen=console is not None))
        _log.info("stopped")


def _logs_with_states(settings: Settings) -> Sequence[str]:
    """The logs of the roles whose states the node keeps."""
    serve = settings.serve
    return [*serve.ingest, *serve.batching, *serve.batching.values()]


def _places(node: Node, broker: str, broker_tls: str | None, *, encrypts: bool) -> _Places:
    """The broker's address, and its address with TLS: on loopback also if the settings have no certificate."""
    from millstream.core.address import Address, is_free, is_loopback, parse_address

    settings, place = node.settings, parse_address(broker)
    if broker_tls:
        return place, parse_address(broker_tls)
    if not encrypts or settings.broker.tls_certificate or not is_loopback(place):
        return place, None
    try:
        node.messaging.generated_tls(place)
    except MillstreamError as error:  # it was not requested
        _log.warning("the broker does not encrypt: %s", error)
        return place, None
    others = filter(None, (settings.console.address, settings.serve.registry_http))
    taken = {parse_address(address).port for address in others}
    usual = Address(place.host, place.port + 1 if 0 < place.port < 65_535 else 0)
    return place, usual if usual.port not in taken and is_free(usual) else Address(place.host, 0)


async def _serve(
    node: Node,
    places: _Places | None,
    origins: Mapping[str, str],
    claim: Callable[[], None],
    *,
    with_console: bool,
    chosen: bool,
) -> None:
    from millstream.cli.broker_role import BrokerRole
    from millstream.cli.serve_roles import ServeRoles
    from millstream.core.interpreter import collect_for_requests
    from millstream.rest.broker_link import BrokerLink

    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    _stop_on_signals(loop, stop)
    await asyncio.to_thread(node.databases.members.await_upgrade, stop.is_set)
    await asyncio.to_thread(claim)
    async with contextlib.AsyncExitStack() as stack:
        shared = await _shared_broker(stack, node, places)
        role = None if shared is None else BrokerRole(shared, loop)
        roles = ServeRoles(node, lambda: loop.call_soon_threadsafe(stop.set), broker=role)
        await stack.enter_async_context(_running(roles))
        link = None
        if shared is not None:
            link = BrokerLink(lambda: shared.supervisor, loop, node.messaging.ask_owner)
        elif places is not None:
            broker = await _own_broker(stack, node, places)
            roles.write_topics_by(broker.supervisor.writer_of)
            link = BrokerLink(lambda: broker.supervisor, loop)
        if node.settings.serve.registry_http:
            roles.listens("registry", await _serve_registry(stack, node))
        if with_console:
            address = await _serve_console(stack, node, link, origins, chosen=chosen)
            if address:
                roles.listens("console", address)
        collect_for_requests()
        await _release_memory_until(stop)
        _log.info("stopping: current work is finished first; a second signal aborts it")
        roles.stop()


async def _release_memory_until(stop: asyncio.Event) -> None:
    from millstream.core.interpreter import release_freed_memory

    while not stop.is_set():
        try:
            await asyncio.wait_for(stop.wait(), _RELEASE_SECONDS)
        except TimeoutError:
            await asyncio.to_thread(release_freed_memory)


async def _own_broker(stack: contextlib.AsyncExitStack, node: Node, places: _Places) -> BrokerServer:
    """The broker of a node that this process serves alone."""
    broker = await stack.enter_async_context(node.messaging.broker(*places, record=_recorder(node)))
    _say_ready(broker.places)
    return broker


async def _shared_broker(stack: contextlib.AsyncExitStack, node: Node, places: _Places | None) -> SharedBroker | None:
    """The broker of a node that other processes may serve as well: on standby until this one has the role."""
    if places is None or not node.databases.members.is_shared:
        return None
    broker = await stack.enter_async_context(node.messaging.shared_broker(*places, record=_recorder(node)))
    _say_ready(broker.places)
    return broker


def _recorder(node: Node) -> RecordChange:
    from millstream.cli.change_log import record_broker_change

    return functools.partial(record_broker_change, node)


def _say_ready(places: Sequence[Address]) -> None:
    encrypted = "".join(f" and with TLS on {place}" for place in places[1:])
    print(f"broker ready on {places[0]}{encrypted}", flush=True)


@contextlib.asynccontextmanager
async def _running(roles: ServeRoles) -> AsyncIterator[None]:
    """Run *roles* for the length of the block; their start and end may take a while."""
    await asyncio.to_thread(roles.__enter__)
    try:
        yield
    finally:
        await asyncio.to_thread(roles.__exit__)


def _stop_on_signals(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    def ask() -> None:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)  # a KeyboardInterrupt would wait for the threads of the roles
        stop.set()

    for number in _SIGNALS:
        loop.add_signal_handler(number, ask)


async def _serve_registry(stack: contextlib.AsyncExitStack, node: Node) -> str:
    """Serve the registry over HTTP; its URL."""
    try:
        from millstream.rest.registry_app import registry_app
        from millstream.rest.server import serving
    except ImportError as error:
        raise MissingRegistryError from error
    from millstream.core.address import Address, parse_address

    place = parse_address(node.settings.serve.registry_http)
    http = node.settings.http
    app = registry_app(node.registry.instance, database_timeout=seconds(http.database_timeout))
    port = await stack.enter_async_context(serving(app, place.host, place.port, http))
    url = f"http://{Address(place.host, port)}"
    print(f"registry ready on {url}", flush=True)
    return url


async def _serve_console(
    stack: contextlib.AsyncExitStack, node: Node, broker: BrokerLink | None, origins: Mapping[str, str], *, chosen: bool
) -> str:
    """Serve the console; its URL, empty if it is not installed."""
    try:
        from millstream.console.app import Console
        from millstream.rest.access_control import check_address
        from millstream.rest.app_context import AppContext
        from millstream.rest.server import PortError, serving
        from millstream.status.serving_node import announced
        from millstream.status.verdict.alarms import poller_alarms
    except ImportError as error:
        if chosen or broker is None:
            raise MissingConsoleError from error
        _log.warning("no console: %s", MissingConsoleError.__doc__)
        return ""
    from millstream.cli.mill.work import watching
    from millstream.core.address import parse_address

    address = node.settings.console.address
    place = parse_address(address)
    check_address(node.settings.console, place.host)
    app = await asyncio.to_thread(AppContext, node, origins=origins, broker=broker)
    console = Console(app)
    await stack.enter_async_context(console.running())
    http, end, behind_proxy = node.settings.http, console.end_streams, node.settings.console.secure
    serve_at = functools.partial(serving, console.asgi_app, place.host, end=end, behind_proxy=behind_proxy)
    try:
        port = await stack.enter_async_context(serve_at(place.port, http))
    except PortError:
        if chosen or address != DEFAULT_ADDRESS:
            raise
        port = await stack.enter_async_context(serve_at(0, http))
    if node.settings.mill.alarms.tells_somebody:
        monitor = node.mill.monitor(others=poller_alarms(app, app.poller), guards=False, every=_ALARMS_EVERY)
        stack.enter_context(watching(monitor, None))
    stack.enter_context(announced(node.folder, place.host.strip("[]"), port))
    host = f"[{place.host}]" if ":" in place.host else place.host
    url = f"http://{host}:{port}"
    print(f"console ready on {url}", flush=True)
    return url
