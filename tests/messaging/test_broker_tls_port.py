"""The port where a broker encrypts unasked: clients that use TLS by themselves need host and port alone."""

from __future__ import annotations

import asyncio
import socket
import ssl
import stat
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from serving_nodes import Serving

from millstream.cli.main import run
from millstream.core.address import Address, is_free, parse_address
from millstream.core.clock import VirtualClock
from millstream.messaging.broker.security.generated_certificate import CERTIFICATE, KEY, generated_tls
from millstream.messaging.client import Message, Options, Producer, SimpleConsumer, Tls
from millstream.messaging.errors import BrokerCredentialsError, MissingExtraError
from support.certificates import Authority


@pytest.fixture
def free() -> int:
    """A port of which the next one is free as well."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    while not (is_free(Address("127.0.0.1", port)) and is_free(Address("127.0.0.1", port + 1))):
        port += 2
    return port


def shown(place: Address) -> ssl.SSLSocket:
    """A connection to *place* of a client that checks no certificate, as those of Java and Go do not."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context.wrap_socket(socket.create_connection((place.host, place.port), timeout=10))


def test_a_broker_on_loopback_encrypts_on_a_second_port_beside_the_plain_one(tmp_path: Path) -> None:
    assert run(["topic", "create", "t", "--data", str(tmp_path)]) == 0
    with Serving(tmp_path, broker=True) as node:
        plain, encrypted = node.ready["broker"], node.ready["broker with TLS"]
        assert plain != encrypted

        async def send_and_receive() -> None:
            tls = Options(tls=Tls((tmp_path / CERTIFICATE).read_bytes()))
            async with Producer(encrypted, ["t"], options=tls) as producer:
                await producer.send(Message("t", b"encrypted"))
            async with SimpleConsumer(plain, "g", {"t": "*"}) as consumer:
                (message,) = await consumer.receive(1, invisible=30)
                assert message.body == b"encrypted"
                await consumer.ack(message)

        asyncio.run(send_and_receive())
        with shown(parse_address(encrypted)) as connection:
            first = connection.getpeercert(binary_form=True)
    with Serving(tmp_path, broker=True) as node, shown(parse_address(node.ready["broker with TLS"])) as connection:
        assert connection.getpeercert(binary_form=True) == first, "a broker keeps its certificate"


def test_the_port_is_the_next_one_where_that_is_free(tmp_path: Path, free: int) -> None:
    with Serving(tmp_path, broker=f"127.0.0.1:{free}") as node:
        assert node.ready["broker with TLS"] == f"127.0.0.1:{free + 1}"
    with socket.create_server(("127.0.0.1", free + 1)), Serving(tmp_path, broker=f"127.0.0.1:{free}") as node:
        assert node.ready["broker with TLS"] != f"127.0.0.1:{free + 1}"


def test_it_is_left_out_where_it_is_not_wanted_or_the_settings_have_a_certificate(tmp_path: Path) -> None:
    with Serving(tmp_path, broker=True, arguments=["--no-broker-tls"]) as node:
        assert "broker with TLS" not in node.ready
    assert not (tmp_path / KEY).exists()
    certificate, key = Authority(tmp_path).issue("server")
    settings = f'[broker]\ntls_certificate = "{certificate}"\ntls_key = "{key}"\n'
    (tmp_path / "millstream.toml").write_text(settings, "utf-8")
    with Serving(tmp_path, broker=True) as node:
        assert "broker with TLS" not in node.ready
        with shown(parse_address(node.ready["broker"])) as connection:
            assert connection.version() == "TLSv1.3", "as it was before there was a second port"
    with Serving(tmp_path, broker=True, arguments=["--broker-tls", "127.0.0.1:0"]) as node:
        assert run(["topic", "list", "--broker", node.ready["broker"]]) == 0
        ca = ["--tls-ca", str(tmp_path / "test-ca.pem")]
        assert run(["topic", "list", "--broker", node.ready["broker with TLS"], *ca]) == 0


def test_a_tls_port_that_others_can_reach_needs_keys_as_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ["--no-console", "--data", str(tmp_path)]
    assert run(["serve", "--broker", "127.0.0.1:0", "--broker-tls", "broker.example:0", *data]) == 2
    assert "broker.example:0 is reachable from other machines" in capsys.readouterr().err


