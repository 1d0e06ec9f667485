"""Who may reach a broker: keys and their permissions, certificates, and what it says to everybody else."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from millstream.cli.main import run
from millstream.core.address import Address
from millstream.core.clock import SystemClock
from millstream.log import open_store
from millstream.messaging.broker.clients.sessions import ClientSessions
from millstream.messaging.broker.handlers.method_table import REQUIRED_PERMISSIONS
from millstream.messaging.broker.handlers.telemetry import answers
from millstream.messaging.broker.security.access_keys import (
    UNRESTRICTED,
    AccessKey,
    CallerPermissions,
    Keyring,
    read_keyring,
)
from millstream.messaging.broker.security.required_permissions import (
    check_admin,
    check_call,
    check_settings,
)
from millstream.messaging.broker.security.tls import read_tls
from millstream.messaging.broker.server.broker_server import BrokerServer
from millstream.messaging.broker.server.rpc import check_headers
from millstream.messaging.broker.settings import BrokerSettings, KeySettings
from millstream.messaging.client import (
    ClientError,
    Credentials,
    Message,
    Options,
    Producer,
    SimpleConsumer,
    Tls,
)
from millstream.messaging.client.signing import Signer
from millstream.messaging.errors import BrokerCredentialsError, StatusError
from millstream.messaging.protocol import v2
from millstream.messaging.protocol.batch_calls import ACK, RECEIVE, SEND
from millstream.messaging.protocol.descriptor_methods import methods
from support.broker_harness import BrokerHarness, with_harness
from support.certificates import Authority

SECRETS = {"shop": "sesame-of-the-shop", "cook": "sesame-of-the-cook", "chief": "sesame-of-the-chief"}
TOKEN = "token-of-the-cook"
OFFICIAL = Path(__file__).parent / "children" / "official.py"
SHOP = CallerPermissions("shop", publish=("orders", "space%*"), groups=("none",))
COOK = CallerPermissions("cook", subscribe=("ord*",), groups=("kitchen-*",))


def headers(credentials: Credentials) -> dict[str, str]:
    return dict(Signer("client", SystemClock(), credentials=credentials).headers())


def keyring() -> Keyring:
    return Keyring({"shop": AccessKey(SECRETS["shop"], SHOP), "cook": AccessKey(SECRETS["cook"], COOK, TOKEN)})


def refusal(call: Callable[[], Any]) -> int:
    with pytest.raises(StatusError) as refused:
        call()
    return refused.value.code


def test_a_signature_is_taken_in_either_case_and_names_its_key() -> None:
    signed = headers(Credentials("shop", SECRETS["shop"]))
    assert keyring().access(signed) is SHOP
    head, _, proof = signed["authorization"].rpartition("=")
    assert keyring().access({**signed, "authorization": f"{head}={proof.lower()}"}) is SHOP
    assert keyring().access(headers(Credentials("cook", SECRETS["cook"], TOKEN))) is COOK


@pytest.mark.parametrize(
    "credentials",
    [
        Credentials("shop", "wrong"), Credentials("", ""), Credentials("nobody", ""), Credentials("nobody", "x"),
        Credentials("shop", SECRETS["shop"], "a token where none belongs"), Credentials("cook", SECRETS["cook"]),
        Credentials("cook", SECRETS["cook"], "wrong"), Credentials("cook", SECRETS["shop"], TOKEN),
    ],
)  # fmt: skip
def test_what_is_not_signed_by_a_known_key_is_unauthorized(credentials: Credentials) -> None:
    assert refusal(lambda: keyring().access(headers(credentials))) == v2.UNAUTHORIZED


def test_a_signature_is_of_the_time_it_came_with() -> None:
    signed = headers(Credentials("shop", SECRETS["shop"]))
    assert refusal(lambda: keyring().access({**signed, "x-mq-date-time": "20200101T000000Z"})) == v2.UNAUTHORIZED
    for broken in ("", "Basic c2hvcDp4", "MQv2-HMAC-SHA1 Credential=shop", signed["authorization"] + " more"):
        with pytest.raises(StatusError):
            keyring().access({**signed, "authorization": broken})


def test_without_keys_everybody_may_do_everything_signed_or_not() -> None:
    assert Keyring().access({}) is UNRESTRICTED
    assert Keyring().access(headers(Credentials("any", "thing"))) is UNRESTRICTED


def test_no_secret_is_shown() -> None:
    for shown in (AccessKey("hidden", SHOP, "hidden"), Credentials("shop", "hidden"), Tls(key=b"hidden")):
        assert "hidden" not in repr(shown)


def request(method: str, topic: str, group: str) -> Any:
    made = methods()[method].request()
    if method == "SendMessage":
        made.messages.add().topic.name = topic
    elif hasattr(made, "message_queue"):
        made.message_queue.topic.name = topic
    elif hasattr(made, "topic"):
        made.topic.name = topic
    if hasattr(made, "group"):
        made.group.name = group
    return made


PUBLISHES = {"SendMessage", "EndTransaction", "RecallMessage"}
NEITHER = {"Heartbeat", "Telemetry", "NotifyClientTermination"}


@pytest.mark.parametrize("method", sorted(methods()))
def test_every_method_asks_for_its_permission(method: str) -> None:
    def is_allowed(access: CallerPermissions, topic: str, group: str) -> bool:
        try:
            check_call(REQUIRED_PERMISSIONS[method], request(method, topic, group), access, "")
        except StatusError as refused:
            assert refused.code == v2.FORBIDDEN
            return False
        return True

    has_group = "group" in methods()[method].request.DESCRIPTOR.fields_by_name
    publisher = CallerPermissions("p", publish=("orders",))
    consumer = CallerPermissions("c", subscribe=("orders",), groups=("kitchen",))
    assert is_allowed(publisher, "orders", "kitchen") == (method in PUBLISHES | {"QueryRoute", "Telemetry"})
    assert is_allowed(consumer, "orders", "kitchen") == (method not in PUBLISHES)
    assert is_allowed(consumer, "orders", "bar") == (not has_group and method not in PUBLISHES)
    assert is_allowed(consumer, "other", "kitchen") == (method in NEITHER)
    assert is_allowed(UNRESTRICTED, "other", "bar")


@pytest.mark.parametrize("method", ["ReceiveMessage", "AckMessage", "UpdateOffset", "GetOffset", "QueryAssignment"])
def test_a_consumer_that_names_no_group_is_of_the_group_without_a_name(method: str) -> None:
    made = request(method, "orders", "")
    made.ClearField("group")
    for groups, is_allowed in ((("kitchen",), False), (("space%*",), True)):
        consumer = CallerPermissions("c", subscribe=("space%orders",), groups=groups)
        with contextlib.nullcontext() if is_allowed else pytest.raises(StatusError, match="of the group space%:"):
            check_call(REQUIRED_PERMISSIONS[method], made, consumer, "space")


def test_clients_of_different_keys_are_different_whatever_their_names() -> None:
    access = {name: CallerPermissions(name) for name in ("a", "a/b", "a%2Fb")}
    keys = Keyring({name: AccessKey("s3cret", one) for name, one in access.items()})
    ids = set[str]()
    for name in access:
        for client in ("x", "b/x"):
            signed = {**headers(Credentials(name, "s3cret")), "x-mq-client-id": client}
            ids.add(check_headers(keys, signed)[0])
    assert len(ids) == 6 and "a/x" in ids


def test_every_method_has_its_permission_in_the_table() -> None:
    assert set(REQUIRED_PERMISSIONS) == {*methods(), SEND.path, RECEIVE.path, ACK.path}


def test_names_of_topics_are_full_and_patterns_match_whole_names() -> None:
    for topic, namespace in (("orders", ""), ("any", "space")):
        check_call(REQUIRED_PERMISSIONS["SendMessage"], request("SendMessage", topic, ""), SHOP, namespace)
    for topic, namespace in (("orders2", ""), ("my-orders", ""), ("orders", "elsewhere")):
        with pytest.raises(StatusError):
            check_call(REQUIRED_PERMISSIONS["SendMessage"], request("SendMessage", topic, ""), SHOP, namespace)
    assert COOK.may_subscribe("orders")
    assert not CallerPermissions("x", subscribe=("a.c",)).may_subscribe("abc")


def test_settings_may_declare_only_what_the_key_may_have() -> None:
    declared = v2.Settings()
    declared.publishing.topics.add().name = "orders"
    check_settings(declared, SHOP, "")
    assert refusal(lambda: check_settings(declared, COOK, "")) == v2.FORBIDDEN
    declared = v2.Settings()
    declared.subscription.group.name = "kitchen-1"
    declared.subscription.subscriptions.add().topic.name = "orders"
    check_settings(declared, COOK, "")
    assert refusal(lambda: check_settings(declared, SHOP, "")) == v2.FORBIDDEN
    declared.subscription.group.name = "bar"
    assert refusal(lambda: check_settings(declared, COOK, "")) == v2.FORBIDDEN
    assert refusal(lambda: check_admin(SHOP)) == v2.FORBIDDEN


def test_who_may_not_have_what_it_declares_is_told_and_gets_settings_to_begin_with() -> None:
    """Java's client waits for settings whatever it is told, and its user would not learn why it cannot begin."""

    async def step(desk: BrokerHarness) -> None:
        declared = v2.Settings(client_type=v2.PRODUCER)
        declared.publishing.topics.add().name = "orders"
        session = desk.core.sessions.touch("cook/c", desk.clock.now(), COOK)
        alone, whole = answers(desk.service.telemetry.merge_settings(session, declared))
        assert alone.status.code == v2.FORBIDDEN
        assert "access key cook is not allowed to publish to the topic orders" in alone.status.message
        assert not alone.HasField("settings")
        assert whole.status.code == v2.OK
        assert whole.settings.publishing.max_body_size
        assert not session.declared
        assert not desk.core.sessions.producers_of("orders")
        allowed = desk.core.sessions.touch("shop/c", desk.clock.now(), SHOP)
        (answer,) = answers(desk.service.telemetry.merge_settings(allowed, declared))
        assert answer.status.code == v2.OK

    with_harness(step)


