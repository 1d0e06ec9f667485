"""What a broker tells clients about its topics, and what it expects of clients; called without a network."""

from __future__ import annotations

import pytest

from millstream.core.address import Address
from millstream.messaging.broker.address import to_endpoints
from millstream.messaging.broker.handlers.broker_service import CallContext
from millstream.messaging.broker.storage.topic import TopicSpec
from millstream.messaging.errors import StatusError, TopicError, TopicNotFoundError
from millstream.messaging.protocol import v2
from millstream.messaging.protocol.batch_calls import offers_batches
from support.broker_harness import CALL, BrokerHarness, bodies, with_harness


def test_a_route_names_every_queue_and_the_way_that_the_client_came() -> None:
    async def step(desk: BrokerHarness) -> None:
        request = v2.QueryRouteRequest(endpoints=to_endpoints(Address("broker.example", 1234)))
        request.topic.name = "ordered"
        response = await desk.service.query_route(request, CALL)
        assert response.status.code == v2.OK
        assert [queue.id for queue in response.message_queues] == [0, 1, 2, 3]
        first = response.message_queues[0]
        assert (first.permission, first.broker.id, list(first.accept_message_types)) == (v2.READ_WRITE, 0, [v2.FIFO])
        assert first.broker.endpoints == request.endpoints
        request.ClearField("endpoints")
        again = await desk.service.query_route(request, CALL)
        assert again.message_queues[0].broker.endpoints.addresses[0].port == 8081

    with_harness(step)


@pytest.mark.parametrize(("topic", "code"), [("absent", v2.TOPIC_NOT_FOUND), ("a b", v2.ILLEGAL_TOPIC)])
def test_a_route_to_nowhere_is_refused(topic: str, code: int) -> None:
    async def step(desk: BrokerHarness) -> None:
        request = v2.QueryRouteRequest()
        request.topic.name = topic
        with pytest.raises(StatusError) as refused:
            await desk.service.query_route(request, CALL)
        assert refused.value.code == code

    with_harness(step)


def test_a_plain_group_is_assigned_any_queue_and_one_with_order_all() -> None:
    async def step(desk: BrokerHarness) -> None:
        for topic, expected in (("plain", [-1]), ("ordered", [0, 1, 2, 3])):
            request = v2.QueryAssignmentRequest()
            request.topic.name, request.group.name = topic, "g"
            response = await desk.service.query_assignment(request, CALL)
            assert [each.message_queue.id for each in response.assignments] == expected

    with_harness(step)


@pytest.mark.parametrize("group", ["", "a group", "x" * 256])
def test_a_group_of_no_valid_name_is_assigned_nothing(group: str) -> None:
    async def step(desk: BrokerHarness) -> None:
        request = v2.QueryAssignmentRequest()
        request.topic.name, request.group.name = "plain", group
        with pytest.raises(StatusError, match="use 1 to 120 characters of a-z") as refused:
            await desk.service.query_assignment(request, CALL)
        assert refused.value.code == v2.ILLEGAL_CONSUMER_GROUP

    with_harness(step)


def test_namespaces_keep_topics_and_groups_apart() -> None:
    async def step(desk: BrokerHarness) -> None:
        await desk.core.create_topic(TopicSpec("space%plain", "NORMAL", 1))
        request = v2.SendMessageRequest(messages=[v2.Message(body=b"x")])
        request.messages[0].topic.name = "plain"
        request.messages[0].topic.resource_namespace = "space"
        request.messages[0].system_properties.message_id = "m"
        assert (await desk.service.send_message(request, CALL)).status.code == v2.OK
        assert await desk.receive("g", "plain") == []
        (got,) = await desk.receive("g", "plain", call=CallContext("client-2", "space", lambda: None))
        assert (got.topic.name, got.topic.resource_namespace) == ("plain", "")

    with_harness(step)


