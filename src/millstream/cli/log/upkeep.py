"""``millstream log upkeep``: tier and trim all logs once, by their policies; for a timer."""

from __future__ import annotations

import click

from millstream.cli.common import echo_line, json_option, print_json, store_options
from millstream.cli.examples import example
from millstream.core.amounts import counted, size_text
from millstream.core.clock import SystemClock
from millstream.log.upkeep.upkeep_thread import UpkeepResult, run_upkeep
from millstream.settings import Settings
from millstream.stores.tiers import open_log_store


@example("millstream log upkeep")
@click.command()
@json_option
@store_options
def upkeep(settings: Settings, as_json: bool) -> int:
    """Tier and trim every log once, by its own rules (`log tier`, `log trim --keep-policy`).

    Logs in a bucket are also compacted: many small objects become few large ones in the same bucket.

    Rules in the settings (log.rules) are stored with their logs first. `millstream serve` does all this automatically.
    Exit code 1 if a log failed; the other logs are processed nevertheless.
    """
    failed, commits = False, settings.log.bucket_commits
    with open_log_store(settings.log_url, create=False, bucket_commits=commits) as store:
        for done in run_upkeep(store, SystemClock(), settings.log.rules):
            failed = failed or done.error is not None
            if as_json:
                print_json(done)
            else:
                _print(done)
    return int(failed)


def _print(done: UpkeepResult) -> None:
    compacted = "" if done.compacted is None else f", {counted(done.compacted.messages, 'message')} compacted"
    moved = "" if done.moved is None else f", {counted(done.moved.messages, 'message')} moved"
    plan = done.trimmed
    freed = sum(each.freed_bytes for each in (done.moved, done.compacted) if each) + (plan.freed_bytes if plan else 0)
    click.echo(
        f"{done.log}: {counted(plan.messages if plan else 0, 'message')} trimmed{moved}{compacted}, "
        f"{size_text(freed)} freed"
    )
    for problem in done.problems:
        echo_line(f"{done.log}: {problem}", err=True)