def test_the_key_of_go_clients_is_known_by_what_stands_before_the_slash() -> None:
    keys = Keyring({"shop": AccessKey("s3cret", SHOP), "a/b": AccessKey("s3cret", COOK)})
    proof = hmac.new(b"s3cret", b"20261123T120000Z", hashlib.sha1).hexdigest()
    for written, access in (("shop//Rocketmq", SHOP), ("shop", SHOP), ("a/b", COOK), ("a/b//Rocketmq", COOK)):
        line = f"MQv2-HMAC-SHA1 Credential={written}, SignedHeaders=x-mq-date-time, Signature={proof}"
        assert keys.access({"authorization": line, "x-mq-date-time": "20261123T120000Z"}) == access


def test_only_producers_that_may_publish_are_shown_an_orphan() -> None:
    sessions = ClientSessions()
    for access in (SHOP, COOK):
        session = sessions.touch(access.name, 1, access)
        session.kind = v2.PRODUCER
        session.streams.append(asyncio.Queue())
    assert [session.client_id for session in sessions.producers_of("orders")] == ["shop"]
    assert sessions.producers_of("other") == []


# Settings that cannot be


@pytest.mark.parametrize(
    ("secret", "message"),
    [(None, "cannot read"), (b"", "is empty"), (b"\n", "is empty"), (b"\xff\xfe", "is not UTF-8 text")],
)
def test_a_key_without_a_secret_is_refused(tmp_path: Path, secret: bytes | None, message: str) -> None:
    path = tmp_path / "secret"
    if secret is not None:
        path.write_bytes(secret)
    with pytest.raises(BrokerCredentialsError, match=message):
        read_keyring({"shop": KeySettings(str(path))})