def test_a_topic_is_made_once_and_dropped_with_its_groups() -> None:
    async def step(desk: BrokerHarness) -> None:
        await desk.core.create_topic(TopicSpec("plain", "NORMAL", 8))
        with pytest.raises(TopicError):
            await desk.core.create_topic(TopicSpec("plain", "FIFO", 8))
        with pytest.raises(TopicError):
            await desk.core.create_topic(TopicSpec("plain", "NORMAL", 4))
        await desk.send("plain", b"x")
        await desk.receive("g", "plain")
        await desk.core.drop_topic("plain")
        with pytest.raises(TopicNotFoundError):
            await desk.core.drop_topic("plain")
        assert (await desk.send("one", b"x")).status.code == v2.OK
        with pytest.raises(StatusError):
            await desk.send("plain", b"y")

    async def again(desk: BrokerHarness) -> None:
        assert bodies(await desk.receive("g", "plain")) == [b"x"]  # made anew by the desk: its log was kept

    with_harness(step, again)


@pytest.mark.parametrize("spec", [("-a", "NORMAL", 1), ("a", "LITE", 1), ("a", "NORMAL", 0), ("a" * 128, "FIFO", 1)])
def test_topics_that_cannot_be_are_refused(spec: tuple[str, str, int]) -> None:
    with pytest.raises(TopicError):
        TopicSpec(*spec)


def test_settings_come_back_with_what_the_client_is_to_keep_to() -> None:
    async def step(desk: BrokerHarness) -> None:
        session = desk.core.sessions.touch("c", desk.clock.now())
        wanted = v2.Settings(client_type=v2.PUSH_CONSUMER)
        wanted.subscription.group.name = "g"
        wanted.subscription.subscriptions.add().topic.name = "ordered"
        answer = desk.service.telemetry.merge_settings(session, wanted)
        assert answer.status.code == v2.OK
        subscription = answer.settings.subscription
        assert (subscription.fifo, subscription.receive_batch_size) == (True, 32)
        assert answer.settings.backoff_policy.max_attempts == 17
        assert len(answer.settings.backoff_policy.customized_backoff.next) == 18
        produced = v2.Settings(client_type=v2.PRODUCER)
        produced.publishing.topics.add(name="plain")
        answer = desk.service.telemetry.merge_settings(session, produced)
        assert answer.settings.publishing.max_body_size == 4 << 20
        assert answer.settings.backoff_policy.exponential_backoff.multiplier == 2
        nothing = desk.service.telemetry.merge_settings(session, v2.Settings())
        assert nothing.status.code == v2.UNRECOGNIZED_CLIENT_TYPE

    with_harness(step)


def test_batched_receives_are_offered_to_our_clients_alone() -> None:
    async def step(desk: BrokerHarness) -> None:
        session = desk.core.sessions.touch("c", desk.clock.now())
        for platform, offered in (("Linux", False), ("millstream Linux", True)):
            settings = v2.Settings(client_type=v2.SIMPLE_CONSUMER)
            settings.user_agent.platform = platform
            settings.subscription.group.name = "g"
            answer = desk.service.telemetry.merge_settings(session, settings).settings
            assert offers_batches(answer) is offered
            assert offered or answer.user_agent.platform == platform

    with_harness(step)


def test_a_heartbeat_needs_a_client_that_says_what_it_is() -> None:
    async def step(desk: BrokerHarness) -> None:
        with pytest.raises(StatusError) as refused:
            await desk.service.heartbeat(v2.HeartbeatRequest(), CALL)
        assert refused.value.code == v2.UNRECOGNIZED_CLIENT_TYPE
        request = v2.HeartbeatRequest(client_type=v2.PUSH_CONSUMER)
        request.group.name = "g"
        assert (await desk.service.heartbeat(request, CALL)).status.code == v2.OK
        assert [each.client_id for each in desk.core.sessions.in_group("g")] == ["client-1"]
        request.group.name = "a b"
        with pytest.raises(StatusError) as refused:
            await desk.service.heartbeat(request, CALL)
        assert refused.value.code == v2.ILLEGAL_CONSUMER_GROUP

    with_harness(step)
