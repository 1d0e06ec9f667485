"""``millstream topic`` and ``millstream group``: topics and consumer groups of a broker, running or not."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from millstream.cli.command_group import SummaryGroup
from millstream.cli.common import json_option, print_json, store_options
from millstream.cli.connection import administration_options
from millstream.cli.examples import example
from millstream.cli.parameter_types import Timestamp
from millstream.core.address import parse_address
from millstream.core.amounts import counted, format_duration, parse_duration
from millstream.core.clock import SystemClock
from millstream.core.errors import InputError
from millstream.core.private_files import make_private_folder
from millstream.log import LogStore, WriterBusyError
from millstream.messaging.admin_client import AskBroker, call_broker, call_store
from millstream.messaging.broker.admin import (
    CONFIGURE_GROUP,
    CREATE_TOPIC,
    DROP_TOPIC,
    GROUP_SPECS,
    GROUPS,
    RESET_OFFSET,
    TOPICS,
    AdminCall,
    AdminChange,
    GroupConfigRequest,
    GroupInfo,
    OffsetResetRequest,
    TopicInfo,
)
from millstream.messaging.broker.limits import GroupSpec, limits_of
from millstream.messaging.broker.storage.topic import TYPES, TopicSpec
from millstream.settings import Settings
from millstream.stores.tiers import open_log_store

if TYPE_CHECKING:
    from millstream.messaging.client import Options
    from millstream.rest.broker_client import BrokerClient

Command = TypeVar("Command", bound=Callable[..., Any])
Request = TypeVar("Request")
Result = TypeVar("Result")


def broker_options(command: Command) -> Command:
    """Give *command* ``--broker``, ``--url`` and the data options; its first argument is a client of the broker."""

    @click.option(
        "--broker",
        "endpoint",
        metavar="HOST:PORT",
        help="Address of a running broker (default, without --url: use the data folder).",
    )
    @administration_options
    @store_options
    @functools.wraps(command)
    def with_broker(
        settings: Settings,
        *args: Any,
        endpoint: str | None,
        options: Options,
        node: BrokerClient | None,
        **kwargs: Any,
    ) -> Any:
        return command(node or functools.partial(_ask, settings, endpoint, options), *args, **kwargs)

    return with_broker  # type: ignore[return-value]


@click.group(cls=SummaryGroup)
def topic() -> None:
    """Create, show and delete the topics of a broker.

    With --url the command calls the node in which the broker runs, with --broker the broker itself. Without both, it
    works on the data folder, where no broker may run.
    """


@example("millstream topic create orders --type FIFO")
@topic.command()
@click.argument("name")
@click.option("--type", "kind", type=click.Choice(TYPES), default="NORMAL", show_default=True, help="Message type.")
@click.option(
    "--queues",
    type=click.IntRange(1, 256),
    default=4,
    show_default=True,
    help="Number of queues; cannot be reduced later.",
)
@json_option
@broker_options
def create(ask: AskBroker, name: str, kind: str, queues: int, as_json: bool) -> None:
    """Create the topic NAME if it does not exist. Its messages are the log NAME."""
    found = ask(CREATE_TOPIC, TopicSpec(name, kind, queues))
    _print_topics([found], as_json)


@example("millstream topic list --json")
@topic.command("list")
@json_option
@broker_options
def list_topics(ask: AskBroker, as_json: bool) -> None:
    """List all topics."""
    _print_topics(ask(TOPICS, ""), as_json)


@example("millstream topic describe orders")
@topic.command()
@click.argument("name")
@json_option
@broker_options
def describe(ask: AskBroker, name: str, as_json: bool) -> None:
    """Show the status of the topic NAME and of its groups."""
    topics = ask(TOPICS, name)
    _print_topics(topics, as_json)
    for each in topics:
        if not as_json:
            click.echo(f"messages {each.first:,} to {each.messages:,}; {each.held:,} held back")
        standings = [found for member in each.groups for found in ask(GROUPS, member)]
        _print_groups([found for found in standings if found.topic == name], as_json)


@example("millstream topic delete orders")
@topic.command()
@click.argument("name")
@broker_options
def delete(ask: AskBroker, name: str) -> None:
    """Delete the topic NAME, the positions of its groups, its delayed messages and its open transactions.

    Its messages stay in the log NAME.
    """
    ask(DROP_TOPIC, name)
    click.echo(f"topic {name} is deleted; its log stays")


@click.group(cls=SummaryGroup)
def group() -> None:
    """Show consumer groups, and set their positions and limits."""


@example("millstream group list")
@group.command("list")
@json_option
@broker_options
def list_groups(ask: AskBroker, as_json: bool) -> None:
    """List all groups, a line for each of their topics."""
    _print_groups(ask(GROUPS, ""), as_json)


@example("millstream group describe billing")
@group.command("describe")
@click.argument("name")
@json_option
@broker_options
def describe_group(ask: AskBroker, name: str, as_json: bool) -> None:
    """Show the status of the group NAME, its topics and its delivery limits."""
    groups = ask(GROUPS, name)
    _print_groups(groups, as_json)
    if not groups:  # it has rules of its own, and has consumed nothing yet
        _print_rules(ask(GROUP_SPECS, name), as_json)
    elif not as_json:
        _print_rules([GroupSpec(name, groups[0].max_attempts, groups[0].backoff)], as_json)


@example("millstream group configure billing --max-attempts 5 --backoff 1s,10s,1m")
@group.command()
@click.argument("name")
@click.option(
    "--max-attempts",
    type=click.IntRange(1, 1000),
    help="Maximum deliveries of a message; after the last one it is a dead letter of the group.",
)
@click.option("--backoff", metavar="TIMES", help="Pauses between deliveries, such as 1s,10s,1m; the last one repeats.")
@click.option("--defaults", is_flag=True, help="Use the broker's settings for limits whose option is omitted.")
@json_option
@broker_options
def configure(
    ask: AskBroker, name: str, max_attempts: int | None, backoff: str | None, defaults: bool, as_json: bool
) -> None:
    """Set the delivery limits of the group NAME: attempts, and pauses between deliveries.

    Give at least one option. A limit whose option is omitted does not change, except with --defaults. Connected
    consumers are notified at once.
    """
    if max_attempts is None and backoff is None and not defaults:
        raise click.UsageError("nothing to change was given: give --max-attempts N, --backoff TIMES or --defaults")
    try:
        pauses = None if backoff is None else tuple(parse_duration(each) for each in backoff.split(","))
    except ValueError as error:
        raise click.UsageError(f"--backoff: {error}") from error
    change = GroupConfigRequest(name, max_attempts, pauses, defaults)
    _print_rules([ask(CONFIGURE_GROUP, change)], as_json)


@example("millstream group reset billing --topic orders --time 1795305600000000")
@group.command()
@click.argument("name")
@click.option("--topic", "topic_name", required=True, help="Topic of the messages.")
@click.option("--to", "next_id", type=click.IntRange(1), help="Id of the next message.")
@click.option(
    "--time",
    "time",
    type=Timestamp(),
    help="Start at messages stored at or after this time: 2026-11-24T12:00Z, or microseconds since the epoch.",
)
@json_option
@broker_options
def reset(ask: AskBroker, name: str, topic_name: str, next_id: int | None, time: int | None, as_json: bool) -> None:
    """Set the position of the group NAME to a message or a time: earlier messages count as processed, later ones do
    not.

    Give either --to or --time.
    """
    if (next_id is None) == (time is None):
        raise click.UsageError("give exactly one of --to ID and --time T")
    _print_groups([ask(RESET_OFFSET, OffsetResetRequest(name, topic_name, next_id, time))], as_json)


def _ask(
    settings: Settings, endpoint: str | None, options: Options, call: AdminCall[Request, Result], request: Request
) -> Result:
    if endpoint:
        return call_broker(parse_address(endpoint), call, request, options)
    if settings.log_url.startswith("memory:"):
        raise InputError(
            "the log store memory: is lost when this command ends: name the running broker with --broker HOST:PORT, or "
            "set log.store to a durable store"
        )
    changes = call.method == "POST"
    if changes:
        from millstream.cli.change_log import require_audit_log

        if not settings.log.store:
            make_private_folder(settings.folder)
        require_audit_log(settings)

    def record(change: AdminChange) -> None:
        from millstream.cli.change_log import record_change_if_node

        record_change_if_node(settings, change.action, change.target, **change.facts)

    try:
        with _open_store(settings, changes=changes) as store:
            return call_store(store, call, request, limits=limits_of(settings.broker), record=record)
    except WriterBusyError as error:
        raise WriterBusyError(
            f"the topics in the log store are in use by a running broker: use --broker HOST:PORT or --url URL ({error})"
        ) from error


def _open_store(settings: Settings, *, changes: bool) -> LogStore:
    if not changes:
        from millstream.node.logs import open_to_read

        return open_to_read(settings, SystemClock(), read_only=False)
    return open_log_store(settings.log_url)


def _print_rules(groups: list[GroupSpec], as_json: bool) -> None:
    for each in groups:
        if as_json:
            print_json(each)
            continue
        pauses = ", ".join(map(format_duration, each.backoff))
        click.echo(f"{each.name}  dead after {each.max_attempts:,} attempts; waits {pauses}")


def _print_topics(topics: list[TopicInfo], as_json: bool) -> None:
    for each in topics:
        if as_json:
            print_json(each)
            continue
        groups = ", ".join(each.groups) or "no group"
        click.echo(
            f"{each.name}  {each.type}  {counted(each.queues, 'queue')}  {counted(each.messages, 'message')}  {groups}"
        )


def _print_groups(groups: list[GroupInfo], as_json: bool) -> None:
    for each in groups:
        if as_json:
            print_json(each)
            continue
        state = f"lag {each.lag:,}, {each.in_flight:,} in flight, all done up to {each.done:,}"
        click.echo(f"{each.group}  {each.topic}  {state}, {counted(each.consumers, 'consumer')}")