def test_an_access_key_with_blanks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BrokerCredentialsError, match="invalid access key 'a b': use 1 to 256 characters"):
        read_keyring({"a b": KeySettings(str(tmp_path))})


def test_certificates_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    certificate, key = map(str, Authority(tmp_path).issue("server"))
    _, other = map(str, Authority(tmp_path, "other").issue("other"))
    junk = tmp_path / "junk"
    junk.write_text("no certificate")
    assert read_tls(BrokerSettings()) is None
    for settings, message in (
        (BrokerSettings(tls_certificate=certificate), "broker.tls_key is missing"),
        (BrokerSettings(tls_client_ca=certificate), "requires broker.tls_certificate"),
        (BrokerSettings(tls_certificate=certificate, tls_key=str(tmp_path / "no")), "cannot read"),
        (
            BrokerSettings(tls_certificate=certificate, tls_key=other),
            f"key in {other} is not that of the certificate in {certificate} (OpenSSL: key values mismatch)",
        ),
        (
            BrokerSettings(tls_certificate=str(junk), tls_key=key),
            f"{junk} is not a PEM file with a certificate (OpenSSL: PEM lib)",
        ),
        (
            BrokerSettings(tls_certificate=certificate, tls_key=key, tls_client_ca=str(junk)),
            f"{junk} is not a PEM certificate (OpenSSL: no start line: cadata does not contain a certificate): give",
        ),
    ):
        with pytest.raises(BrokerCredentialsError, match=re.escape(message)):
            read_tls(settings)


