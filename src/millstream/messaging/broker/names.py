"""Names of topics and groups within namespaces, and receipt and recall handles: opaque to clients.

Commands without the packages of messaging know these names too: the protocol is imported where a handle is refused.
"""

from __future__ import annotations

import base64
import binascii
import itertools
from typing import TYPE_CHECKING, Any

from millstream.messaging.errors import StatusError

if TYPE_CHECKING:
    from millstream.messaging.protocol import v2

DEAD_LETTERS = "%DLQ%"

_LONG_RUN = 16  # handles; the average from which on they are read as runs


def full_name(resource: v2.Resource, namespace: str = "") -> str:
    """The name of *resource* in this broker; *namespace* is that of the call, where the resource has none."""
    space = resource.resource_namespace or namespace
    return f"{space}%{resource.name}" if space else resource.name


def split_name(name: str) -> tuple[str, str]:
    """The namespace (empty: none) and the name within it, of a full name."""
    space, mark, rest = name.partition("%")
    return (space, rest) if space and mark else ("", name)


def dead_letter_topic(group: str) -> str:
    """The topic of the messages that *group* gave up. A group may have ``|`` in its name, which no topic's has."""
    return DEAD_LETTERS + group.replace("|", "%7C")


def enum_name(enum: Any, number: int) -> str:
    """The name of *number* in an enumeration of the protocol; clients may send numbers that it does not have."""
    return str(enum.Name(number)) if number in enum.values() else f"number {number}"


def write_handle(number: int, token: int) -> str:
    """The receipt handle of message *number* lent under *token*."""
    return f"1.{number:016x}.{token:x}"


def write_handles(first: int, count: int, token: int) -> bytes:
    """The receipt handles of *count* messages from *first* on, all lent under *token*, one after the other."""
    import numpy as np

    begin, end = b"1.", b".%x" % token
    numbers = np.arange(first, first + count, dtype=np.uint64).astype(">u8")
    table = np.empty((count, len(begin) + 16 + len(end)), np.uint8)
    table[:, :2] = np.frombuffer(begin, np.uint8)
    table[:, 2:18] = np.frombuffer(numbers.tobytes().hex().encode(), np.uint8).reshape(count, 16)
    table[:, 18:] = np.frombuffer(end, np.uint8)
    return table.tobytes()


def read_handle(handle: str) -> tuple[int, int]:
    """Number and token of a receipt handle. Raises INVALID_RECEIPT_HANDLE."""
    try:
        version, number, token = handle.split(".", 2)
        if version != "1" or len(handle) > 40:
            raise ValueError(handle[:40])
        return int(number, 16), int(token, 16)
    except ValueError as error:
        from millstream.messaging.protocol import v2

        raise StatusError(
            v2.INVALID_RECEIPT_HANDLE, "invalid receipt handle: this handle was not issued by this broker"
        ) from error


def read_handles(data: bytes, count: int) -> list[tuple[int, int, int]] | None:
    """The *count* receipt handles of one length in *data*, as runs: the first message, the last one, and the token.

    None where they are few, or not mostly those of messages that follow one another under one token; to read them one
    by one takes less time then.
    """
    if count < _LONG_RUN:
        return None
    import numpy as np

    table = np.frombuffer(data, np.uint8).reshape(count, -1)
    try:
        numbers = np.frombuffer(bytes.fromhex(table[:, 2:18].tobytes().decode()), ">u8")
        if len(numbers) != count:
            return None
        is_next = (numbers[1:] == numbers[:-1] + 1) & (table[1:, 18:] == table[:-1, 18:]).all(axis=1)
        begins = [0, *(np.flatnonzero(~is_next) + 1).tolist()]
        if len(begins) > count // _LONG_RUN:
            return None
        runs = []
        for begin, end in itertools.pairwise([*begins, count]):
            number, token = read_handle(table[begin].tobytes().decode())
            runs.append((number, number + end - begin - 1, token))
    except (ValueError, StatusError):
        return None
    is_whole = data == b"".join(write_handles(first, last - first + 1, token) for first, last, token in runs)
    return runs if is_whole else None


def write_recall(number: int, message_id: str) -> str:
    """The handle by which the held message *number* can be called back."""
    return base64.urlsafe_b64encode(f"1 {number} {message_id}".encode()).decode()


def read_recall(handle: str) -> tuple[int, str]:
    """Number and message id of a recall handle. Raises BAD_REQUEST."""
    try:
        version, number, message_id = base64.urlsafe_b64decode(handle[:1000].encode()).decode().split(" ", 2)
        if version != "1":
            raise ValueError(version[:10])
        return int(number), message_id
    except (ValueError, binascii.Error) as error:
        from millstream.messaging.protocol import v2

        raise StatusError(v2.BAD_REQUEST, "invalid recall handle: this handle was not issued by this broker") from error


def write_transaction(number: int, message_id: str) -> str:
    """The id of the transaction whose half message is held under *number*."""
    return f"{number:x}-{message_id}"


def read_transaction(transaction_id: str) -> int:
    """The number of a transaction's half message. Raises INVALID_TRANSACTION_ID."""
    try:
        return int(transaction_id.partition("-")[0], 16)
    except ValueError as error:
        from millstream.messaging.protocol import v2

        raise StatusError(
            v2.INVALID_TRANSACTION_ID, "invalid transaction id: this id was not issued by this broker"
        ) from error
