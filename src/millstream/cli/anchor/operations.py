"""``millstream anchor submit`` and ``millstream anchor serve``: operations on identifiers, from files and over HTTP."""

from __future__ import annotations

import itertools
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import click

from millstream.anchoring.registry import OperationStatus, SubmissionResult
from millstream.anchoring.states import state_word
from millstream.cli.change_log import prepare_audit_log, record_change
from millstream.cli.common import data_options, echo_line, json_option, log_options, print_json
from millstream.cli.examples import example
from millstream.core.address import parse_address
from millstream.core.settings import seconds
from millstream.node import Node
from millstream.settings import Settings

BULK = 5_000
LINE_BYTES = 100_000


@example("millstream anchor submit operations.jsonl")
@click.command()
@click.argument("operations", type=click.File("rb"), metavar="FILE")
@json_option
@data_options
def submit(settings: Settings, operations: BinaryIO, as_json: bool) -> None:
    """Submit the operations on identifiers in FILE, one JSON object per line ("-" for standard input).

    Valid operations are durable when the command ends; invalid ones are listed with line and reason. Exit code 1 if an
    operation was refused. --json prints the outcome of each, in order.
    """
    taken = refused = 0
    lines = _lines(operations)
    with Node.open(settings, create=True) as node:
        registry = node.registry.instance
        while batch := list(itertools.islice(lines, BULK)):
            outcomes = registry.acceptance.submit_many([line for _, line in batch])
            for (number, _), outcome in zip(batch, outcomes, strict=True):
                _report(f"{operations.name}:{number}", outcome, as_json=as_json)
                taken, refused = taken + (outcome.status is not None), refused + (outcome.status is None)
    if not as_json:
        print(f"operations: {taken:,} accepted, {refused:,} refused")
    if refused:
        raise click.exceptions.Exit(1)


@example("millstream anchor serve --http 127.0.0.1:8080")
@click.command()
@click.option(
    "--http",
    "address",
    default="127.0.0.1:8480",
    show_default=True,
    metavar="HOST:PORT",
    help="Address of the HTTP interface.",
)
@data_options
@log_options
def serve(settings: Settings, address: str) -> None:
    """Run a registry of identifiers: accept operations over HTTP and anchor them, until SIGTERM.

    It has no users or passwords: let it listen on loopback, behind a proxy that authorizes writers. If the settings
    name a ledger to follow (registry.follow), it follows that ledger and accepts no operations.
    """
    from millstream.cli.anchor.observe import following
    from millstream.core.interpreter import collect_for_requests, switch_threads_often
    from millstream.rest.registry_app import registry_app
    from millstream.rest.server import serve_app

    place = parse_address(address)
    switch_threads_often()
    with Node.open(settings, create=True) as node, following(node), node.registry.instance as registry:
        registry.start()
        app = registry_app(registry, database_timeout=seconds(settings.http.database_timeout))
        collect_for_requests()
        serve_app(app, place.host, place.port, settings.http)


@example("millstream anchor redrive")
@click.command()
@click.argument("operations", nargs=-1, metavar="[OPERATION_IDS]...")
@data_options
def redrive(settings: Settings, operations: Sequence[str]) -> None:
    """Retry the dead operations with the ids OPERATION_IDS, or without ids all dead operations.

    A dead operation on an identifier is one whose retries all failed. Its retry count starts again at zero. Ids of
    other operations are ignored; `millstream anchor status DID` prints the ids.
    """
    with Node.open(settings) as node:
        prepare_audit_log(node)
        count = node.registry.instance.store.redrive(list(operations) or None)
        record_change(node, "redrive", "operations on identifiers", operations=count)
    print(f"operations to retry: {count:,}")


def print_status(status: OperationStatus, *, as_json: bool) -> None:
    """Print the state of one operation."""
    if as_json:
        print_json(status)
        return
    place = f", anchor {status.anchor} at {status.index}" if status.anchor is not None else ""
    effect = f", {status.effect}" if status.effect else ""
    reason = f": {status.reason}" if status.reason else ""
    echo_line(f"{status.id}  {status.type} of {status.suffix}  {state_word(status.state)}{place}{effect}{reason}")


def _lines(source: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """The lines of *source* that are not empty, with their numbers; a line that is too long is cut off."""
    for number in itertools.count(1):
        line = part = source.readline(LINE_BYTES)
        if not line:
            return
        line = line.removeprefix(BOM_UTF8) if number == 1 else line
        while part and not part.endswith(b"\n"):
            part = source.readline(LINE_BYTES)
        if line.strip():
            yield number, line.strip()


def _report(where: str, outcome: SubmissionResult, *, as_json: bool) -> None:
    if as_json:
        print_json(outcome.status or {"code": outcome.code, "message": outcome.error})
    elif outcome.status is None:
        echo_line(f"{where}: {outcome.error}", err=True)