def test_a_place_that_others_reach_needs_keys_or_certificates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["serve", "--broker", "0.0.0.0:0", "--data", str(tmp_path)]) == 2
    assert "0.0.0.0:0 is reachable from other machines" in capsys.readouterr().err
    tls = msgspec.structs.replace(served_tls(tmp_path), client_ca=None)
    with open_store("memory://") as store:
        for place in (Address("::", 0), Address("broker.example", 0)):
            with pytest.raises(BrokerCredentialsError):
                BrokerServer(store, place)
            with pytest.raises(BrokerCredentialsError):
                BrokerServer(store, place, tls=tls)
            BrokerServer(store, place, keys=keyring())
            BrokerServer(store, place, tls=served_tls(tmp_path))
        for host in ("127.0.0.1", "::1", "localhost"):
            BrokerServer(store, Address(host, 0))


def served_tls(folder: Path) -> Any:
    authority = Authority(folder)
    certificate, key = map(str, authority.issue("server"))
    found = read_tls(BrokerSettings(tls_certificate=certificate, tls_key=key, tls_client_ca=str(authority.path)))
    assert found is not None
    return found


# A broker with keys and certificates


class Served:
    """`millstream serve` with keys and a certificate, told by its settings file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority(folder)
        certificate, key = self.authority.issue("server")
        for name, secret in {**SECRETS, "cook-token": TOKEN}.items():
            (folder / name).write_text(secret + "\n")
        self.data = folder / "node"
        self.data.mkdir()
        (self.data / "millstream.toml").write_text(
            f"""
            [broker]
            tls_certificate = "{certificate}"
            tls_key = "{key}"
            [broker.keys.shop]
            secret_file = "{folder / "shop"}"
            publish = ["normal", "orders"]
            [broker.keys.cook]
            secret_file = "{folder / "cook"}"
            token_file = "{folder / "cook-token"}"
            subscribe = ["*"]
            groups = ["kitchen"]
            [broker.keys.chief]
            secret_file = "{folder / "chief"}"
            publish = ["*"]
            subscribe = ["*"]
            admin = true
            """
        )
        self.errors = (folder / "errors").open("w")
        command = [sys.executable, "-m", "millstream", "serve", "--broker", "localhost:0", "--data", str(self.data)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.errors, text=True)
        assert self.process.stdout is not None
        self.endpoint = self.process.stdout.readline().split()[-1]

    def options(self, name: str, token: str = "") -> Options:
        return Options(credentials=Credentials(name, SECRETS[name], token), tls=Tls(self.authority.path.read_bytes()))

    def flags(self, name: str) -> list[str]:
        key = ["--access-key", name, "--secret-file", str(self.folder / name)]
        return ["--broker", self.endpoint, "--tls-ca", str(self.authority.path), *key]

    def close(self) -> str:
        """End it; all that it said."""
        self.process.send_signal(signal.SIGTERM)
        rest, _ = self.process.communicate(timeout=20)
        self.errors.close()
        return rest + (self.folder / "errors").read_text()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One broker for all; that it said nothing secret is seen when it has ended."""
    made = Served(tmp_path_factory.mktemp("served"))
    for topic in ("normal", "orders", "signed"):
        assert run(["topic", "create", topic, *made.flags("chief")]) == 0
    yield made
    said = made.close()
    assert not [secret for secret in (*SECRETS.values(), TOKEN) if secret in said], said


def refused(work: Coroutine[Any, Any, Any]) -> ClientError:
    with pytest.raises(ClientError) as error:
        asyncio.run(work)
    return error.value


async def send(served: Served, topic: str, options: Options) -> None:
    async with Producer(served.endpoint, [topic], options=options) as producer:
        await producer.send(Message(topic, b"soup"))


async def receive(served: Served, topic: str, group: str, options: Options) -> list[bytes]:
    async with SimpleConsumer(served.endpoint, group, {topic: "*"}, options=options, await_duration=5) as consumer:
        messages = await consumer.receive(1, invisible=30)
        await consumer.ack(*messages)
        return [message.body for message in messages]


def test_a_client_with_key_token_and_certificate_does_what_it_may(served: Served) -> None:
    asyncio.run(send(served, "orders", served.options("shop")))
    assert asyncio.run(receive(served, "orders", "kitchen", served.options("cook", TOKEN))) == [b"soup"]


def test_what_a_key_may_not_do_is_forbidden(served: Served) -> None:
    cook, shop = served.options("cook", TOKEN), served.options("shop")
    for work in (
        send(served, "orders", cook),
        send(served, "other", shop),
        receive(served, "orders", "kitchen", shop),
        receive(served, "orders", "bar", cook),
    ):
        assert refused(work).code == v2.FORBIDDEN


