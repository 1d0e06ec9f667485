"""``millstream mill audit`` and ``reconcile``: show the changes of audited stores."""

from __future__ import annotations

import click

from millstream.cli.change_log import record_change
from millstream.cli.common import data_options, echo_line, json_option, print_json
from millstream.cli.examples import example
from millstream.cli.mill.space_options import chosen_spaces
from millstream.cli.open_changes import print_open_changes
from millstream.core.amounts import counted
from millstream.mill.audit.audit_log import tsv_lines
from millstream.mill.audit.reconciliation import MissingEvent, missing_events
from millstream.mill.tasks import QueueName
from millstream.node import Node
from millstream.node.databases import lacks_database_file
from millstream.settings import Settings
from millstream.stores import StoreError
from millstream.stores.audit import AuditedStore


@example("millstream mill audit primary photos")
@click.command()
@click.argument("store", required=False)
@click.argument("space", required=False)
@click.argument("content_id", required=False)
@click.option(
    "--recover",
    is_flag=True,
    help="First settle unfinished changes of terminated processes on other machines or in containers. Stop all "
    "processes that write to the stores before.",
)
@data_options
@json_option
def audit(
    settings: Settings, store: str | None, space: str | None, content_id: str | None, recover: bool, as_json: bool
) -> int:
    """Print the audit log of all audited stores, or of one, as a text table.

    STORE, SPACE and CONTENT_ID limit it to the changes of a store, a space, or an item. Pending changes are processed
    first, and duplicated (see `millstream mill work`). Exit code 1 if it is not known of a change whether it happened,
    with a line that says what to do, or if --recover could not reach a store; 3 if STORE is unknown.
    """
    unavailable = False
    with Node.open(settings, reads=not recover and lacks_database_file(settings)) as node:
        if store is not None and all(name != store for name, _ in node.mill.audit.log.spaces()):
            node.stores.providers.require(store)  # of a store that was removed there is only history
        if recover:
            unavailable = _recover(node)
            record_change(node, "recover audit", "open changes of all stores")
        process_audits(node)
        events = node.mill.audit.log.events(store, space, content_id)
        if as_json:
            for event in events:
                print_json(event)
        else:
            for line in tsv_lines(events):
                click.echo(line, nl=False)
        return 1 if print_open_changes(node, store, space) or unavailable else 0


def _recover(node: Node) -> bool:
    """Settle the open changes of all audited stores; whether a store did not answer."""
    unavailable = False
    for name, provider in node.stores.providers.items():
        if not isinstance(provider, AuditedStore):
            continue
        try:
            if settled := provider.recover():
                click.echo(f"{name}: {counted(settled, 'open change')} settled", err=True)
        except StoreError as error:
            echo_line(f"{name}: {error}", err=True)
            unavailable = True
    return unavailable


@example("millstream mill reconcile primary")
@click.command()
@click.argument("store", required=False)
@click.argument("space", required=False)
@data_options
@json_option
def reconcile(settings: Settings, store: str | None, space: str | None, as_json: bool) -> int:
    """Compare the listings of audited stores with the audit log, and list every missing event.

    Exit code 1 if an event is missing (the store was changed without the audit), if a store is unavailable, if an item
    cannot be compared, or if it is not known of a change whether it happened.
    """
    found, unlisted = 0, list[str]()
    with Node.open(settings, reads=lacks_database_file(settings)) as node:
        process_audits(node)
        for where in chosen_spaces(node, store, space, known=node.mill.audit.log.spaces(), unlisted=unlisted):
            if where[0] in unlisted or not isinstance(node.stores.providers[where[0]], AuditedStore):
                continue
            try:
                found += _reconcile_space(node, *where, as_json)
            except StoreError as error:
                unlisted.append(where[0])
                echo_line(f"{where[0]}/{where[1]}: {error}", err=True)
        left = print_open_changes(node, store, space)
    return 1 if found or unlisted or left else 0


def _reconcile_space(node: Node, store: str, space: str, as_json: bool) -> int:
    """Print the differences of a space; how many there are."""
    found = 0
    for one in missing_events(node.stores.providers, node.mill.audit.log, node.stores.outbox, store, space):
        found += 1
        if as_json:
            print_json(one)
        else:
            what = f"no {one.action.value}" if isinstance(one, MissingEvent) else "not compared"
            echo_line(f"{store}/{space}/{one.content_id}: {what}: {one.reason}")
    return found


def process_audits(node: Node) -> None:
    """Let workers process the pending changes of audited stores, including those of terminated processes.

    A node without a database has none, and may be only read.
    """
    if lacks_database_file(node.settings):
        return
    _ = node.stores.providers
    if node.stores.outbox.events(limit=1) or node.queues.open(QueueName.AUDIT).depth().open:
        node.mill.workers(QueueName.AUDIT).run_until_drained()
