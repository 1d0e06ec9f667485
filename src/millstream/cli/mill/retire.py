"""``millstream mill retire``: the records of a store that was removed from the settings."""

from __future__ import annotations

import click
import msgspec

from millstream.cli.change_log import record_change
from millstream.cli.common import data_options, echo_line, json_option, print_json
from millstream.cli.examples import example
from millstream.cli.mill.audit import process_audits
from millstream.core.amounts import counted, size_text
from millstream.core.shown_commands import arguments
from millstream.mill.retirement import StoreRecords, StoreRetirement, require_copies
from millstream.node import Node
from millstream.node.databases import lacks_database_file
from millstream.settings import Settings


@example("millstream mill retire third --yes")
@click.command()
@click.argument("store")
@click.option("--yes", is_flag=True, help="Retire the records; without it, they are only counted.")
@click.option(
    "--last-copies", is_flag=True, help="With --yes: even if items have no other copy that is recorded as good."
)
@click.option(
    "--writers-stopped",
    is_flag=True,
    help="With --yes: even if this machine cannot check whether the processes that began unfinished changes of STORE "
    "have ended; make sure that they have.",
)
@data_options
@json_option
def retire(
    settings: Settings, store: str, *, yes: bool, last_copies: bool, writers_stopped: bool, as_json: bool
) -> None:
    """Retire the records of STORE, which was removed from the settings for good.

    Without --yes, the command only shows what is recorded. With it, the manifest no longer lists the items of STORE,
    held plans between STORE and other stores are withdrawn, and checks no longer report STORE. Changes of STORE of
    which it is not known whether they happened are ended, without events in the audit log; the processes that began
    them must have ended. Nothing is changed in any store, and copies in other stores are kept. Reports and the
    audit log are kept.

    STORE must not be in the settings or in a policy. Restart the processes of the node after you removed it there.
    """
    with Node.open(settings, reads=not yes and lacks_database_file(settings)) as node:
        process_audits(node)
        retirement = StoreRetirement(
            node.stores.manifest,
            node.stores.statistics,
            node.stores.change_guard,
            settings.store_urls,
            node.policies.current,
            outbox=node.stores.outbox,
        )
        found = retirement.find(store)
        if yes:
            if not last_copies:
                require_copies(found)
            retirement.changes_to_end(store, writers_stopped=writers_stopped)  # raises before anything is recorded
            facts = msgspec.to_builtins(found)
            facts = {
                name: facts[name] for name in ("spaces", "items", "bytes", "deletions", "last_copies", "open_changes")
            }
            facts |= {"writers_stopped": writers_stopped, "unknown_writers": list(found.unknown_writers)}
            record_change(node, "retire", f"store {store}", **facts)
            retirement.retire(found, node.clock, writers_stopped=writers_stopped)
    if as_json:
        print_json({**msgspec.to_builtins(found), "retired": yes})
    else:
        _print(found, retired=yes)


def _print(found: StoreRecords, *, retired: bool) -> None:
    spaces = f"{counted(found.items, 'item')} ({size_text(found.bytes)}) in {counted(len(found.spaces), 'space')}"
    deletions = f", {counted(found.deletions, 'recorded deletion')}" if found.deletions else ""
    click.echo(f"{found.store}: {spaces}{deletions}{' retired' if retired else ''}")
    if found.open_changes:
        changes = counted(found.open_changes, "change")
        ending = "ended: the audit log has no events of them" if retired else "will be ended without events"
        click.echo(f"{changes} of which it is not known whether they happened {ending}", err=True)
    if found.unknown_writers and not retired:
        processes = ", ".join(found.unknown_writers)
        echo_line(f"make sure that these processes have ended, which this machine cannot check: {processes}", err=True)
    if found.last_copies:
        click.echo(f"{counted(found.last_copies, 'item')} without another copy that is recorded as good:", err=True)
        for name in found.named:
            echo_line(f"  {name}", err=True)
        if found.last_copies > len(found.named):
            click.echo(f"  and {found.last_copies - len(found.named):,} more", err=True)
    if not retired:
        options = "--yes" + " --last-copies" * bool(found.last_copies)
        options += " --writers-stopped" * bool(found.unknown_writers)
        command = f"`millstream mill retire {arguments(found.store, options=options)}`"
        click.echo(f"nothing was changed; {command} retires these records")
