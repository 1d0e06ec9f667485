"""Every flow with every official client at its newest version and an older one; what came of it goes into a table."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from official.clients import ClientError, Drivers, OfficialClient
from official.conftest import CACHE
from official.flows import FLOWS, Stage
from official.known import CLIENTS, access_flows
from official.table import Cell, note

from millstream.testing.brokers import IMPATIENT, BrokerProcess

pytestmark = pytest.mark.timeout(1200)  # a first run fetches and builds the clients

PATIENT_ENOUGH = msgspec.structs.replace(IMPATIENT, longest_poll=2_000_000, renewed_for=5_000_000)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    process = BrokerProcess(f"sqlite:///{tmp_path / 'log.db'}", PATIENT_ENOUGH, calls=tmp_path / "calls")
    process.start()
    yield process
    process.kill()


def hold_to(client: OfficialClient, flow: str, about: str, work: Callable[[], None], calls: Path) -> None:
    """Do *work*, which has to succeed, or to fail as the client is known to; note which, and what *calls* were made."""
    fault = client.faults.get(flow)
    try:
        work()
    except (ClientError, AssertionError, TimeoutError, ValueError) as error:
        text = f"{type(error).__name__}: {error}"
        if fault is None or not re.search(fault.proof, text):
            note(CACHE, Cell(flow, about, client.name, "failed", text[:300]))
            raise
        exchange = calls.read_text("utf-8").splitlines() if calls.exists() else []
        note(CACHE, Cell(flow, about, client.name, "its own", fault.text, text, exchange))
        return
    note(CACHE, Cell(flow, about, client.name, "yes", ""))
    assert fault is None, f"{client.name} can do {flow} now: {fault}"


@pytest.mark.parametrize("client", CLIENTS, ids=str)
@pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: flow.__name__)
def test_an_official_client_runs_it(
    flow: Callable[[Stage], None], client: OfficialClient, broker: BrokerProcess, drivers: Drivers, tmp_path: Path
) -> None:
    name = re.sub(r"[^a-z0-9]", "", client.name.lower())
    with drivers.start(client, broker.place) as driver:
        stage = Stage(client, driver, broker, f"{flow.__name__}-{name}")
        hold_to(client, flow.__name__, str(flow.__doc__), lambda: flow(stage), tmp_path / "calls")


@pytest.mark.parametrize("client", CLIENTS, ids=str)
@pytest.mark.parametrize("flow", access_flows(), ids=lambda flow: flow.__name__)
def test_an_official_client_gets_in(
    flow: Callable[..., None], client: OfficialClient, drivers: Drivers, tmp_path: Path
) -> None:
    hold_to(client, flow.__name__, str(flow.__doc__), lambda: flow(client, drivers, tmp_path), tmp_path / "calls")
