"""The capacity model computes what its page says, from constants that hold on real servers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import botocore.httpsession
import pytest
import sqlalchemy as sa

from mill.test_query_plans import TABLES, fill_tables
from millstream.bench import capacity as model
from millstream.bench.capacity import Prices, Workload, capacity
from millstream.cli.main import run
from millstream.core.database_server import open_server
from millstream.core.writers_lock import lock_writers
from millstream.testing.s3 import S3Server
from support.server_databases import new_database

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"
ROWS, OBJECTS = 40_000, (10, 30)


def test_the_page_has_the_tables_that_the_model_computes() -> None:
    assert "\n".join(model.tables()) in PAGE.read_text("utf-8")


def test_each_part_of_a_load_is_counted() -> None:
    prices = Prices(gb_month=1, database_gb_month=1, thousand_requests=1, machine_hour=1, cores=1)
    need = capacity(Workload(objects=100, object_bytes=1e6, copies=2, days=10, check_days=5), prices)
    assert need.stored_bytes == 2 * 1000 * 1e6
    assert need.database_bytes == 2 * 1000 * (262 + 248 + 354)
    assert need.requests_a_day == pytest.approx(100 * (2 + 3) + 2 * 1000 / 5 * 1.001)
    assert need.price_a_month == pytest.approx(2.0 + 0.001728 + need.requests_a_day * 30 / 1000 + 730)
    messages = capacity(Workload(messages=1e6, days=1, copies=1))
    assert messages.database_bytes == pytest.approx(43e6, rel=0.01)
    assert messages.stored_bytes == (55 + 229) * 1e6


def test_a_load_ten_times_as_large_needs_ten_times_as_much() -> None:
    one, ten = (capacity(Workload(messages=1e9 * times, objects=1e9 * times)) for times in (1, 10))
    for field in ("database_bytes", "stored_bytes", "requests_a_day", "processor_seconds_a_day"):
        assert getattr(ten, field) == pytest.approx(10 * getattr(one, field))
    assert ten.machines == pytest.approx(10 * one.machines, abs=10)


def test_rows_on_a_server_have_the_bytes_of_the_model(postgresql: str) -> None:
    with new_database(postgresql, "sizes") as url:
        engine = open_server(url)
        lock_writers(engine)
        fill_tables(engine, ROWS)
        with engine.connect() as connection:
            found = [connection.scalar(sa.text(f"SELECT pg_total_relation_size('{name}')")) for name in TABLES]
        engine.dispose()
    sizes = [size / rows for size, rows in zip(found, (ROWS, ROWS // 2, ROWS // 2), strict=True)]
    expected = [model.MANIFEST_BYTES.value, model.AUDIT_BYTES.value, model.BIT_BYTES.value]
    assert sizes == pytest.approx(expected, rel=0.1)


def test_an_object_takes_the_requests_of_the_model(
    swift: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = list[str]()
    send = botocore.httpsession.URLLib3Session.send

    def counted(session: Any, request: Any) -> Any:
        sent.append(request.method)
        return send(session, request)

    monkeypatch.setattr(botocore.httpsession.URLLib3Session, "send", counted)
    few, many = (list(_requests(swift, tmp_path / str(count), count, sent)) for count in OBJECTS)
    each = [(more - less) / (OBJECTS[1] - OBJECTS[0]) for less, more in zip(few, many, strict=True)]
    put, copy, check = model.PUT_REQUESTS.value, model.COPY_REQUESTS.value, 2 * model.CHECK_REQUESTS.value
    assert each == pytest.approx([put, copy, check], rel=0.1)


def _requests(server: S3Server, folder: Path, count: int, sent: list[str]) -> Iterator[int]:
    """How many requests it takes to store *count* objects, to copy them, and to check both copies."""
    policies, letters = folder / "policies", folder / "letters"
    policies.mkdir(parents=True)
    letters.mkdir()
    for number in range(count):
        (letters / f"{number:03}").write_bytes(os.urandom(2_000))
    stores = (f'[stores.{name}]\nurl = "{server.new_url()}"\n' for name in ("primary", "second"))
    (folder / "millstream.toml").write_text("".join(stores))
    (policies / "duplication-accounts.json").write_text('["local"]')
    pair = {"srcStoreId": "primary", "destStoreId": "second"}
    (policies / "local-duplication-policy.json").write_text(json.dumps({"defaultPolicies": [pair]}))
    for line in (f"store put primary letters {letters} --create", "mill duplicate", "mill check"):
        sent.clear()
        assert run([*line.split(), "--data", str(folder)]) == 0
        yield len(sent)
