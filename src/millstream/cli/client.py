"""``millstream client``: the clients that are connected to a running broker."""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from millstream.cli.command_group import SummaryGroup
from millstream.cli.common import echo_line, json_option, print_json
from millstream.cli.connection import administration_options
from millstream.cli.examples import example
from millstream.core.address import parse_address
from millstream.core.clock import MICROSECONDS
from millstream.messaging.admin_client import AskBroker, call_broker
from millstream.messaging.broker.admin import (
    CLIENTS,
    STACK_TRACE,
    VERIFY,
    AdminCall,
    VerificationRequest,
)

if TYPE_CHECKING:
    from millstream.messaging.client import Options
    from millstream.rest.broker_client import BrokerClient

Request = TypeVar("Request")
Result = TypeVar("Result")
Command = TypeVar("Command", bound=Callable[..., Any])

_DEFAULT_BROKER = "127.0.0.1:8081"


def endpoint_options(command: Command) -> Command:
    """Give *command* the options to reach a running broker; its first argument is a client of that broker."""

    @click.option(
        "--broker",
        "endpoint",
        metavar="HOST:PORT",
        help=f"Address of the broker (default, without --url: {_DEFAULT_BROKER}).",
    )
    @administration_options
    @functools.wraps(command)
    def with_broker(
        *args: Any, endpoint: str | None, options: Options, node: BrokerClient | None, **kwargs: Any
    ) -> Any:
        def ask(call: AdminCall[Request, Result], request: Request) -> Result:
            return call_broker(parse_address(endpoint or _DEFAULT_BROKER), call, request, options)

        return command(node or ask, *args, **kwargs)

    return with_broker  # type: ignore[return-value]


@click.group(cls=SummaryGroup)
def client() -> None:
    """List and inspect the clients that are connected to a running broker."""


@example("millstream client list --group billing")
@client.command("list")
@click.option("--group", default="", help="Only the consumers of this group.")
@json_option
@endpoint_options
def list_clients(ask: AskBroker, group: str, as_json: bool) -> None:
    """List all clients, with their kind and the time of their last contact."""
    for each in ask(CLIENTS, group):
        if as_json:
            print_json(each)
            continue
        seen = datetime.fromtimestamp(each.seen_at / MICROSECONDS, UTC).isoformat(" ", "seconds")
        what = f"{each.kind} of {each.group}" if each.group else each.kind
        topics = ", ".join(each.topics) or "no topic"
        echo_line(f"{each.client_id}  {what}  {topics}  seen {seen}{'' if each.is_connected else ', no stream'}")


@example("millstream client stack billing-7f3a@host")
@client.command()
@click.argument("client_id")
@endpoint_options
def stack(ask: AskBroker, client_id: str) -> None:
    """Print the thread stacks of the client CLIENT_ID.

    `millstream client list` prints the ids.
    """
    for line in ask(STACK_TRACE, client_id).splitlines():
        echo_line(line)


@example("millstream client verify billing-7f3a@host orders 42")
@client.command()
@click.argument("client_id")
@click.argument("topic")
@click.argument("message", type=click.IntRange(1))
@json_option
@endpoint_options
def verify(ask: AskBroker, client_id: str, topic: str, message: int, as_json: bool) -> None:
    """Let the push consumer CLIENT_ID handle the message MESSAGE of TOPIC once, and print the result.

    MESSAGE is the id of the message in the log of TOPIC. The position of the group does not change. Exit code 0 if the
    consumer accepted the message, 1 otherwise.
    """
    found = ask(VERIFY, VerificationRequest(client_id, topic, message))
    if as_json:
        print_json(found)
    else:
        echo_line(f"{found.status}{': ' if found.text else ''}{found.text}")
    if found.status != "OK":
        raise click.exceptions.Exit(1)
