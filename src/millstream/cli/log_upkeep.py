"""``millstream log upkeep``: what the policies kept with logs ask for, once; for a timer to run."""

from __future__ import annotations

import click

from millstream.cli.common import json_option, print_json, store_options
from millstream.core.amounts import size_text
from millstream.core.clock import SystemClock
from millstream.log.upkeep.upkeep_thread import UpkeepResult, run_upkeep
from millstream.settings import Settings
from millstream.stores.tiers import open_store


@click.command()
@json_option
@store_options
def upkeep(settings: Settings, as_json: bool) -> int:
    """Move and trim every log as the rules kept with it say (`log tier`, `log trim --keep-policy`), once.

    What the settings say of a log (log.rules) is kept with it first; `millstream serve` does all this by itself.
    Exit code 1 where something could not be done; the other logs are kept up all the same.
    """
    failed = False
    with open_store(settings.log_url, create=False) as store:
        for done in run_upkeep(store, SystemClock(), settings.log.rules):
            failed = failed or done.error is not None
            if as_json:
                print_json(done)
            else:
                _print(done)
    return int(failed)


def _print(done: UpkeepResult) -> None:
    moved = "" if done.moved is None else f", {done.moved.messages:,} messages moved"
    plan = done.trimmed
    freed = (done.moved.freed_bytes if done.moved else 0) + (plan.freed_bytes if plan else 0)
    click.echo(f"{done.log}: {plan.messages if plan else 0:,} messages trimmed{moved}, {size_text(freed)} freed")
    for problem in done.problems:
        click.echo(f"{done.log}: {problem}", err=True)
