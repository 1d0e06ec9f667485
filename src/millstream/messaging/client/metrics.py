"""The metrics of clients, with the names and buckets of the official clients, through OpenTelemetry.

Where the application has a meter provider (``Options.meter_provider``) it is used. Else a server may ask in its
settings for metrics at an address; that needs ``millstream[telemetry]``. Without either nothing is measured.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from millstream.messaging.client.endpoints import Endpoints, from_wire
from millstream.messaging.client.options import Tls
from millstream.messaging.client.signing import Signer
from millstream.messaging.protocol import v2

METER: Final = "org.apache.rocketmq.message"
BUCKETS: Final[Mapping[str, tuple[float, ...]]] = {
    "rocketmq_send_cost_time": (1, 5, 10, 20, 50, 200, 500),
    "rocketmq_delivery_latency": (1, 5, 10, 20, 50, 200, 500),
    "rocketmq_await_time": (1, 5, 20, 100, 1000, 5000, 10000),
    "rocketmq_process_time": (1, 5, 10, 100, 1000, 10000, 60000),
}
"""Histograms and the bounds of their buckets, in milliseconds."""

EXPORT_SECONDS: Final = 60.0
EXPORT_TIMEOUT: Final = 5.0

Cached = Callable[[], Mapping[str, tuple[int, int]]]
"""How many messages and bytes of each topic wait for a listener."""

_log = logging.getLogger(__name__)


class ClientMetrics:
    """The instruments of one client, made from an OpenTelemetry meter *provider*; times are given in seconds."""

    def __init__(self, provider: Any, client_id: str, group: str, cached: Cached) -> None:
        meter = provider.get_meter(METER)
        self._histograms = {
            name: meter.create_histogram(name, unit="ms", explicit_bucket_boundaries_advisory=list(bounds))
            for name, bounds in BUCKETS.items()
        }
        self._labels = {"client_id": client_id, **({"consumer_group": group} if group else {})}
        self._cached = cached
        for name, index in (("rocketmq_consumer_cached_messages", 0), ("rocketmq_consumer_cached_bytes", 1)):
            if group:
                meter.create_observable_gauge(name, callbacks=[self._gauge(index)])

    def sent(self, topic: str, seconds: float, *, succeeded: bool) -> None:
        """An attempt to send took so long."""
        self._record("rocketmq_send_cost_time", topic, seconds, succeeded)

    def delivered(self, topic: str, seconds: float) -> None:
        """Messages were under way from the server for so long."""
        self._record("rocketmq_delivery_latency", topic, seconds)

    def awaited(self, topic: str, seconds: float) -> None:
        """A message waited for its listener for so long."""
        self._record("rocketmq_await_time", topic, seconds)

    def processed(self, topic: str, seconds: float, *, succeeded: bool) -> None:
        """A listener took so long."""
        self._record("rocketmq_process_time", topic, seconds, succeeded)

    def _record(self, name: str, topic: str, seconds: float, succeeded: bool | None = None) -> None:
        labels = {**self._labels, "topic": topic}
        if succeeded is not None:
            labels["invocation_status"] = "success" if succeeded else "failure"
        self._histograms[name].record(max(seconds, 0.0) * 1000, labels)

    def _gauge(self, index: int) -> Callable[[Any], Iterator[Any]]:
        def observe(_options: Any) -> Iterator[Any]:
            from opentelemetry.metrics import Observation

            for topic, found in self._cached().items():
                yield Observation(found[index], {**self._labels, "topic": topic})

        return observe


def metrics_endpoints(settings: v2.Settings) -> Endpoints | None:
    """Where *settings* want metrics; None where they do not."""
    wanted = settings.metric
    return from_wire(wanted.endpoints) if wanted.on and wanted.endpoints.addresses else None


class ClientMetricsExporter:
    """Switches the meters of one client on and off; ``metrics`` is None while they are off."""

    def __init__(self, client_id: str, group: str, cached: Cached, *, provider: Any, signer: Signer, tls: Tls | None):
        self._make: Callable[[Any], ClientMetrics] = lambda made: ClientMetrics(made, client_id, group, cached)
        self._given = provider is not None
        self._signer = signer
        self._tls = tls
        self._wanted: Endpoints | None = None
        self._provider: Any = None
        self._ending: set[asyncio.Future[None]] = set()
        self.metrics: ClientMetrics | None = self._make(provider) if self._given else None

    def export_to(self, wanted: Endpoints | None) -> None:
        """Measure for a server that asks for it; where it asks for the same as before, continue."""
        if self._given or wanted == self._wanted:
            return
        self._wanted = wanted
        self._stop()
        if wanted is None:
            return
        try:
            self._provider = self._exporting_to(wanted)
        except ImportError:
            _log.info("%s asks for metrics, which need more: pip install 'millstream[telemetry]'", wanted)
        else:
            self.metrics = self._make(self._provider)

    async def close(self) -> None:
        """Give up what is left to be exported after a last attempt."""
        self._stop()
        self._wanted = None
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _stop(self) -> None:
        provider, self._provider = self._provider, None
        if provider is not None:
            self.metrics = None
            ending = asyncio.ensure_future(asyncio.to_thread(provider.shutdown, EXPORT_TIMEOUT * 1000))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    def _exporting_to(self, endpoints: Endpoints) -> Any:
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

        exporter = OTLPMetricExporter(
            endpoint=endpoints.targets(encrypted=self._tls is not None)[0],
            insecure=self._tls is None,
            credentials=None if self._tls is None else self._tls.credentials(),
            headers=self._signer.headers(),
            timeout=EXPORT_TIMEOUT,
        )
        reader = PeriodicExportingMetricReader(exporter, EXPORT_SECONDS * 1000, EXPORT_TIMEOUT * 1000)
        return MeterProvider([reader], shutdown_on_exit=False)
