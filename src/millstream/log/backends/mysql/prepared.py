"""Prepared statements over a connection of PyMySQL, which does not support them: values are sent without escapes.

In the text of a statement the server looks at each byte of a value, which costs it ten times what storing it does.
The messages are those of the MySQL client/server protocol: COM_STMT_PREPARE, COM_STMT_EXECUTE, COM_STMT_CLOSE.
"""

from __future__ import annotations

import itertools
import struct
from collections import OrderedDict
from collections.abc import Sequence

from pymysql.constants import COMMAND, FIELD_TYPE
from pymysql.protocol import OKPacketWrapper

from millstream.log.backends.database.driver import Value
from millstream.log.backends.mysql.pymysql_wire import WireProtocol

MAX_PREPARED = 32
"""Maximum number of prepared statements; the least recently used one is closed first."""

_ANSWER = struct.Struct("<xIHH")  # of the server to COM_STMT_PREPARE: statement, columns, parameters
_EXECUTE = struct.Struct("<IBI")  # statement, no cursor, one iteration
_NUMBER = struct.Struct("<q")
_UNSIGNED = struct.Struct("<Q")


class PreparedStatements:
    """The prepared statements of one connection, of which *wire* is the protocol."""

    def __init__(self, wire: WireProtocol) -> None:
        self._wire = wire
        self._numbers: OrderedDict[str, int] = OrderedDict()

    def execute(self, statement: str, values: Sequence[Value]) -> int:
        """Do *statement*, which returns no rows, with *values* for its ``?``; the number of rows it found or made."""
        message = _EXECUTE.pack(self._number(statement, len(values)), 0, 1) + _parameters(values)
        self._wire.send(COMMAND.COM_STMT_EXECUTE, message)
        answer = OKPacketWrapper(self._wire.receive())
        return int(answer.affected_rows)

    def _number(self, statement: str, parameters: int) -> int:
        if statement in self._numbers:
            self._numbers.move_to_end(statement)
            return self._numbers[statement]
        self._wire.send(COMMAND.COM_STMT_PREPARE, statement.encode())
        number, columns, expected = _ANSWER.unpack_from(self._wire.receive().get_all_data())
        for count in (expected, columns):
            for _ in range(count + 1 if count else 0):  # definitions, and the mark of their end
                self._wire.receive()
        self._numbers[statement] = number
        if expected != parameters:
            raise ValueError(f"{parameters} values for {expected} placeholders in {statement!r}")
        if len(self._numbers) > MAX_PREPARED:
            _, oldest = self._numbers.popitem(last=False)
            self._wire.send(COMMAND.COM_STMT_CLOSE, struct.pack("<I", oldest))  # has no answer
        return int(number)


def _parameters(values: Sequence[Value]) -> bytes:
    """No nulls, the types of *values*, and *values* themselves, as COM_STMT_EXECUTE has them."""
    nulls = bytes((len(values) + 7) // 8)
    types, encoded = zip(*map(_encoded, values), strict=True)
    return b"".join([nulls, b"\x01", *types, *itertools.chain.from_iterable(encoded)])


def _encoded(value: Value) -> tuple[bytes, tuple[bytes, ...]]:
    """The type of *value*, and its bytes in parts that need not be copied together."""
    if isinstance(value, int):
        is_large = value >= 1 << 63
        kind = bytes([FIELD_TYPE.LONGLONG, 0x80 if is_large else 0])
        return kind, ((_UNSIGNED if is_large else _NUMBER).pack(value),)
    data = value.encode() if isinstance(value, str) else value
    kind = bytes([FIELD_TYPE.VAR_STRING if isinstance(value, str) else FIELD_TYPE.BLOB, 0])
    return kind, (_length(len(data)), data)


def _length(size: int) -> bytes:
    """*size* as a length-encoded integer."""
    for mark, limit, width in ((b"", 251, 1), (b"\xfc", 1 << 16, 2), (b"\xfd", 1 << 24, 3)):
        if size < limit:
            return mark + size.to_bytes(width, "little")
    return b"\xfe" + size.to_bytes(8, "little")
