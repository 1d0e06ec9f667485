"""A relay that follows outlives a database that is away for longer than calls wait for it."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from millstream.core.clock import VirtualClock
from millstream.log import Log, StorageUnavailableError
from millstream.log.relay import Outbox, OutboxTable, Relay, open_outbox_database
from support.faulty_connection import ConnectionFault, FaultyDriver
from support.outboxes import bodies, connect_application, insert, make_outbox


def test_a_relay_goes_on_after_a_long_outage_and_says_so(server_database_url: str, log: Log, caplog: Any) -> None:
    make_outbox(server_database_url)
    drivers: list[FaultyDriver[Any]] = []

    def around(driver: Any) -> FaultyDriver[Any]:
        drivers.append(FaultyDriver(driver))
        return drivers[-1]

    code = 2013 if server_database_url.startswith("mysql:") else "08006"
    clock = VirtualClock()
    with (
        contextlib.closing(open_outbox_database(server_database_url, clock, patience=5, wrap_driver=around)) as source,
        contextlib.closing(connect_application(server_database_url)) as application,
    ):
        outbox = Outbox(source, OutboxTable(), "orders")
        for number in range(3):
            insert(application, b"%d" % number)
        drivers[0].faults.extend([ConnectionFault("DELETE", "before", code)] * 60)
        with pytest.raises(StorageUnavailableError):
            list(Relay(outbox, log, clock).run())
        assert drivers[0].faults, "the outage goes on"
        relay = Relay(outbox, log, clock, lambda: not application.rows("SELECT id FROM outbox"))
        for _ in relay.follow():
            pass
        assert bodies(log) == [b"0", b"1", b"2"]
    assert caplog.text.count("tries again") > 1, "each failure is told, not the first alone"
