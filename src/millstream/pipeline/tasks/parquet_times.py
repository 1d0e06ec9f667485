"""Times in columns of Parquet become microseconds; finds the rows whose times do not become them exactly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


class TimeFault(NamedTuple):
    """What is wrong with a time of some rows of a record batch; ``rows`` are booleans, one a row."""

    why: str
    rows: pa.Array


def in_microseconds(column: pa.Array) -> pa.Array:
    """*column* with its times in microseconds, also within structs, lists and maps; those without a zone are UTC.

    A time with nanoseconds becomes the microsecond before it, a duration loses them. Times of the rows that
    :func:`times_out_of_range` finds become other times.
    """
    kind = _microseconds(column.type)
    if kind == column.type:
        return column
    if pa.types.is_nested(kind):
        return _with_parts_in_microseconds(column, kind)
    if not pa.types.is_timestamp(kind) or column.type.unit != "ns":
        return column.cast(kind, safe=False)
    numbers = column.view(pa.int64())
    whole = pc.divide(numbers, _NANOSECONDS)  # towards zero
    above = pc.greater(pc.multiply(whole, _NANOSECONDS), numbers)
    return pc.subtract(whole, above.cast(pa.int64())).cast(kind)


def _with_parts_in_microseconds(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """The structs, lists or maps of *column* as *kind*, which has times in microseconds."""
    if pa.types.is_struct(kind):
        fields = [in_microseconds(column.field(place)) for place in range(kind.num_fields)]
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=column.is_null())
    if pa.types.is_map(kind):
        pairs = [in_microseconds(column.keys), in_microseconds(column.items)]
        values = pa.StructArray.from_arrays(pairs, fields=[kind.key_field, kind.item_field])
    else:
        values = in_microseconds(column.values)
    own = column.buffers()[: 1 if pa.types.is_fixed_size_list(kind) else 2]  # which are null, and the offsets
    return pa.Array.from_buffers(kind, len(column), own, offset=column.offset, children=[values])


def inexact_times(batch: pa.RecordBatch) -> list[TimeFault]:
    """Times, times of day and durations of *batch* with nanoseconds that microseconds cannot hold, by column."""
    return _faults(batch, _is_inexact, "the value of column {} is not a whole number of microseconds")


def times_out_of_range(batch: pa.RecordBatch) -> list[TimeFault]:
    """Times of *batch* in seconds or milliseconds that microseconds of 64 bits cannot hold, by column."""
    why = "a date or time is out of range: the value of column {} in microseconds does not fit into 64 bits"
    return _faults(batch, _is_out_of_range, why)


def _faults(batch: pa.RecordBatch, is_wrong: Callable[[pa.Array], pa.Array | None], why: str) -> list[TimeFault]:
    found = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        for path, times, rows in _times(name, column, np.arange(batch.num_rows)):
            wrong = is_wrong(times)
            if wrong is not None and pc.any(wrong).as_py():
                mask = np.zeros(batch.num_rows, np.bool_)
                mask[rows[wrong.fill_null(False).to_numpy(zero_copy_only=False)]] = True
                found.append(TimeFault(why.format(repr(path[:80])), pa.array(mask)))
    return found


def _times(path: str, column: pa.Array, rows: Any) -> Iterator[tuple[str, pa.Array, Any]]:
    """The times in *column*, also within structs, lists and maps: their path, the values, and the row of each value.

    *rows* are those of the values of *column*, as numbers of a NumPy array.
    """
    kind = column.type
    if _microseconds(kind) == kind:
        return
    if pa.types.is_struct(kind):
        for index, field in enumerate(kind):
            yield from _times(f"{path}.{field.name}", pc.struct_field(column, [index]), rows)
    elif pa.types.is_map(kind):
        pair = pa.struct([kind.key_field.with_name("key"), kind.item_field.with_name("value")])
        yield from _times(path, column.cast(pa.list_(pair)), rows)
    elif pa.types.is_timestamp(kind) or pa.types.is_duration(kind) or pa.types.is_time(kind):
        yield path, column, rows
    else:
        lengths = pc.list_value_length(column).fill_null(0).to_numpy()
        yield from _times(f"{path}[]", column.flatten(), np.repeat(rows, lengths))


def _is_inexact(times: pa.Array) -> pa.Array | None:
    """Which of *times* are not whole microseconds; None where the unit of *times* is not finer."""
    if times.type.unit != "ns":
        return None
    numbers = times.view(pa.int64())
    return pc.not_equal(pc.multiply(pc.divide(numbers, _NANOSECONDS), _NANOSECONDS), numbers)


def _is_out_of_range(times: pa.Array) -> pa.Array | None:
    """Which of *times* microseconds of 64 bits cannot hold; None where they hold all of this type."""
    factor = _MICROSECONDS.get(times.type.unit)
    if factor is None:
        return None
    numbers, most = times.view(pa.int64()), (2**63 - 1) // factor
    return pc.or_(pc.greater(numbers, most), pc.less(numbers, -most))


_NANOSECONDS = 1000
"""Nanoseconds of a microsecond."""
_MICROSECONDS = {"s": 1_000_000, "ms": 1000}
"""Microseconds of a coarser unit of time."""


def _microseconds(kind: pa.DataType) -> pa.DataType:
    """*kind* with its times in microseconds; the same type where there is nothing to convert."""
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz or "UTC")
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_microseconds(field.type)) for field in kind])
    if pa.types.is_map(kind):
        key, item = (field.with_type(_microseconds(field.type)) for field in (kind.key_field, kind.item_field))
        return pa.map_(key, item, kind.keys_sorted)
    if (make := _list_maker(kind)) is not None:
        return make(kind.value_field.with_type(_microseconds(kind.value_type)))
    coarser = {pa.time64("ns"): pa.time64("us"), pa.duration("ns"): pa.duration("us")}
    return coarser.get(kind, kind)


def _list_maker(kind: pa.DataType) -> Callable[[pa.Field], pa.DataType] | None:
    """What makes a type of lists like *kind*, of other items; None where it is no such type. PyArrow 26 casts list
    views wrongly, so they stay as they are."""
    if pa.types.is_fixed_size_list(kind):
        return lambda item: pa.list_(item, kind.list_size)
    make: Callable[[pa.Field], pa.DataType] = pa.list_ if pa.types.is_list(kind) else pa.large_list
    return make if pa.types.is_list(kind) or pa.types.is_large_list(kind) else None
