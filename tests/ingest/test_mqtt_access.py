"""Who is let in: passwords and certificates, which are never shown."""

from __future__ import annotations

import ssl
import subprocess

import pytest

from millstream.core.clock import SystemClock
from millstream.ingest import BrokerRefusedError, IngestInputError, parse_broker
from millstream.ingest.connection import MqttConnection
from millstream.ingest.options import SubscribeOptions
from millstream.testing import services
from millstream.testing.mosquitto import Mosquitto
from millstream.testing.ports import free_ports
from suite.missing import started
from support.mqtt import publish

from .conftest import Harness

SECRET = "pass/word #1"
QUOTED = "pass%2Fword%20%231"
OPTIONS = SubscribeOptions(topics=("a/b",), timeout=5)


def make_certificate(folder):
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
         "-keyout", folder / "key.pem", "-out", folder / "certificate.pem", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    return folder / "certificate.pem", folder / "key.pem"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A broker with a listener that wants a password, and one that wants TLS and a client's certificate as well."""
    folder = tmp_path_factory.mktemp("guarded")
    certificate, key = make_certificate(folder)
    ports = free_ports(2)
    lines = [
        f"listener {ports[0]} 127.0.0.1",
        "allow_anonymous false",
        f"password_file {folder / 'passwords'}",
        f"listener {ports[1]} 127.0.0.1",
        "allow_anonymous true",
        "require_certificate true",
        f"cafile {certificate}",
        f"certfile {certificate}",
        f"keyfile {key}",
    ]

    def start():
        service = Mosquitto(*lines)
        (folder / "broker").mkdir()
        service.prepare(folder / "broker")
        command = ["mosquitto_passwd", "-b", "-c", str(folder / "passwords"), "pump", SECRET]
        subprocess.run(command, check=True, capture_output=True)
        server = services.Server(service, folder / "broker", SystemClock())
        return _started(server)

    with started(start, driver="paho", extra="mqtt"):
        yield f"mqtt://pump:{QUOTED}@127.0.0.1:{ports[0]}", f"mqtts://127.0.0.1:{ports[1]}", folder


class _started:
    def __init__(self, server):
        self.server = server

    def __enter__(self):
        self.server.start()
        return self.server

    def __exit__(self, *_):
        self.server.stop()


def harness_at(tmp_path, url):
    return Harness(tmp_path, url)


@pytest.mark.served
@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
def test_a_password_lets_us_in_from_the_url_or_a_file(guarded, tmp_path, protocol):
    url, _, _ = guarded
    (tmp_path / "secret").write_text(SECRET + "\n")
    from_file = url.replace(f":{QUOTED}", "") + f"?password_file={tmp_path / 'secret'}"
    for number, place in enumerate((url, from_file)):
        harness = harness_at(tmp_path, place)
        harness.subscribe(f"{tmp_path.name}/#", client=f"{tmp_path.name}-{number}", protocol=protocol)
        publish(url, [(f"{tmp_path.name}/pump/level", b"%d" % number)])
        harness.take(1, f"{tmp_path.name}/#", client=f"{tmp_path.name}-{number}", protocol=protocol)
        assert harness.records()[-1].body == b"%d" % number
        harness.store.close()


@pytest.mark.served
@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
def test_a_wrong_password_ends_it_at_once_and_is_not_shown(guarded, protocol):
    url, _, _ = guarded
    options = SubscribeOptions(topics=("a/b",), protocol=protocol)
    connection = MqttConnection(parse_broker(url.replace(QUOTED, "geheim")), "x", options, SystemClock())
    with pytest.raises(BrokerRefusedError, match="refused the connection") as refused:
        connection.open()
    assert "geheim" not in str(refused.value)
    connection.close()


@pytest.mark.served
def test_certificates_encrypt_and_authenticate_both_ends(guarded, tmp_path):
    _, url, folder = guarded
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    context = ssl.create_default_context(cafile=certificate)
    context.load_cert_chain(certificate, key)
    harness = harness_at(tmp_path, f"{url}?tls_ca={certificate}&tls_certificate={certificate}&tls_key={key}")
    sent = [(f"{tmp_path.name}/pump/level", b"%d" % n + b" " * 500) for n in range(2000)]
    harness.subscribe(f"{tmp_path.name}/#")
    publish(url, sent, tls=context)
    harness.take(2000, f"{tmp_path.name}/#")
    assert [message.body for message in harness.records()] == [payload for _, payload in sent]
    harness.store.close()


@pytest.mark.served
def test_a_broker_whose_certificate_nobody_vouches_for_is_not_trusted(guarded):
    _, url, _ = guarded
    connection = MqttConnection(parse_broker(url), "x", OPTIONS, SystemClock())
    with pytest.raises(BrokerRefusedError, match=r"is not trusted \(self-signed certificate\)"):
        connection.open()
    connection.close()


def test_certificates_that_are_not_there_are_named(tmp_path):
    with pytest.raises(IngestInputError, match=r"cannot use tls_ca of .*/absent: No such file"):
        MqttConnection(parse_broker(f"mqtts://h?tls_ca={tmp_path}/absent"), "x", OPTIONS, SystemClock())


@pytest.mark.parametrize(
    ("url", "what"),
    [
        ("http://host", "write mqtt://"),
        ("mqtt://", "write mqtt://"),
        ("mqtt://host/topic", "topics are a separate option"),
        ("mqtt://u:geheim@host:99999", "%XX"),
        ("mqtt://u:geheim@host?pasword_file=x", "unknown options: pasword_file; allowed: password_file"),
        ("mqtt://u:geheim@host?tls_ca=x", "require mqtts"),
        ("mqtts://u:geheim@host?tls_key=x", "must be given together"),
        ("mqtt://u:geheim@host?password_file=x", "give either the password"),
        ("mqtt://:geheim@host", "requires a user"),
        ("mqtt://u@host?password_file=/nowhere/at/all", "cannot read the password file /nowhere/at/all"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_without_its_password(url, what):
    with pytest.raises(IngestInputError, match=what) as refused:
        parse_broker(url)
    assert "geheim" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("mqtt://host", "mqtt://host:1883"),
        ("mqtts://host", "mqtts://host:8883"),
        ("mqtt://u:geheim@[::1]:9", "mqtt://u:***@[::1]:9"),
        ("mqtts://u%40x@h?tls_ca=/a%20b", "mqtts://u%40x@h:8883?tls_ca=/a%20b"),
    ],
)
def test_a_place_shows_itself_without_its_password(url, shown):
    place = parse_broker(url)
    assert (place.url, str(place), repr(place)) == (shown, f"<BrokerAddress {shown}>", f"<BrokerAddress {shown}>")
