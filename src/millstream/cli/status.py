"""``millstream status``: how well each space is protected."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

import click
import msgspec

from millstream.cli.common import data_options, echo_line, json_option, print_json
from millstream.cli.queue import dead_tasks
from millstream.core.amounts import size_text
from millstream.core.errors import NotFoundError
from millstream.core.timestamps import format_timestamp
from millstream.mill.adoption.adopted_store import AdoptedStore, adopted_store, find_adopted_store
from millstream.mill.adoption.coverage import NOT_COPIED
from millstream.mill.adoption.reading_times import reading_times
from millstream.mill.adoption.status import VANISHED, CopyStatus, OpenWork, ProtectionStatus, SpaceStatus
from millstream.mill.errors import TaskError
from millstream.mill.reports.page import age_text
from millstream.mill.reports.report import CopyFinding, ReportResult
from millstream.mill.tasks import QueueName, decode_task
from millstream.node import Node
from millstream.queue import DeadTask
from millstream.settings import Settings
from millstream.stores import StoreError, StoreUnavailableError
from millstream.stores.sources import absence_question

MOST_DEAD = 100_000
"""Dead tasks of one queue that are counted."""


@click.command()
@data_options
@json_option
@click.option("--items", is_flag=True, help="List instead when each item, and each copy of it, was last read.")
def status(settings: Settings, as_json: bool, items: bool) -> int:
    """Show for each space its items, its copies, when they were last read, what is wrong, and what waits.

    The first 20 items of each kind that are not in order are named.

    Exit code 0 if every item has all its copies verified, every store can be used and nothing waits; 1 otherwise.
    """
    with Node.open(settings) as node:
        if items:
            return _list_items(node, as_json)
        now = node.clock.now()
        work = OpenWork(
            holds=node.stores.change_guard.pending(), problems=_problems(node), dead_tasks=_dead_tasks(settings)
        )
        latest = node.mill.reports.folder.latest
        found = ProtectionStatus(node.databases.own, node.policies.current, work, latest, now)
        spaces = list(found.spaces())
    for space in spaces:
        if as_json:
            print_json({**msgspec.to_builtins(space), "well": space.is_well})
            continue
        for line in status_lines(space, now):
            echo_line(line)
    if not spaces:
        click.echo("nothing is protected yet: see `millstream protect --help`", err=True)
    return 0 if spaces and all(space.is_well for space in spaces) else 1


def _list_items(node: Node, as_json: bool) -> int:
    """Print a line for each item of every protected space; 0."""
    for name, store in node.stores.providers.items():
        adopted = find_adopted_store(store)
        for space in () if adopted is None else store.spaces():
            for item in reading_times(adopted_store(store), node.stores.manifest, name, space):
                if as_json:
                    print_json(item)
                    continue
                times = [f"{name} {format_timestamp(item.last_read_at)}"]
                times += [
                    f"{copy} {'never' if at is None else format_timestamp(at)}"
                    for copy, at in sorted(item.copies.items())
                ]
                echo_line(f"{space}  {item.content_id}: {', '.join(times)}")
    return 0


def _problems(node: Node) -> dict[str, str]:
    """The stores that cannot be used now, and why."""
    problems = dict[str, str]()
    for name, store in node.stores.providers.items():
        try:
            spaces = node.stores.providers.spaces(name)
            if (adopted := find_adopted_store(store)) is not None:
                _require_items(adopted, spaces)
        except StoreError as error:
            problems[name] = str(error)
    return problems


def _dead_tasks(settings: Settings) -> dict[str, Counter[str]]:
    """The dead tasks by space and queue; no worker is disturbed."""
    found: dict[str, Counter[str]] = {}
    for name in QueueName:
        with contextlib.suppress(NotFoundError):  # nothing was ever put on that queue
            for dead in dead_tasks(settings, name, limit=MOST_DEAD):
                found.setdefault(_space_of(dead), Counter())[name.value] += 1
    return found


def _space_of(dead: DeadTask) -> str:
    """The space that a task is about; empty where it cannot be read."""
    try:
        return str(getattr(decode_task(dead.body), "space", ""))
    except TaskError:
        return ""


def _require_items(adopted: AdoptedStore, spaces: Sequence[str]) -> None:
    """Raise :class:`StoreUnavailableError` where nothing is listed any more in a source in which something was."""
    for space in spaces:
        if not adopted.source.entries(space, limit=1) and adopted.entries(space, limit=1):
            question = absence_question(adopted.url)
            raise StoreUnavailableError(f"{adopted.url} is empty, and items were adopted from it: {question}")


def status_lines(space: SpaceStatus, now: int) -> Iterator[str]:
    """*space* for people at *now* (microseconds)."""
    yield f"{space.space} (store {space.store}): {space.items:,} items, {size_text(space.bytes)}"
    if space.adopted_only is not None:
        yield (
            f"  last run {_age(space.last_run, now)}; every item read within {_age(space.oldest_read, now, '')}; "
            f"{space.adopted_only:,} items have no checksum but ours"
        )
    if space.last_code:
        yield f"  the last run ended with code {space.last_code}: run `millstream protect` again, which says why"
    if space.problem:
        yield f"  NOT AVAILABLE: {space.problem}"
    if space.damaged:
        yield f"  {space.damaged:,} items of the source are missing or damaged"
    yield from _report_lines(space.report, space.store, space.space)
    for copy in space.copies:
        yield from _copy_lines(copy, space.space, now)
    for kind, count in space.findings.items():
        yield f"  {count:,} {kind}: run `millstream protect` again, which says what to do"
    for queue, count in space.dead_tasks.items():
        yield f"  {count:,} tasks failed for good: see `millstream queue dead {queue}`, then `millstream queue redrive`"
    if space.vanished:
        forget = f"`millstream mill forget {space.store} {space.space} --vanished`"
        yield f"  {space.vanished:,} items vanished from the source and wait: put them back, or {forget}"
    yield from _name_lines(space.named, {**space.findings, VANISHED: space.vanished})
    if space.excluded:
        yield f"  {space.excluded:,} items are left out (--exclude) since they were copied; their copies are kept"
    yield f"  {'well' if space.is_well else 'NOT WELL'}"


def _report_lines(report: ReportResult | None, store: str, space: str) -> Iterator[str]:
    if report not in (None, ReportResult.SUCCESS):
        yield f"  the last report on {store} says {report}: see `millstream mill report {store} {space}`"


def _name_lines(named: Sequence[CopyFinding], counts: Mapping[str, int]) -> Iterator[str]:
    """A line for each of *named*, and how many more of its kind there are, where *counts* tells it."""
    for kind, some in groupby(named, lambda one: one.kind):
        shown = list(some)
        yield from (f"  {kind.upper()}  {one.content_id}: {one.detail}" for one in shown)
        if (more := counts.get(kind, 0) - len(shown)) > 0:
            yield f"  {kind.upper()}  … and {more:,} more"


def _copy_lines(copy: CopyStatus, space: str, now: int) -> Iterator[str]:
    wrong = [
        f"{count:,} {name}"
        for count, name in ((copy.pending, "not copied"), (copy.damaged, "not in order or not read"))
        if count
    ]
    read = f"each read within {_age(copy.oldest_verified, now, '')}{', OVERDUE' if copy.is_overdue else ''}"
    yield f"  copy in {copy.store}: {copy.verified:,} of {copy.items:,} verified, {', '.join([*wrong, read])}"
    if copy.problem:
        yield f"    NOT AVAILABLE: {copy.problem}"
    for kind, count in copy.findings.items():
        yield f"    {count:,} {kind}: run `millstream protect` again, which says what to do"
    yield from (f"  {line}" for line in _name_lines(copy.named, {**copy.findings, NOT_COPIED: copy.pending}))
    yield from (f"  {line}" for line in _report_lines(copy.report, copy.store, space))
    for number in copy.holds:
        yield f"    waits for an approval: `millstream mill approve {number}`"


def _age(moment: int | None, now: int, after: str = " ago") -> str:
    return "unknown" if moment is None else f"{age_text(now - moment)}{after}"
