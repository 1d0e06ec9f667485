"""``millstream send`` and ``millstream receive``: messages through any RocketMQ 5 server, ours or Apache's."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import click

from millstream.cli.common import body_members, json_option, print_json
from millstream.cli.connection import connection_options
from millstream.cli.examples import example
from millstream.cli.logging_setup import INTERRUPTED, print_error
from millstream.cli.output import ends_with_reader
from millstream.cli.parameter_types import Seconds

if TYPE_CHECKING:
    from millstream.messaging.client import Message, Options, Producer, Receipt, Received, SimpleConsumer

_AT_ONCE = 256
_CHUNK = 1 << 16  # bytes

endpoint_option = click.option(
    "--broker",
    "endpoint",
    metavar="HOST:PORT",
    default="127.0.0.1:8081",
    show_default=True,
    help="Address of the broker, or of a proxy of Apache RocketMQ.",
)


@example("millstream send orders 'two pairs of boots' --tag shoes")
@click.command()
@click.argument("topic")
@click.argument("bodies", nargs=-1)
@click.option("--tag", default="", help="Tag of each message.")
@click.option("--key", "keys", multiple=True, help="Key of each message; repeatable: a message can have several.")
@click.option("--group", "message_group", default="", help="Message group; required for a FIFO topic.")
@click.option("--delay", type=Seconds(), help="Time until the delivery, such as 30s; for a DELAY topic.")
@json_option
@endpoint_option
@connection_options
def send(
    topic: str,
    bodies: tuple[str, ...],
    tag: str,
    keys: tuple[str, ...],
    message_group: str,
    delay: float | None,
    as_json: bool,
    endpoint: str,
    options: Options,
) -> int:
    """Send each of BODIES to TOPIC as a message; prints the id of each stored message.

    Without BODIES, each line of standard input that is not empty is a message. Lines that are available together are
    sent together; a single line is sent at once.
    """
    from millstream.messaging.client import Message, Producer

    due = None if delay is None else datetime.now(UTC) + timedelta(seconds=delay)

    def message(text: bytes) -> Message:
        return Message(topic, text, tag, keys, {}, message_group, due)

    producer = Producer(endpoint, [topic], options=options)
    try:
        asyncio.run(_send(producer, message, _given(bodies) if bodies else _ready_lines(), as_json))
    except KeyboardInterrupt:
        print_error("interrupted: the messages whose ids were printed are stored, those sent last may be")
        return INTERRUPTED
    return 0


@example("millstream receive orders --group billing --max 10")
@click.command()
@click.argument("topic")
@click.option("--group", required=True, help="The consumer group.")
@click.option(
    "--max",
    "count",
    type=click.IntRange(1),
    help="Maximum number of messages (default: all available; with --follow: no limit).",
)
@click.option("--follow", is_flag=True, help="Wait for new messages until interrupted.")
@click.option(
    "--filter", "expression", default="*", show_default=True, help="Only messages with these tags, such as: a || b"
)
@click.option("--sql", help="Only messages with these properties, such as: size > 3 (then --filter has no effect).")
@json_option
@endpoint_option
@connection_options
@ends_with_reader  # messages that nobody reads are not acknowledged
def receive(
    topic: str,
    group: str,
    count: int | None,
    follow: bool,
    expression: str,
    sql: str | None,
    as_json: bool,
    endpoint: str,
    options: Options,
) -> None:
    """Receive, print and acknowledge the messages of TOPIC that the consumer group has not processed.

    Prints the body of each message as a line; with --json, an object with the body, the id and the other fields.
    A message with a damaged body is neither printed nor acknowledged; then the exit code is 1.
    """
    from millstream.messaging.client import Filter, SimpleConsumer

    wanted = Filter(sql, "sql") if sql else Filter(expression)
    poll = 20.0 if follow else 1.0
    consumer = SimpleConsumer(endpoint, group, {topic: wanted}, await_duration=poll, options=options)
    asyncio.run(_receive(consumer, count, follow, as_json))


async def _send(
    producer: Producer, message: Callable[[bytes], Message], runs: AsyncIterator[Sequence[bytes]], as_json: bool
) -> None:
    from millstream.messaging.client import PartialFailureError, Receipt

    async with producer:
        async for texts in runs:
            for first in range(0, len(texts), _AT_ONCE):
                batch = [message(text) for text in texts[first : first + _AT_ONCE]]
                try:
                    _print_receipts(await producer.send_many(batch), as_json)
                except PartialFailureError as error:
                    _print_receipts([result for result in error.results if isinstance(result, Receipt)], as_json)
                    raise


def _print_receipts(receipts: Iterable[Receipt], as_json: bool) -> None:
    for receipt in receipts:
        if as_json:
            print_json({"message_id": receipt.message_id, "recall_handle": receipt.recall_handle})
        else:
            click.echo(receipt.message_id)


async def _receive(consumer: SimpleConsumer, count: int | None, follow: bool, as_json: bool) -> None:
    from millstream.messaging.errors import MessagingError

    damaged = 0
    async with consumer:
        left = count
        while left is None or left > 0:
            messages = await consumer.receive(min(left or _AT_ONCE, _AT_ONCE))
            if not messages and not follow:
                break
            sound = [message for message in messages if not message.is_corrupted]
            _print(sound, as_json)
            if sound:
                await consumer.ack(*sound)
            damaged += len(messages) - len(sound)
            for message in messages:
                if message.is_corrupted:
                    click.echo(f"message {message.message_id} has a damaged body: not acknowledged", err=True)
            left = None if left is None else left - len(messages)
    if damaged:
        raise MessagingError(
            f"{damaged:,} received messages have damaged bodies: send their contents again. The broker delivers these "
            "messages again, and moves them to the dead letters after the last attempt"
        )


def _print(messages: Sequence[Received], as_json: bool) -> None:
    for message in messages:
        if not as_json:
            sys.stdout.buffer.write(message.body + b"\n")
            continue
        facts = {"message_id": message.message_id, "topic": message.topic, "attempt": message.attempt}
        text = {"tag": message.tag, "keys": message.keys}
        print_json(
            {
                **facts,
                **body_members(message.body),
                **text,
                "properties": message.properties,
                "message_group": message.message_group,
            }
        )
    sys.stdout.buffer.flush()


async def _given(bodies: Sequence[str]) -> AsyncIterator[Sequence[bytes]]:
    yield [body.encode() for body in bodies]


async def _ready_lines(handle: int | None = None) -> AsyncIterator[Sequence[bytes]]:
    """All complete lines that are available at *handle* (default: standard input), without their ends and empty ones.

    The event loop goes on while nothing is available, so that heartbeats are sent, and Ctrl-C ends the wait.
    """
    handle, rest = sys.stdin.fileno() if handle is None else handle, b""
    while chunk := await _read(handle):
        first, *more = chunk.split(b"\n")
        rest += first
        if more:
            lines, rest = [rest, *more[:-1]], more[-1]
            yield [line for line in lines if line]
    if rest:
        yield [rest]


async def _read(handle: int) -> bytes:
    """The bytes that are available at *handle*, as soon as there are some; empty at the end."""
    loop, is_ready = asyncio.get_running_loop(), asyncio.Event()
    try:
        loop.add_reader(handle, is_ready.set)
    except PermissionError:  # epoll takes no regular files, which are always ready
        return os.read(handle, _CHUNK)
    try:
        await is_ready.wait()
        return os.read(handle, _CHUNK)
    finally:
        loop.remove_reader(handle)