def test_who_asks_clients_for_certificates_has_no_port_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    certificate, key = Authority(tmp_path).issue("server")
    settings = f'[broker]\ntls_certificate = "{certificate}"\ntls_key = "{key}"\ntls_client_ca = "{certificate}"\n'
    (tmp_path / "millstream.toml").write_text(settings, "utf-8")
    data = ["--no-console", "--data", str(tmp_path)]
    assert run(["serve", "--broker", "127.0.0.1:0", "--broker-tls", "127.0.0.1:0", *data]) == 2
    assert "but 127.0.0.1:0 is not encrypted: omit --broker-tls" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--broker-tls", "127.0.0.1:0", "--no-broker-tls"], "cannot be combined with --no-broker or --no-broker-tls"),
        (["--broker-tls", "127.0.0.1:0", "--no-broker"], "cannot be combined with --no-broker or --no-broker-tls"),
        (["--broker-tls", "0.0.0.0:0"], "cannot create a certificate for 0.0.0.0"),
        (["--broker-tls", "bücher.example:0"], "cannot create a certificate for 'bücher.example'"),
    ],
)
def test_places_that_cannot_be_are_refused(
    tmp_path: Path, arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        run(["serve", "--broker", "127.0.0.1:0", "--console", "127.0.0.1:0", *arguments, "--data", str(tmp_path)]) == 2
    )
    assert text in capsys.readouterr().err


def test_the_console_keeps_the_port_that_it_was_given(tmp_path: Path, free: int) -> None:
    with Serving(tmp_path, broker=f"127.0.0.1:{free}", arguments=["--console", f"127.0.0.1:{free + 1}"]) as node:
        assert node.ready["console"] == f"http://127.0.0.1:{free + 1}"
        assert node.ready["broker with TLS"] != f"127.0.0.1:{free + 1}"


def test_a_certificate_that_cannot_be_written_stops_no_broker_unless_it_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / KEY).mkdir()
    with Serving(tmp_path, broker=True) as node:
        assert "broker with TLS" not in node.ready
        assert any("the broker does not encrypt" in line for line in node.said)


def test_the_certificate_is_made_anew_where_it_cannot_be_used(tmp_path: Path) -> None:
    clock = VirtualClock()
    first = generated_tls(tmp_path, ["127.0.0.1"], clock)
    assert generated_tls(tmp_path, ["localhost"], clock) == first
    assert stat.S_IMODE((tmp_path / KEY).stat().st_mode) == 0o600
    assert generated_tls(tmp_path, ["0:0:0:0:0:0:0:1"], clock) == first
    other_host = generated_tls(tmp_path, ["broker.example"], clock)
    assert other_host != first
    assert generated_tls(tmp_path, ["another.example"], clock) != other_host
    assert generated_tls(tmp_path, ["broker.example"], clock) == generated_tls(tmp_path, ["another.example"], clock), (
        "it is for both"
    )
    (tmp_path / CERTIFICATE).write_bytes(first.certificate)  # as if it had been cut off between the two files
    pair = generated_tls(tmp_path, ["127.0.0.1"], clock)
    assert pair.key not in (first.key, other_host.key)
    (tmp_path / KEY).write_bytes(b"")
    assert generated_tls(tmp_path, ["127.0.0.1"], clock).key
    before = generated_tls(tmp_path, ["127.0.0.1"], clock)
    clock.advance(timedelta(days=3650 - 31).total_seconds())
    assert generated_tls(tmp_path, ["127.0.0.1"], clock) == before
    clock.advance(timedelta(days=2).total_seconds())
    assert generated_tls(tmp_path, ["127.0.0.1"], clock) != before


def test_a_certificate_that_cannot_be_made_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BrokerCredentialsError, match=r"cannot write .*broker-tls\.pem: No such file"):
        generated_tls(tmp_path / "absent", ["127.0.0.1"], VirtualClock())
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(MissingExtraError, match=r"millstream\[messaging\]"):
        generated_tls(tmp_path, ["127.0.0.1"], VirtualClock())
