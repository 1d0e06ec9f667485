"""The sections of a block: whole numbers in the narrowest form, and byte strings as lengths and bytes.

The layout is written down in ``docs/formats/block.md``.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millstream.log.encoding.bodies import Bodies
from millstream.log.encoding.columns import offsets_of
from millstream.log.encoding.compression import PLAIN, compress, decompress
from millstream.log.encoding.offsets import even_offsets, offsets_from
from millstream.log.spec import Compression

ENTRY = struct.Struct("<BBBBIII")  # column, part, encoding, codec, items, raw bytes, stored bytes

NUMBERS, BYTES, INDEX = 0, 1, 2  # parts of a column

CONSTANT, U8, U16, U32, I64, D8, D16, D32, RAW = range(9)  # encodings

MAX_ITEMS = 1 << 25
"""More values are never written into one section; an announced number above it is refused unread."""

_UNSIGNED: dict[int, Any] = {U8: np.uint8, U16: np.uint16, U32: np.uint32}
_DELTAS: dict[int, Any] = {D8: np.int8, D16: np.int16, D32: np.int32}
_DELTA_BITS = {D8: 8, D16: 16, D32: 32}
_I64 = struct.Struct("<q")

Numbers = npt.NDArray[np.int64]

_SAMPLE = 256  # values

_FEW = 64  # numbers; Python finds their least and greatest in a quarter of the time of NumPy

_COUNTING = np.arange(65_536, dtype=np.int64)


class SectionError(ValueError):
    """The sections of a block contradict themselves."""


class SectionWriter:
    """Collects sections and lays them out: a directory, then the sections, each on a multiple of eight bytes."""

    def __init__(self, compression: Compression) -> None:
        self._compression = compression
        self._entries: list[bytes] = []
        self._stored: list[Any] = []
        self.raw_bytes = 0
        self.stored_bytes = 0

    def add(self, column: int, part: int, encoding: int, items: int, data: Any, *, value_bytes: float = 0) -> None:
        """Put the bytes *data*, which hold *items* values in *encoding*, under *column* and *part*.

        *value_bytes* is the length of a byte string among them on average.
        """
        size = len(data) if type(data) is bytes else memoryview(data).nbytes
        codec, stored = compress(data, self._compression, value_bytes)
        length = size if stored is data else memoryview(stored).nbytes
        self._entries.append(ENTRY.pack(column, part, encoding, codec, items, size, length))
        padding = -length % 8
        if length:
            self._stored.append(stored)
        if padding:
            self._stored.append(bytes(padding))
        self.raw_bytes += size
        self.stored_bytes += ENTRY.size + length + padding

    def add_constant(self, column: int, count: int, data: bytes = b"") -> None:
        """Put *count* times the number *data* (eight bytes); none for times, whose least one is in the header."""
        self._entries.append(ENTRY.pack(column, NUMBERS, CONSTANT, PLAIN, count, len(data), len(data)))
        self._stored.append(data)
        self.raw_bytes += len(data)
        self.stored_bytes += ENTRY.size + len(data)

    def add_numbers(self, column: int, part: int, values: npt.NDArray[Any]) -> None:
        """Put non-negative numbers below 2^32, in the narrowest form that holds them."""
        least, most = bounds(values)
        if least == most:
            self.add(column, part, CONSTANT, len(values), _I64.pack(least))
        else:
            encoding = _narrowest(most)
            self.add(column, part, encoding, len(values), values.astype(_UNSIGNED[encoding]).view(np.uint8))

    def add_times(self, column: int, values: Numbers, least: int, most: int) -> None:
        """Put times between *least* and *most*, which the header holds."""
        encoding, data = _pack_times(values, least, most)
        self.add(column, NUMBERS, encoding, len(values), data)

    def add_values(self, column: int, array: Any) -> None:
        """Put a binary or string array: the length of each value, then all their bytes."""
        offsets = offsets_of(array)
        self.add_numbers(column, NUMBERS, offsets[1:] - offsets[:-1])
        start, stop = int(offsets[0]), int(offsets[-1])
        if stop > start:
            values = memoryview(array.buffers()[2])[start:stop]
            self.add(column, BYTES, RAW, stop - start, values, value_bytes=len(values) / len(array))

    def add_bodies(self, column: int, bodies: Bodies) -> None:
        """Put what :meth:`add_values` puts for the array of *bodies*."""
        lengths, data = bodies.lengths, bodies.data
        if isinstance(lengths, int):
            self.add_constant(column, bodies.count, _I64.pack(lengths))
        else:
            self.add_numbers(column, NUMBERS, lengths)
        if data:
            self.add(column, BYTES, RAW, len(data), data, value_bytes=len(data) / bodies.count)

    def add_texts(self, column: int, array: Any) -> None:
        """Put a string array, through a dictionary where values repeat."""
        dictionary = _dictionary(array)
        if dictionary is None:
            self.add_values(column, array)
        else:
            index, values = dictionary
            self.add_numbers(column, INDEX, index)
            self.add_values(column, values)

    def finish(self) -> tuple[int, list[Any]]:
        """How many sections there are, and the buffers to write one after the other: ``stored_bytes`` bytes."""
        return len(self._entries), [b"".join(self._entries), *self._stored]


class SectionReader:
    """Finds and unpacks sections of verified bytes. Raises :class:`SectionError` where they contradict themselves."""

    def __init__(self, data: memoryview, sections: int, raw_bytes: int) -> None:
        self._data = data
        self._places: dict[tuple[int, int], tuple[int, int, int, int, int, int]] = {}
        position, announced = sections * ENTRY.size, 0
        if position > len(data):
            raise SectionError(f"{sections} sections do not fit into {len(data)} bytes")
        for number in range(sections):
            column, part, encoding, codec, items, raw, stored = ENTRY.unpack_from(data, number * ENTRY.size)
            self._places[column, part] = (encoding, codec, items, raw, position, stored)
            position += stored + -stored % 8
            announced += raw
        if position != len(data) or announced != raw_bytes or len(self._places) != sections:
            raise SectionError("the directory of sections does not match the header")

    def has(self, column: int, part: int = NUMBERS) -> bool:
        """Whether there is such a section."""
        return (column, part) in self._places

    def numbers(self, column: int, part: int, count: int) -> npt.NDArray[Any]:
        """The *count* non-negative numbers of a section."""
        encoding, items, raw = self._unpack(column, part)
        _expect(items == count, column, f"{items} numbers for {count} values")
        if encoding == CONSTANT:
            _expect(raw.size == 8, column, "a constant has eight bytes")
            return np.full(count, _I64.unpack(raw)[0], np.int64)
        _expect(encoding in _UNSIGNED, column, f"encoding {encoding} does not hold numbers")
        return _view(raw, _UNSIGNED[encoding], count, column)

    def times(self, column: int, least: int, count: int) -> pa.Array:
        """The *count* times of a column, none of which is before *least*."""
        encoding, items, raw = self._unpack(column, NUMBERS)
        _expect(items == count, column, f"{items} times for {count} messages")
        if encoding == CONSTANT:
            return filled(count, least)
        if encoding == I64:
            return pa.array(_view(raw, np.int64, count, column))
        if encoding in _DELTAS:
            return pa.array(np.cumsum(_view(raw, _DELTAS[encoding], count, column), dtype=np.int64) + least)
        _expect(encoding in _UNSIGNED, column, f"encoding {encoding} does not hold times")
        return pa.array(_view(raw, _UNSIGNED[encoding], count, column) + np.int64(least))

    def values(self, column: int, kind: Any, count: int) -> Any:
        """The *count* values of a binary or string column as an Arrow array of *kind*."""
        if not self.has(column, INDEX):
            return self._plain(column, kind, count)
        index = self.numbers(column, INDEX, count)
        entries = self._unpack(column, NUMBERS)[1]
        _expect(0 < entries <= count, column, f"a dictionary of {entries} for {count} values")
        _expect(int(index.min()) >= 0 and int(index.max()) < entries, column, "a value outside the dictionary")
        dictionary = self._plain(column, kind, entries)
        if entries == 1:
            return pa.repeat(dictionary[0], count)
        return pa.DictionaryArray.from_arrays(pa.array(index.astype(np.int32)), dictionary).dictionary_decode()

    def offsets(self, column: int, count: int, end: int | None = None) -> pa.Buffer:
        """The *count* + 1 offsets (int32) that the lengths of a column add up to; the last must be *end*.

        The buffer may be longer.
        """
        encoding, items, raw = self._unpack(column, NUMBERS)
        _expect(items == count, column, f"{items} lengths for {count} values")
        if encoding == CONSTANT:
            _expect(raw.size == 8, column, "a constant has eight bytes")
            step = _I64.unpack(raw)[0]
            _expect(0 <= step * count < 2**31, column, "more than 2 GiB of values")
            total, offsets = step * count, even_offsets(step, count)
        else:
            _expect(encoding in _UNSIGNED, column, f"encoding {encoding} does not hold lengths")
            lengths = _view(raw, _UNSIGNED[encoding], count, column)
            total = int(lengths.sum(dtype=np.int64))
            _expect(total < 2**31, column, "more than 2 GiB of values")
            offsets = offsets_from(lengths)
        _expect(total <= MAX_ITEMS if end is None else total == end, column, "the lengths do not add up")
        return offsets

    def _plain(self, column: int, kind: Any, count: int) -> Any:
        data = self._unpack(column, BYTES)[2] if self.has(column, BYTES) else pa.py_buffer(b"")
        return pa.Array.from_buffers(kind, count, [None, self.offsets(column, count, data.size), data])

    def _unpack(self, column: int, part: int) -> tuple[int, int, Any]:
        _expect(self.has(column, part), column, f"its part {part} is missing")
        encoding, codec, items, size, position, stored = self._places[column, part]
        _expect(
            part == BYTES or items <= MAX_ITEMS, column, f"it has {items:,} items, more than the limit of {MAX_ITEMS:,}"
        )
        try:
            raw = decompress(self._data[position : position + stored], codec, size)
        except ValueError as error:
            raise SectionError(f"column {column}: {error}") from error
        return encoding, items, raw


def filled(count: int, value: int, *, steps: bool = False) -> pa.Array:
    """*count* times *value*; with *steps* each one more than the one before, up to 65,536 of them.

    Arrow reuses its memory: the first access to a new page of the system costs more than the write itself.
    """
    buffer = pa.allocate_buffer(8 * count)
    numbers = np.frombuffer(buffer, np.int64)
    if steps:
        np.add(_COUNTING[:count], value, out=numbers)
    else:
        numbers.fill(value)
    return pa.Array.from_buffers(pa.int64(), count, [None, buffer])


def bounds(values: npt.NDArray[Any]) -> tuple[int, int]:
    """The least and the greatest of *values*."""
    if len(values) <= _FEW:
        few = values.tolist()
        return min(few), max(few)
    return int(values.min()), int(values.max())


def _pack_times(values: Numbers, least: int, most: int) -> tuple[int, Any]:
    if least == most:
        return CONSTANT, b""
    flat = _narrowest(most - least) if most - least < 2**32 else I64
    steps = np.empty(len(values), np.int64)
    np.subtract(values[:1], least, out=steps[:1])
    np.subtract(values[1:], values[:-1], out=steps[1:])
    step = _narrowest_delta(*bounds(steps))
    if step is not None and _DELTA_BITS[step] < 8 << flat - 1:
        return step, steps.astype(_DELTAS[step]).view(np.uint8)
    if flat == I64:
        return I64, np.ascontiguousarray(values).view(np.uint8)
    return flat, (values - least).astype(_UNSIGNED[flat]).view(np.uint8)


def _narrowest(most: int) -> int:
    return U8 if most < 1 << 8 else U16 if most < 1 << 16 else U32


def _narrowest_delta(least: int, most: int) -> int | None:
    for encoding, bits in _DELTA_BITS.items():
        if -1 << bits - 1 <= least and most < 1 << bits - 1:
            return encoding
    return None


def _dictionary(array: Any) -> tuple[npt.NDArray[Any], Any] | None:
    """The place of each value of *array* among its different values, and these, where that is likely to be smaller:
    judged by a sample, then by the result."""
    count = len(array)
    if count < 8 or (count > _SAMPLE and len(array[:_SAMPLE].unique()) > _SAMPLE // 2):
        return None
    if count <= _FEW:  # Arrow would release the interpreter
        values = array.to_pylist()
        places = {value: place for place, value in enumerate(dict.fromkeys(values))}
        if len(places) > count // 2:
            return None
        return np.array([places[value] for value in values]), pa.array(list(places), array.type)
    dictionary = array.dictionary_encode()
    return (dictionary.indices.to_numpy(), dictionary.dictionary) if len(dictionary.dictionary) <= count // 2 else None


def _view(raw: Any, kind: Any, items: int, column: int) -> npt.NDArray[Any]:
    _expect(raw.size == items * np.dtype(kind).itemsize, column, f"{raw.size} bytes do not hold {items} numbers")
    return np.frombuffer(raw, kind)


def _expect(holds: bool, column: int, otherwise: str) -> None:
    if not holds:
        raise SectionError(f"column {column}: {otherwise}")
