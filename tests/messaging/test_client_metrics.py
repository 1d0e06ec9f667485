"""What clients measure: names, buckets and labels of the official clients, and the switch in a server's settings."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import grpc
import msgspec
import pytest

pytest.importorskip("opentelemetry.sdk.metrics")

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from millstream.messaging.client import (
    ClientError,
    Intervals,
    Message,
    Options,
    Producer,
    PushConsumer,
    Received,
    ServerFailedError,
    SimpleConsumer,
)
from millstream.messaging.client.metrics import BUCKETS, METER, metrics_endpoints
from millstream.messaging.protocol import v2
from millstream.testing.brokers import BrokerProcess
from millstream.testing.scripted_server import ScriptedServer
from millstream.testing.waiting import until_async

INTERVALS = Intervals(first_heartbeat=60.0, reopen=0.05, retry=0.05)
PLAIN = Options(attempts=1, request_timeout=10.0, startup_timeout=30.0, intervals=INTERVALS)
EXPORT = "opentelemetry.proto.collector.metrics.v1.MetricsService"


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(90):
            await test()

    asyncio.run(limited())


class Watched:
    """Options with a meter provider, and what it has measured."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self.provider = MeterProvider([self._reader], shutdown_on_exit=False)
        self.options = msgspec.structs.replace(PLAIN, meter_provider=self.provider)

    def points(self) -> dict[str, list[Any]]:
        """The points of every metric by its name."""
        data = self._reader.get_metrics_data()
        if data is None:
            return {}
        scopes = [scope for resource in data.resource_metrics for scope in resource.scope_metrics]
        assert {scope.scope.name for scope in scopes} <= {METER}
        return {metric.name: list(metric.data.data_points) for scope in scopes for metric in scope.metrics}

    def statuses(self, name: str) -> dict[str, int]:
        """How often *name* was recorded with each status."""
        return {point.attributes["invocation_status"]: point.count for point in self.points().get(name, [])}


def test_sends_are_measured_by_their_outcome() -> None:
    async def test() -> None:
        watched = Watched()
        async with ScriptedServer() as server, Producer(server.place, ["t"], options=watched.options) as producer:
            assert watched.points() == {}
            await producer.send(Message("t", b"x"))
            await producer.send(Message("t", b"y"))
            server.script["SendMessage"].append(grpc.StatusCode.UNAVAILABLE)
            refused = v2.SendMessageResponse(status=v2.Status(code=v2.INTERNAL_SERVER_ERROR))
            server.script["SendMessage"].append(refused)
            for _ in range(2):
                with pytest.raises(ClientError):
                    await producer.send(Message("t", b"z"))
            assert watched.statuses("rocketmq_send_cost_time") == {"success": 2, "failure": 2}
            (point, _) = watched.points()["rocketmq_send_cost_time"]
            assert set(point.attributes) == {"topic", "client_id", "invocation_status"}
            assert (point.attributes["topic"], point.attributes["client_id"]) == ("t", producer.id)
            assert tuple(point.explicit_bounds) == BUCKETS["rocketmq_send_cost_time"] == (1, 5, 10, 20, 50, 200, 500)
            assert 0 < point.sum < 10_000  # milliseconds

    run(test)


def test_deliveries_waits_and_listeners_are_measured_and_an_empty_receive_is_not() -> None:
    go_on = asyncio.Event()

    async def listen(message: Received) -> bool:
        await go_on.wait()
        return message.body != b"bad"

    async def test() -> None:
        watched = Watched()
        async with ScriptedServer() as server:
            async with SimpleConsumer(server.place, "g", {"t": "*"}, options=watched.options) as simple:
                assert await simple.receive() == []
                assert "rocketmq_delivery_latency" not in watched.points()
                server.inbox.append(server.message("t", b"x"))
                await simple.receive()
                (point,) = watched.points()["rocketmq_delivery_latency"]
                assert point.count == 1
                assert set(point.attributes) == {"topic", "client_id", "consumer_group"}
            watched = Watched()
            server.inbox.extend(server.message("t", body) for body in (b"good", b"bad", b"fine"))
            async with PushConsumer(server.place, "g", {"t": "*"}, listen, options=watched.options, concurrency=2):
                await until_async(lambda: bool(watched.points().get("rocketmq_await_time")))
                (count,) = watched.points()["rocketmq_consumer_cached_messages"]
                (size,) = watched.points()["rocketmq_consumer_cached_bytes"]
                assert (count.value, size.value) == (3, 11)
                assert count.attributes["consumer_group"] == "g"
                go_on.set()
                await until_async(lambda: sum(watched.statuses("rocketmq_process_time").values()) == 3)
                assert watched.statuses("rocketmq_process_time") == {"success": 2, "failure": 1}
                found = watched.points()
                assert found["rocketmq_await_time"][0].count == 3
                for name in ("rocketmq_await_time", "rocketmq_process_time", "rocketmq_delivery_latency"):
                    assert tuple(found[name][0].explicit_bounds) == BUCKETS[name]

    run(test)


