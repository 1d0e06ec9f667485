"""Sources of a node's logs, as commands and ``millstream serve`` run them: MQTT brokers and outboxes."""

from __future__ import annotations

import contextlib
import importlib.util
import secrets
from collections.abc import Callable, Iterator

from millstream.core.clock import MICROSECONDS
from millstream.core.errors import InputError
from millstream.core.metric_collection.hook import LabelledMetrics, Metrics
from millstream.ingest.broker_url import parse_broker
from millstream.ingest.options import MOST_PAYLOAD, SubscribeOptions
from millstream.ingest.payload_parsers import payload_parser
from millstream.ingest.plain_json import plain_json
from millstream.ingest.receipts import Receipts
from millstream.log import LogSpec, Writer
from millstream.log.relay import BatchLimits, Outbox, OutboxTable, Relay, RelayResult, open_outbox_database
from millstream.node import Node
from millstream.settings import IngestRole, RelayRole

Say = Callable[[str], None]
Stopped = Callable[[], bool]


class MqttIngestRunner:
    """Takes the messages of the MQTT broker that *role* names into the log *name*.

    Raises :class:`~millstream.ingest.IngestInputError` where the role cannot be played as it is written, and
    :class:`InputError` where the MQTT client is not installed.
    """

    def __init__(self, name: str, role: IngestRole) -> None:
        self.name, self._role = name, role
        self._place = parse_broker(role.url)
        self._options = SubscribeOptions(
            topics=role.topics,
            qos=role.qos,
            protocol=role.protocol,
            in_flight=role.in_flight,
            max_payload=min(role.max_payload, MOST_PAYLOAD),  # settings had no limit
            expiry=role.expiry // MICROSECONDS,
            retained=role.retained,
        )
        plain = plain_json(source=role.source, key=role.key, time=role.time, value=role.value, unit=role.unit)
        self._shape = payload_parser(role.shape, plain)

    @contextlib.contextmanager
    def opened(self, node: Node, figures: Metrics, say: Say) -> Iterator[tuple[Writer, Callable[[Stopped], None]]]:
        """The writer of the log of *node*, and what takes messages in until it is told to stop, for the length of the
        block. *figures* and *say* get what there is to count and to tell. Raises the errors of the log.
        """
        require_paho()
        from millstream.ingest.connection import MqttConnection
        from millstream.ingest.loop import MqttIngest

        log, aside = node.logs.store.log(LogSpec(self.name)), node.logs.store.log(LogSpec(self.rejects))
        with log.writer() as records, aside.writer() as rejects:
            session = node.databases.documents.document(f"ingest/{self.name}.json")
            receipts = Receipts(session, [log, aside], client=self._role.client_id, make_name=_made_up_name)
            loop = MqttIngest(
                MqttConnection(self._place, receipts.client, self._options, node.clock), receipts, self._options,
                shape=self._shape, records=records, rejects=rejects, clock=node.clock, metrics=figures, say=say,
            )  # fmt: skip
            yield records, loop.run

    @property
    def rejects(self) -> str:
        """The log of invalid messages."""
        return self._role.rejects or f"{self.name}.rejects"


@contextlib.contextmanager
def opened_relay(name: str, role: RelayRole, node: Node, stopped: Stopped) -> Iterator[Relay]:
    """The relay of the outbox that *role* names into the log *name* of *node*, its database open for the block.

    Raises the errors of the log: an outbox, or its database, that cannot be used is one.
    """
    columns = {name: getattr(role, name) for name in OutboxTable.__struct_fields__ if name != "name"}
    table = OutboxTable(name=role.table, **columns)
    with contextlib.closing(open_outbox_database(role.url, node.clock)) as database:
        target = f"{name} in {node.logs.store.url}"
        outbox = Outbox(database, table, target, bad=role.bad, limits=BatchLimits(role.rows, role.bytes))
        metrics = LabelledMetrics(node.metrics, log=name)
        yield Relay(outbox, node.logs.store.log(LogSpec(name)), node.clock, stopped, metrics)


def run_relay(relay: Relay, role: RelayRole) -> RelayResult:
    """Let *relay* move rows until it is stopped; returns what it did."""
    for _ in relay.follow(longest_pause=role.poll / MICROSECONDS, standby=role.standby):
        pass
    return relay.relayed


def require_paho() -> None:
    """Raise :class:`InputError` that names the extra where the MQTT client is not installed."""
    if importlib.util.find_spec("paho") is None:
        raise InputError("MQTT needs paho-mqtt, which is not installed: run pip install 'millstream[mqtt]'")


def _made_up_name() -> str:
    return f"millstream-{secrets.token_hex(6)}"
