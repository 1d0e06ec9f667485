"""The names by which programs of other releases call the administration service."""

from __future__ import annotations

from typing import cast

from millstream.messaging.broker.admin import ADMIN_SERVICE, AdminService
from millstream.messaging.broker.core import BrokerCore
from millstream.messaging.protocol.batch_calls import ACK, BATCH_OFFER, BATCH_SERVICE, RECEIVE, SEND


def test_administration_calls_keep_their_names() -> None:
    assert ADMIN_SERVICE == "millstream.broker.v1.Admin"
    assert sorted(call.name for call in AdminService(cast(BrokerCore, None)).calls) == [
        "Clients",
        "ConfigureGroup",
        "DropTopic",
        "GroupSpecs",
        "Groups",
        "MakeTopic",
        "RestartGroup",
        "StackTrace",
        "Topics",
        "Verify",
    ]


def test_batch_calls_keep_their_paths() -> None:
    assert BATCH_SERVICE == "millstream.broker.v2.Batches"
    assert BATCH_OFFER == "millstream batches-2"
    assert [call.path.rpartition("/")[2] for call in (SEND, RECEIVE, ACK)] == ["Send", "Receive", "Ack"]