def test_batched_deliveries_of_our_broker_are_measured_too(broker: BrokerProcess) -> None:
    broker.create_topic("measured")

    async def test() -> None:
        watched = Watched()
        async with (
            Producer(str(broker.place), ["measured"], options=PLAIN) as producer,
            SimpleConsumer(str(broker.place), "g", {"measured": "*"}, options=watched.options) as consumer,
        ):
            await producer.send(Message("measured", b"x"))
            assert consumer.batch_servers
            assert len(await consumer.receive(invisible=5)) == 1
            (point,) = watched.points()["rocketmq_delivery_latency"]
            assert point.count == 1

    run(test)


class Collector:
    """An OTLP endpoint."""

    def __init__(self) -> None:
        self.port = 0
        self.found: list[Any] = []
        self.headers: dict[str, str] = {}

    async def __aenter__(self) -> Collector:
        from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as messages

        async def export(request: Any, context: Any) -> Any:
            self.found.append(request)
            self.headers = {key: str(value) for key, value in context.invocation_metadata()}
            return messages.ExportMetricsServiceResponse()

        handler = grpc.unary_unary_rpc_method_handler(
            export,
            messages.ExportMetricsServiceRequest.FromString,
            messages.ExportMetricsServiceResponse.SerializeToString,
        )
        self._server = grpc.aio.server()
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(EXPORT, {"Export": handler}),))
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.stop(None)

    def names(self) -> set[str]:
        """The names of all metrics that arrived."""
        scopes = [scope for request in self.found for each in request.resource_metrics for scope in each.scope_metrics]
        return {metric.name for scope in scopes for metric in scope.metrics}

    def ask(self, settings: v2.Settings) -> None:
        """Let *settings* ask for metrics here."""
        settings.metric.on = True
        settings.metric.endpoints.scheme = v2.IPv4
        settings.metric.endpoints.addresses.add(host="127.0.0.1", port=self.port)


def test_a_server_switches_metrics_on_and_off_and_gets_them_where_it_says() -> None:
    async def test() -> None:
        async with Collector() as one, Collector() as two, ScriptedServer() as server:
            async with Producer(server.place, ["t"], options=PLAIN) as producer:
                assert producer.metrics is None
                server.settings = one.ask
                await producer.sync_settings()
                await until_async(lambda: producer.metrics is not None)
                first = producer.metrics
                await producer.send(Message("t", b"x"))
                await producer.sync_settings()
                await until_async(lambda: len(server.called("Telemetry")) == 3)
                server.settings = two.ask  # to another place: a new meter, and the old one tells what it has
                await producer.sync_settings()
                await until_async(lambda: producer.metrics is not first)
                await until_async(lambda: one.names() == {"rocketmq_send_cost_time"})
                assert one.headers["x-mq-client-id"] == producer.id
                await producer.send(Message("t", b"x"))
            assert two.names() == {"rocketmq_send_cost_time"}  # also at the end
            async with Producer(server.place, ["t"], options=PLAIN) as producer:
                assert producer.metrics is not None
                server.settings = lambda _settings: None
                await producer.sync_settings()
                await until_async(lambda: producer.metrics is None)

    run(test)


def test_a_servers_wish_for_metrics_is_passed_over_where_they_are_not_installed_or_the_application_has_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        watched = Watched()
        async with Collector() as collector, ScriptedServer() as server:
            server.settings = collector.ask
            async with Producer(server.place, ["t"], options=watched.options) as producer:
                await producer.send(Message("t", b"x"))
                assert watched.statuses("rocketmq_send_cost_time") == {"success": 1}
            monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc.metric_exporter", None)
            async with Producer(server.place, ["t"], options=PLAIN) as producer:
                await producer.send(Message("t", b"x"))
                assert producer.metrics is None
            assert not collector.found

    run(test)


@pytest.mark.parametrize("address", [False, True])
def test_metrics_need_a_switch_and_an_address(address: bool) -> None:
    settings = v2.Settings()
    settings.metric.on = not address
    if address:
        settings.metric.endpoints.addresses.add(host="127.0.0.1", port=1)
    assert metrics_endpoints(settings) is None


def test_an_answer_that_does_not_match_is_a_failure_too() -> None:
    async def test() -> None:
        watched = Watched()
        async with ScriptedServer() as server, Producer(server.place, ["t"], options=watched.options) as producer:
            server.script["SendMessage"].append(v2.SendMessageResponse(status=v2.Status(code=v2.OK)))
            with pytest.raises(ServerFailedError, match="returned 0 results for 1 messages"):
                await producer.send(Message("t", b"x"))
            assert watched.statuses("rocketmq_send_cost_time") == {"failure": 1}

    run(test)
