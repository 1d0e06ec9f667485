"""The conformance suite of our clients, against our broker and, where asked for, against Apache RocketMQ.

``MILLSTREAM_TEST_APACHE_ROCKETMQ=FOLDER`` asks for the latter: a folder with the server's jars, which Maven fills where
it is empty.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.testing.brokers import IMPATIENT, BrokerProcess
from millstream.testing.client_conformance import ClientConformance, MessagingServer, ServerTraits
from support.apache_rocketmq import ApacheRocketMQ, fetch_jars

POM = Path(__file__).parent / "apache" / "pom.xml"
JARS = os.environ.get("MILLSTREAM_TEST_APACHE_ROCKETMQ", "")


class OurServer:
    """Our broker, with limits for the impatient."""

    traits = ServerTraits(shortest=1.0, pause=1.5, patience=2.0)

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self.place = str(broker.place)
        self.kill, self.start = broker.kill, broker.start

    def create_topic(self, name: str, kind: str) -> None:
        self._broker.create_topic(name, kind)

    def make_group(self, name: str, *, ordered: bool) -> int:
        return IMPATIENT.max_attempts  # groups make themselves


class ApacheServer(ApacheRocketMQ):
    """Apache RocketMQ, and what it does differently."""

    traits = ServerTraits(shortest=10.0, pause=11.0, patience=60.0, replaces_handles=False, forgets_recalled=False)


@pytest.fixture(scope="module")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheServer]:
    """A server of Apache RocketMQ that all tests share."""
    if not any(Path(JARS).glob("*.jar")):
        fetch_jars(POM, Path(JARS))
    with ApacheServer(Path(JARS), tmp_path_factory.mktemp("rocketmq")) as server:
        yield server


class TestOurBroker(ClientConformance):
    """With our broker."""

    @pytest.fixture
    def server(self, broker: BrokerProcess) -> MessagingServer:
        return OurServer(broker)


@pytest.mark.served
@pytest.mark.smoke  # asked for by the variable
@pytest.mark.timeout(600)
class TestApacheRocketMQ(ClientConformance):
    """With Apache RocketMQ 5."""

    __test__ = bool(JARS)

    @pytest.fixture
    def server(self, apache: ApacheServer) -> MessagingServer:
        return apache
