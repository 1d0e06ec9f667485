"""The clients that are run, what each is known to do wrong by itself, and how they get in: TLS, keys, permissions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from official.clients import ClientError, Drivers, Fault, OfficialClient
from serving_nodes import Serving

from millstream.cli.main import run
from millstream.core.clock import SystemClock

CLOCK = SystemClock()

_NO_PUSH = Fault("The client has no push consumer.", "Unsupported")
_NO_RECALL = Fault("The client cannot recall a message.", "Unsupported")

_ONE_STREAM = r"\[\] == \['orphan'\]"
_GO = {
    "restarted": Fault(
        "The client reopens its stream only five minutes after a restart of the broker; until then transactions "
        "cannot be checked.",
        _ONE_STREAM,
    ),
    "recalled": _NO_RECALL,
    "settled": Fault("The client ignores the status in the response to an acknowledgement.", "it should have failed"),
}
_GO_512 = {
    **{flow: fault for flow, fault in _GO.items() if flow != "restarted"},
    **dict.fromkeys(("push", "retried", "ordered_failures"), _NO_PUSH),
}
_PYTHON = {
    "ordered_failures": Fault(
        "The client keeps the order and the number of attempts, but its listener always sees the first attempt.",
        r"\[1, 1, 1, 1\] == \[1, 2, 3\]",
    ),
    "signed": Fault("The client reports a refusal as a failure to fetch the topic.", "failed to fetch topic"),
}
_NODE = {
    "largest": Fault("The client cannot receive more than gRPC's default of 4 MiB.", "RESOURCE_EXHAUSTED"),
}
_RUST = {
    **dict.fromkeys(("push", "retried", "ordered_failures"), _NO_PUSH),
    "recalled": _NO_RECALL,
    "restarted": Fault(
        "The client does not reopen its telemetry stream after a restart of the broker, so transactions cannot be "
        "checked.",
        _ONE_STREAM,
    ),
    "largest": Fault("The client cannot receive more than gRPC's default of 4 MiB.", "message length too large"),
    "hidden": Fault("The client cannot change an invisible duration.", "Unsupported"),
}

CLIENTS = (
    OfficialClient("java", "5.2.0"),
    OfficialClient("java", "5.0.8"),
    OfficialClient("go", "v5.1.3", _GO),
    OfficialClient("go", "v5.1.2", _GO_512),
    OfficialClient("node", "1.0.8", _NODE),
    OfficialClient("python", "5.1.2", _PYTHON),
    OfficialClient("python", "5.1.1", _PYTHON),
    OfficialClient("rust", "5.0.0", _RUST),
    OfficialClient("rust", "0.1.2", _RUST),
)

NEWEST = [each for number, each in enumerate(CLIENTS) if each.language not in {c.language for c in CLIENTS[:number]}]
"""The first of each language."""

_SETTINGS = """
[broker.keys.shop]
secret_file = "{folder}/secret"
publish = ["orders"]
subscribe = ["orders"]
[broker.keys.reader]
secret_file = "{folder}/secret"
subscribe = ["orders"]
[broker.keys.writer]
secret_file = "{folder}/secret"
publish = ["orders"]
"""


def encrypted(client: OfficialClient, drivers: Drivers, folder: Path) -> None:
    """TLS works, with the broker's certificate if the client checks it."""
    with _serve(folder, client) as node, drivers.start(
        client, _local(node.ready["broker with TLS"]), ca=folder / "broker-tls.pem"
    ) as driver:  # fmt: skip
        driver.ask("producer", name="p", topics=["orders"])
        driver.ask("send", name="p", topic="orders", body="secret")
        driver.ask("simple", name="s", group="g", filters={"orders": ["TAG", "*"]}, **{"await": 2000})
        assert [message["body"] for message in driver.drain("s", 1)] == ["secret"]


def signed(client: OfficialClient, drivers: Drivers, folder: Path) -> None:
    """Signed requests are accepted, and unsigned ones are refused."""
    (folder / "millstream.toml").write_text(_SETTINGS.replace("{folder}", str(folder)), "utf-8")
    with _serve(folder, client) as node:
        with drivers.start(client, node.ready["broker"], key="shop", secret="s3cret") as driver:
            driver.ask("producer", name="p", topics=["orders"])
            driver.ask("send", name="p", topic="orders", body="signed")
            driver.ask("simple", name="s", group="g", filters={"orders": ["TAG", "*"]}, **{"await": 2000})
            assert [message["body"] for message in driver.drain("s", 1)] == ["signed"]
        with drivers.start(client, node.ready["broker"], key="shop", secret="wrong") as driver:
            error, seconds = _first_error(driver.ask, "p", "s")
            assert "40100" in str(error) or "UNAUTHORIZED" in str(error).upper(), error
            assert seconds < 15


def forbidden(client: OfficialClient, drivers: Drivers, folder: Path) -> None:
    """A key without permission is refused at the first call that needs it."""
    (folder / "millstream.toml").write_text(_SETTINGS.replace("{folder}", str(folder)), "utf-8")
    with _serve(folder, client) as node:
        for key, ends in (("reader", "p"), ("writer", "s")):
            with drivers.start(client, node.ready["broker"], key=key, secret="s3cret") as driver:
                error, seconds = _first_error(driver.ask, ends)
                assert "40300" in str(error) or "FORBIDDEN" in str(error).upper(), error
                assert seconds < 15, seconds


def access_flows() -> Sequence[Callable[[OfficialClient, Drivers, Path], None]]:
    return encrypted, signed, forbidden


def _serve(folder: Path, client: OfficialClient) -> Serving:
    (folder / "secret").write_text("s3cret", "utf-8")
    queues = "1" if client.language == "node" else "4"
    assert run(["topic", "create", "orders", "--queues", queues, "--data", str(folder)]) == 0
    return Serving(folder, broker=True)


def _local(place: str) -> str:
    """*place* by the name of the machine: clients that check certificates want a name more than an address."""
    return place.replace("127.0.0.1", "localhost")


def _first_error(ask: Callable[..., object], *ends: str) -> tuple[ClientError, float]:
    """How a producer (``p``) or a simple consumer (``s``) fails, and after how many seconds."""
    begin = CLOCK.monotonic()
    for end in ends:
        try:
            if end == "p":
                ask("producer", name="p", topics=["orders"])
                ask("send", name="p", topic="orders", body="x")
            else:
                ask("simple", name="s", group="g", filters={"orders": ["TAG", "*"]}, **{"await": 2000})
                ask("receive", name="s", count=1, invisible=10_000)
        except ClientError as error:
            return error, CLOCK.monotonic() - begin
    raise AssertionError("it should have been refused")