def test_who_does_not_prove_a_key_is_unauthorized(served: Served) -> None:
    tls = served.options("shop").tls
    for credentials in (None, Credentials("shop", "wrong"), Credentials("cook", SECRETS["cook"])):
        error = refused(send(served, "orders", Options(credentials=credentials, tls=tls)))
        assert error.code == v2.UNAUTHORIZED, error


def test_who_does_not_encrypt_or_trusts_another_authority_gets_no_connection(served: Served, tmp_path: Path) -> None:
    other = Authority(tmp_path, "other").path.read_bytes()
    for tls in (None, Tls(other)):
        options = Options(credentials=Credentials("shop", SECRETS["shop"]), tls=tls, startup_timeout=3)
        assert refused(send(served, "orders", options)).code == 0  # no broker has answered


def test_only_an_admin_looks_after_topics(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["topic", "list", *served.flags("chief")]) == 0
    assert "orders" in capsys.readouterr().out
    assert run(["topic", "delete", "orders", *served.flags("shop")]) == 1
    assert "access key shop is not allowed to administer topics" in capsys.readouterr().err
    assert run(["topic", "list", *served.flags("shop")[:4]]) == 1
    assert "not signed with a key" in capsys.readouterr().err
    assert run(["topic", "list", *served.flags("shop")[:-2]]) == 2


def test_the_command_line_signs_and_encrypts(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["send", "normal", "tea", *served.flags("chief")]) == 0
    assert run(["receive", "normal", "--group", "bar", "--max", "1", *served.flags("chief")]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "tea"


def run_official(served: Served, name: str, secret: str) -> subprocess.CompletedProcess[str]:
    environment = {"ACCESS_KEY": name, "SECRET": secret, "HOME": str(served.folder), "PATH": os.environ["PATH"]}
    environment["GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"] = str(served.authority.path)
    command = [sys.executable, str(OFFICIAL), "signed", served.endpoint]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_the_official_client_signs_and_encrypts(served: Served) -> None:
    pytest.importorskip("rocketmq")
    good = run_official(served, "chief", SECRETS["chief"])
    assert good.returncode == 0, good.stderr[-2000:]
    assert json.loads(good.stdout.splitlines()[-1]) == "signed"
    bad = run_official(served, "chief", "wrong")
    assert bad.returncode != 0
    assert "failed to fetch topic:signed route" in bad.stderr  # it keeps the reason to itself


def test_a_broker_may_ask_clients_for_certificates(tmp_path: Path) -> None:
    tls = served_tls(tmp_path)
    authority = Authority(tmp_path, "clients")
    tls = msgspec.structs.replace(tls, client_ca=authority.path.read_bytes(), files=None)
    certificate, key = authority.issue("client")
    server_ca = (tmp_path / "test-ca.pem").read_bytes()

    async def route(port: int, own: Tls) -> None:
        async with Producer(f"localhost:{port}", options=Options(tls=own, startup_timeout=3)) as producer:
            await producer.route("absent")

    async def both() -> list[Any]:
        with open_store("memory://") as store:
            async with BrokerServer(store, Address("127.0.0.1", 0), tls=tls) as server:
                known = Tls(server_ca, certificate.read_bytes(), key.read_bytes())
                tries = (route(server.port, known), route(server.port, Tls(server_ca)))
                return list(await asyncio.gather(*tries, return_exceptions=True))

    welcome, stranger = asyncio.run(both())
    assert welcome.code == v2.TOPIC_NOT_FOUND
    assert stranger.code != v2.TOPIC_NOT_FOUND


@pytest.mark.parametrize(
    ("topic", "group", "code"),
    [("t" * 128, "g", v2.ILLEGAL_TOPIC), ("t", "g" * 121, v2.ILLEGAL_CONSUMER_GROUP), ("t" * 127, "g" * 120, None)],
)
def test_names_that_are_too_long_are_not_compared_with_permissions(topic: str, group: str, code: int | None) -> None:
    request = v2.AckMessageRequest(topic=v2.Resource(name=topic), group=v2.Resource(name=group))
    if code is None:
        check_call(REQUIRED_PERMISSIONS["AckMessage"], request, UNRESTRICTED, "")
        return
    with pytest.raises(StatusError, match="characters; the limit is") as refused:
        check_call(REQUIRED_PERMISSIONS["AckMessage"], request, UNRESTRICTED, "")
    assert refused.value.code == code
