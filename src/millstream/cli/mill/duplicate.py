"""``millstream mill duplicate`` and ``forget``: copy by policy."""

from __future__ import annotations

from collections.abc import Sequence

import click

from millstream.cli.change_log import record_change
from millstream.cli.common import data_options, json_option, print_json
from millstream.cli.examples import example
from millstream.cli.mill.plan_printing import HELD, print_plan
from millstream.cli.mill.policy_rounds import listed_rounds, print_failed_plan
from millstream.cli.mill.processes_option import processes_option
from millstream.cli.mill.space_options import asked_spaces, require_space
from millstream.cli.progress import progress_bar
from millstream.cli.protect_parts import adoption_target, alone_on_adopted
from millstream.cli.queue_draining import drain_queues, print_tally
from millstream.core.errors import NotFoundError
from millstream.mill.adoption.adopted_store import find_adopted_store
from millstream.mill.adoption.deletions import forget_vanished
from millstream.mill.duplication.planning import plan_space_duplication
from millstream.mill.tasks import QueueName
from millstream.mill.tombstones import record_deletions
from millstream.node import Node
from millstream.settings import Settings
from millstream.stores import StoreError


@example("millstream mill duplicate --space photos --dry-run")
@click.command()
@click.option("--space", metavar="SPACE", help="Only this space.")
@click.option("--all", "everything", is_flag=True, help="Compare every item, not only those that seem to differ.")
@click.option("--dry-run", is_flag=True, help="Show the plans; change nothing.")
@data_options
@processes_option
@json_option
def duplicate(settings: Settings, space: str | None, everything: bool, dry_run: bool, as_json: bool) -> int:
    """Copy by policy until all copies are up to date.

    The plan of a space that would delete or replace too much is held as a whole (see `millstream mill approve`). A
    store or space that cannot be listed does not block the others. Exit code 1 if a task failed for good or a listing
    failed, 3 if SPACE is unknown, 5 if the plan of a space is held, or with --dry-run would be.
    """
    dead = held = 0
    with Node.open(settings, reads=dry_run) as node:
        if space is not None:
            require_space(node, space)
        rounds, failed = listed_rounds(node, space)
        for pairs in rounds:
            queue = None if dry_run else node.queues.open(QueueName.DUPLICATION_LOW)
            direct = None if dry_run else node.mill.direct()
            for pair, name in pairs:
                try:
                    with progress_bar() as progress:
                        progress.add_task(f"comparing and copying {name} {pair}", total=None)
                        plan = plan_space_duplication(
                            node.stores.providers, node.stores.manifest, pair, name, queue, everything=everything,
                            record=not dry_run, change_guard=node.stores.change_guard,
                            outbox=node.stores.outbox, direct=direct,
                        )  # fmt: skip
                except StoreError as error:
                    print_failed_plan(name, pair, error)
                    failed += 1
                    continue
                print_plan(plan, as_json)
                held += plan.hold is not None or plan.hold_reason is not None
            if direct is not None:
                tally = drain_queues(node, QueueName.DUPLICATION_HIGH, QueueName.DUPLICATION_LOW)
                tally.done += direct.done
                print_tally(tally, as_json)
                dead += tally.dead
    return 1 if dead or failed else HELD if held else 0


@example("millstream mill forget primary photos 2013/a.jpg")
@click.command()
@click.argument("store")
@click.argument("space")
@click.argument("content_ids", nargs=-1)
@click.option(
    "--vanished", is_flag=True, help="Record all items that vanished from STORE, the source of `millstream protect`."
)
@data_options
@json_option
def forget(
    settings: Settings, store: str, space: str, content_ids: Sequence[str], *, vanished: bool, as_json: bool
) -> int:
    """Record that items were deleted from STORE on purpose, so that their copies may be deleted too.

    Give either CONTENT_IDS or --vanished. Nothing is recorded if STORE still has one of the items. Copies that are
    lost, too, are recorded as deleted at once. An id that neither a store nor the manifest has is not recorded, and the
    exit code is 3. Exit code 4 while `millstream protect` runs, if it protects STORE.
    """
    if bool(content_ids) == vanished:
        raise click.UsageError("give either content ids or --vanished")
    with Node.open(settings) as node, alone_on_adopted(node, store):
        if vanished:
            recorded, unknown = forget_vanished(adoption_target(node, store), space), list[str]()
        else:
            copies = {copy for copy, _ in asked_spaces(node, [(store, space)])}
            recorded = record_deletions(
                node.stores.providers, node.stores.manifest, store, space, content_ids, copies=copies
            )
            unknown = [name for name in dict.fromkeys(content_ids) if name not in recorded]
            adopted = find_adopted_store(node.stores.providers[store])
            if adopted is not None:
                adopted.catalog.remove(store, space, content_ids)
        if recorded:
            record_change(node, "forget", f"{space} in {store}", items=len(recorded), first=min(recorded))
    if as_json:
        print_json({"tombstones": len(recorded), **({"unknown": unknown} if unknown else {})})
    else:
        if recorded or not unknown:
            click.echo(
                f"{len(recorded):,} tombstone{'' if len(recorded) == 1 else 's'} recorded; "
                "the next `millstream protect`, or `millstream mill duplicate`, "
                "deletes the copies"
            )
        for name in unknown:
            click.echo(f"unknown item {name!r} in space {space!r}: no store has it, and nothing is recorded", err=True)
    return NotFoundError.exit_code if unknown else 0
