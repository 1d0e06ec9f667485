"""An MQTT broker that answers by a script."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Mapping

CONNECT, PUBACK, SUBSCRIBE, UNSUBSCRIBE = 1, 4, 8, 10

Answer = Callable[[bytes], bytes]
"""What is sent for a packet, of which the first bytes (the identifier of a request) are given."""


class ScriptedBroker:
    """A broker on loopback that answers by the *script*: for each connection, an answer for each kind of packet.

    It closes the connection at a packet without an answer.
    """

    def __init__(self, script: list[Mapping[int, Answer]]) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"mqtt://127.0.0.1:{self._server.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, args=(script,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.close()
        self._thread.join(10)

    def _serve(self, script: list[Mapping[int, Answer]]) -> None:
        for answers in script:
            connection, _ = self._server.accept()
            with connection, connection.makefile("rb") as packets:
                while head := packets.read(1):
                    body = packets.read(_length(packets.read(1), packets.read))
                    if head[0] >> 4 not in answers:
                        break
                    connection.sendall(answers[head[0] >> 4](body[:2]))


def _length(first: bytes, read: Callable[[int], bytes]) -> int:
    length, shift, byte = first[0] & 127, 7, first[0]
    while byte & 128:
        byte = read(1)[0]
        length, shift = length | (byte & 127) << shift, shift + 7
    return length


def packet(head: int, body: bytes) -> bytes:
    return bytes([head, len(body)]) + body


def welcome(*then: bytes, kept: bool = True) -> Answer:
    return lambda _: packet(0x20, bytes([kept, 0, 0])) + b"".join(then)


def message(identifier: int, qos: int, *, again: bool = False, payload: bytes = b"x") -> bytes:
    body = b"\x00\x03a/b" + (struct.pack("!H", identifier) if qos else b"") + b"\x00" + payload
    return packet(0x30 | qos << 1 | again << 3, body)


def granted(code: int) -> Answer:
    return lambda identifier: packet(0x90, identifier + bytes([0, code]))


def ended(code: int) -> Answer:
    return lambda identifier: packet(0xB0, identifier + bytes([0, code]))
