"""``millstream ingest``: messages from other systems into a log."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, get_args

import click

from millstream.cli.command_group import SummaryGroup
from millstream.cli.common import json_option, log_options, own_settings, store_options
from millstream.cli.examples import example
from millstream.cli.ingest_status import IngestStatusPrinter
from millstream.cli.log_owners import claim_logs
from millstream.cli.log_sources import MqttIngestRunner
from millstream.cli.parameter_types import Duration, Seconds, SizeType
from millstream.cli.stop_signals import stop_on_signals
from millstream.core.metric_collection.collector import MetricsCollector
from millstream.ingest.options import MOST_PAYLOAD, Protocol
from millstream.ingest.payload_parsers import PARSER_NAMES
from millstream.ingest.timestamps import Unit
from millstream.log import LogSpec, Writer
from millstream.node import Node
from millstream.settings import IngestRole, Settings

_log = logging.getLogger(__name__)


@click.group(cls=SummaryGroup)
def ingest() -> None:
    """Ingest messages from other systems, durably."""


@example("millstream ingest mqtt mqtt://127.0.0.1:1883 --topic 'sensors/#' --log weather")
@ingest.command()
@click.argument("url", metavar="URL")
@click.option(
    "--topic",
    "topics",
    multiple=True,
    required=True,
    metavar="FILTER",
    help="Topic filter to subscribe to, such as sensors/#; repeatable.",
)
@click.option("--log", "log", metavar="LOG", required=True, help="Log of the records; created if missing.")
@click.option("--rejects", metavar="LOG", default="", help="Log of invalid messages (default: LOG.rejects).")
@click.option("--batches", metavar="LOG", help="Also batch LOG into this log, by the rules in the settings.")
@click.option("--qos", type=click.IntRange(0, 2), default=1, show_default=True, help="Quality of service: 0, 1 or 2.")
@click.option("--protocol", type=click.Choice(get_args(Protocol)), default="5", show_default=True, help="MQTT version.")
@click.option("--client-id", default="", help="Unique client id at the broker (default: generated once and kept).")
@click.option(
    "--in-flight",
    type=int,
    default=1000,
    show_default=True,
    help="MQTT 5: maximum unacknowledged messages, 1 to 65535.",
)
@click.option(
    "--max-payload",
    type=SizeType(1, MOST_PAYLOAD),
    default="1MiB",
    show_default=True,
    help="MQTT 5: maximum size of a payload.",
)
@click.option(
    "--expiry",
    type=Duration(),
    default="7d",
    show_default=True,
    help="MQTT 5: time for which the broker keeps the session, and its messages, after the connection ends.",
)
@click.option(
    "--retained/--no-retained", default=True, show_default=True, help="Also ingest the broker's retained messages."
)
@click.option(
    "--shape", type=click.Choice(PARSER_NAMES), default="auto", show_default=True, help="Format of the payloads."
)
@click.option("--source", default="topic/:-1", show_default=True, help="For json: location of the source.")
@click.option("--key", default="topic/-1", show_default=True, help="For json: location of the key.")
@click.option("--time", "time", default="$.time", show_default=True, help="For json: location of the time.")
@click.option(
    "--unit", type=click.Choice(get_args(Unit)), default="s", show_default=True, help="For json: unit of numeric times."
)
@click.option("--value", default="$", show_default=True, help="For json: location of the body.")
@click.option(
    "--status", "every", type=Seconds(), default="10s", show_default=True, help="Interval between status lines."
)
@json_option
@store_options
@log_options
def mqtt(
    settings: Settings, *, url: str, log: str, batches: str | None, every: float, as_json: bool, **wanted: Any,
) -> None:  # fmt: skip
    """Store the messages of the MQTT broker at URL in a log; a message is acknowledged after it is durable.

    URL is mqtt://user:password@host:1883 or mqtts://host:8883?tls_ca=/path; ?password_file=/path reads the password
    from a file. With QoS 2 every message that the broker accepts is stored exactly once, with QoS 1 at least once (a
    repeated one is rejected as a duplicate when it is batched), with QoS 0 some may be lost. While this command is not
    running, the broker keeps messages until the session expires.

    --shape: thin-edge (te/… and tedge/measurements topics; one record per measurement), json (one record per message),
    raw (unchanged payloads), auto (thin-edge on its topics, else json). For json, the location of a field is topic
    (the whole topic), topic/2 (its second level), topic/-1 (its last level), topic/:-1 (all levels but the last), $
    (the payload), or $.member.of.member (a member of the payload). The time must be a member, and the body the payload
    or a member. Times are ISO 8601 with a zone or numbers since the epoch; a record without one gets the time at which
    it is stored. Invalid messages go to the log of rejects, with the reason. SIGTERM or Ctrl-C stops the command after
    the messages that it received are stored.
    """
    role = IngestRole(url, **wanted)
    taking, figures, stop = MqttIngestRunner(log, role), MetricsCollector(), stop_on_signals()
    with contextlib.ExitStack() as stack:
        node = stack.enter_context(Node.open(settings, create=True))
        node.logs.store.log(LogSpec(log))
        claim_logs(node, own_settings(), log, *filter(None, [batches]))
        records, run = stack.enter_context(taking.opened(node, figures, _log.info))
        status = IngestStatusPrinter(node.logs.store.log(LogSpec(log)), figures, node.clock, every, as_json=as_json)
        with _batching(node, log, batches, records, figures) as failed:
            run(lambda: _look(status) or stop() or failed())
        status.show()


def _look(status: IngestStatusPrinter) -> bool:
    status.show_when_due()
    return False


@contextlib.contextmanager
def _batching(
    node: Node, log: str, batches: str | None, records: Writer, figures: MetricsCollector
) -> Iterator[Callable[[], bool]]:
    """Batch *log* into *batches* in a separate thread, unless *batches* is None; yields whether it has ended.

    *records* appends its ticks. At the end of the block all stored messages are batched.
    """
    if batches is None:
        yield lambda: False
        return
    from millstream.batching.ticks import writer_ticker

    service = node.batching.service(log, batches, ticks=writer_ticker(records), metrics=figures)
    ended = False
    with ThreadPoolExecutor(1, "batching") as pool:
        running: Future[None] = pool.submit(service.run, lambda: ended)
        try:
            yield running.done
        finally:
            ended = True
        running.result()
    service.step()
