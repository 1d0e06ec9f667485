"""``millstream ingest``: what comes from elsewhere, into a log."""

from __future__ import annotations

import contextlib
import importlib.util
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal, get_args

import click

from millstream.cli.common import json_option, store_options
from millstream.cli.ingest_status import IngestStatusLine
from millstream.cli.stopping import stop_on_signals
from millstream.core.amounts import Duration, parse_duration
from millstream.core.collector import Collector
from millstream.core.errors import InputError
from millstream.ingest.moments import Unit
from millstream.ingest.options import Protocol, SubscribeOptions
from millstream.ingest.place import BrokerPlace, parse_broker
from millstream.ingest.plain_json import PlainJson
from millstream.ingest.receipts import Receipts
from millstream.ingest.selectors import parse_selector
from millstream.ingest.shapes import SHAPES, Shape, shape_named
from millstream.log import LogSpec, Writer
from millstream.node import Node
from millstream.settings import Settings


class _DurationType(click.ParamType[Any]):
    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Duration:
        try:
            return parse_duration(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.group()
def ingest() -> None:
    """Take in messages from elsewhere, durably."""


@ingest.command()
@click.argument("url", metavar="URL")
@click.option(
    "--topic", "topics", multiple=True, required=True, metavar="FILTER", help="What to subscribe to (repeat)."
)
@click.option("--log", "log", metavar="LOG", required=True, help="The log that gets the records (made where absent).")
@click.option("--rejects", metavar="LOG", help="The log of what is no record (default: LOG.rejects).")
@click.option("--batches", metavar="LOG", help="Batch LOG into this one as well, by the rules in the settings.")
@click.option("--qos", type=click.IntRange(0, 2), default=1, show_default=True, help="0, 1 or 2: see below.")
@click.option("--protocol", type=click.Choice(get_args(Protocol)), default="5", show_default=True, help="MQTT version.")
@click.option("--client-id", default="", help="Our name at the broker, ours alone (default: made up once and kept).")
@click.option("--in-flight", type=int, default=1000, show_default=True, help="Most unacknowledged messages (MQTT 5).")
@click.option("--max-payload", type=click.IntRange(1, 64 << 20), default=1 << 20, show_default=True, help="Most bytes.")
@click.option("--expiry", type=_DurationType(), default="7d", show_default=True, help="How long the session is kept.")
@click.option("--retained/--no-retained", default=True, show_default=True, help="Take what the broker has retained.")
@click.option("--shape", type=click.Choice(SHAPES), default="auto", show_default=True, help="What payloads look like.")
@click.option("--source", default="topic/:-1", show_default=True, help="Plain JSON: where the source is.")
@click.option("--key", default="topic/-1", show_default=True, help="Plain JSON: where the key is.")
@click.option("--time", "time", default="$.time", show_default=True, help="Plain JSON: where the time is.")
@click.option("--unit", type=click.Choice(get_args(Unit)), default="s", show_default=True, help="Of times as counts.")
@click.option("--value", default="$", show_default=True, help="Plain JSON: what becomes the body.")
@click.option("--status", "every", type=float, default=10.0, show_default=True, help="Seconds between status lines.")
@json_option
@store_options
def mqtt(
    settings: Settings, *, url: str, log: str, rejects: str | None, batches: str | None, client_id: str, shape: str,
    source: str, key: str, time: str, unit: Unit, value: str, every: float, as_json: bool, **wanted: Any,
) -> None:  # fmt: skip
    """Take the messages of the MQTT broker at URL into a log; a message is acknowledged once it is on the disk.

    URL is mqtt://user:password@host:1883 or mqtts://host:8883?tls_ca=/path; ?password_file=/path keeps the password out
    of sight. With QoS 2 every message that the broker accepts is stored exactly once, with QoS 1 at least once (a
    repeated one is refused as a duplicate when it is batched), with QoS 0 some may be lost. The broker keeps messages
    while this command is not running, as long as the session does.

    Shapes: thin-edge (te/… and tedge/measurements topics; one record a measurement), json (one record a message), raw
    (payloads as they are), auto (thin-edge on its topics, else json). Places: topic, topic/2, topic/-1, topic/:-1, $,
    $.member.of.member. Times are ISO 8601 with a zone or counts since the epoch; without one, a record happened when it
    was stored. What is no record goes to the log of rejects, with the reason. SIGTERM or Ctrl-C ends it in order.
    """
    places = map(parse_selector, (source, key, time, value))
    plain = PlainJson(next(places), next(places), next(places), next(places), unit)
    options = _options(**wanted)
    place = parse_broker(url)
    stop = stop_on_signals()
    with Node.open(settings, create=True) as node:
        figures = Collector()
        work = _Work(node, log, rejects or f"{log}.rejects", batches, figures)
        status = IngestStatusLine(work.log, figures, node.clock, every, as_json=as_json)
        work.run(place, options, shape_named(shape, plain), client_id, _watching(stop, status))
        status.show()


def _options(*, topics: tuple[str, ...], qos: Literal[0, 1, 2], expiry: Duration, **others: Any) -> SubscribeOptions:
    return SubscribeOptions(topics, qos, expiry=expiry // 1_000_000, **others)


def _watching(stop: Callable[[], bool], status: IngestStatusLine) -> Callable[[], bool]:
    def stopped() -> bool:
        status.show_when_due()
        return stop()

    return stopped


class _Work:
    """The logs of one ingest, and what runs on them."""

    def __init__(self, node: Node, log: str, rejects: str, batches: str | None, figures: Collector) -> None:
        self.node, self.batches, self.figures = node, batches, figures
        self.log = node.store.log(LogSpec(log))
        self.rejects = node.store.log(LogSpec(rejects))

    def run(
        self, place: BrokerPlace, options: SubscribeOptions, shape: Shape, client: str, stopped: Callable[[], bool]
    ) -> None:
        """Ingest until *stopped* says so, and batch meanwhile if that was asked for."""
        require_paho()
        from millstream.ingest.connection import Connection
        from millstream.ingest.loop import MqttIngest

        path = self.node.folder / "ingest" / f"{self.log.name}.json"
        with self.log.writer() as records, self.rejects.writer() as rejects:
            receipts = Receipts(path, [self.log, self.rejects], client=client, make_name=_made_up_name)
            connection = Connection(place, receipts.client, options, self.node.clock)
            loop = MqttIngest(
                connection, receipts, options, shape=shape, records=records, rejects=rejects,
                clock=self.node.clock, metrics=self.figures, say=lambda text: click.echo(text, err=True),
            )  # fmt: skip
            with self._batching(records) as failed:
                loop.run(lambda: stopped() or failed())

    @contextlib.contextmanager
    def _batching(self, records: Writer) -> Iterator[Callable[[], bool]]:
        """Batch in a thread of its own, through ticks by *records*; yields whether it has failed.

        On the way out what was stored is batched to its end.
        """
        if self.batches is None:
            yield lambda: False
            return
        from millstream.batching.ticks import ticks_by

        service = self.node.batch_service(self.log.name, self.batches, ticks=ticks_by(records), metrics=self.figures)
        ended = False
        with ThreadPoolExecutor(1, "batching") as pool:
            running: Future[None] = pool.submit(service.run, lambda: ended)
            try:
                yield running.done
            finally:
                ended = True
            running.result()
        service.step()


def require_paho() -> None:
    """Raise :class:`InputError` that names the extra where the MQTT client is not installed."""
    if importlib.util.find_spec("paho") is None:
        raise InputError("the MQTT client is not installed: pip install 'millstream[mqtt]'")


def _made_up_name() -> str:
    return f"millstream-{secrets.token_hex(6)}"
