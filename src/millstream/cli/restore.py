"""``millstream restore``: restore items of a space into a folder or another store, verified."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Collection, Iterable, Iterator

import click
import msgspec
from rich.progress import DownloadColumn, TextColumn, TransferSpeedColumn

from millstream.cli.common import data_options, echo_line, json_option, print_json
from millstream.cli.examples import example
from millstream.cli.open_changes import print_open_changes
from millstream.cli.parameter_types import Timestamp
from millstream.cli.progress import drawn
from millstream.cli.restore_target import open_target
from millstream.core.amounts import size_text
from millstream.core.errors import NotFoundError
from millstream.mill.adoption.catalog import AdoptionCatalog
from millstream.mill.errors import UnknownSpaceError
from millstream.mill.restore.listing import ItemListing, RestorableItem
from millstream.mill.restore.past import PastListing
from millstream.mill.restore.restorer import RestoredItem, RestoreOutcome, Restorer, sample
from millstream.mill.restore.targets import RestoreTarget
from millstream.node import Node
from millstream.settings import Settings

MOST_NAMED = 1000
"""Maximum number of items that are named as not restored; all of them are counted."""


class RestoreReport(msgspec.Struct, kw_only=True):
    """The result of a restore: items by outcome, the bytes that were read, and what was not restored.

    ``bad_copies`` counts copies that could not be used, by store; ``named`` are the items that have one or were not
    restored, :data:`MOST_NAMED` at most.
    """

    space: str
    outcomes: Counter[str] = msgspec.field(default_factory=Counter)
    bytes: int = 0
    bad_copies: Counter[str] = msgspec.field(default_factory=Counter)
    named: list[RestoredItem] = msgspec.field(default_factory=list)
    seed: str | None = None

    @property
    def items(self) -> int:
        """All items."""
        return sum(self.outcomes.values())

    @property
    def is_complete(self) -> bool:
        """Whether every item is at the target, or was verified."""
        return not self.outcomes[RestoreOutcome.DIFFERENT] and not self.outcomes[RestoreOutcome.FAILED]

    def add(self, item: RestoredItem) -> None:
        """Count *item*, and name it if something is wrong."""
        self.outcomes[item.outcome] += 1
        if item.outcome in (RestoreOutcome.RESTORED, RestoreOutcome.VERIFIED):
            self.bytes += item.size
        self.bad_copies.update(copy.store for copy in item.bad)
        if (item.bad or item.reason) and len(self.named) < MOST_NAMED:
            self.named.append(item)


@example("millstream restore photos --to /mnt/back")
@click.command()
@click.argument("space")
@click.argument("prefix", default="")
@click.option("--to", metavar="FOLDER|URL", help="Folder, or URL of a store, to write to; required without --test.")
@click.option("--test", "is_test", is_flag=True, help="Read and verify a sample, and write nothing.")
@click.option("--from", "from_store", metavar="STORE", help="Only from this store (default: the best copy of each).")
@click.option(
    "--as-of",
    "at",
    type=Timestamp(),
    metavar="TIME",
    help="Restore the state at this time: 2026-11-24T12:00Z, or microseconds since the epoch; not with --from.",
)
@click.option("--overwrite", is_flag=True, help="Replace existing files that differ.")
@click.option(
    "--sample",
    "count",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="With --test: number of items in the sample.",
)
@click.option("--seed", help="With --test: repeat the sample of the run that printed this seed.")
@data_options
@json_option
def restore(
    settings: Settings,
    *,
    space: str,
    prefix: str,
    to: str | None,
    is_test: bool,
    from_store: str | None,
    at: int | None,
    overwrite: bool,
    count: int,
    seed: str | None,
    as_json: bool,
) -> int:
    """Restore the items of SPACE, or those whose ids begin with PREFIX, into a folder or another store.

    Each item is read from a good copy and verified against the recorded checksum before it appears at the target,
    with its properties; in a folder, links, empty folders and times are restored. A damaged copy is reported, and the
    next one is used. The same command resumes an interrupted restore. Existing files that differ are kept. With --as-of
    the state at a time is restored, if the audit log covers it; items whose bytes no copy has any more are listed.

    Exit code 0 if every item is at the target (with --test: every item of the sample is good), 1 if one is not, or if
    with --as-of it is not known of every change whether it happened, 3 if SPACE or STORE is unknown, or if there is no
    such item.
    """
    if is_test and to is not None:
        raise click.UsageError("--test and --to cannot be combined: --test writes nothing")
    if not is_test and to is None:
        raise click.UsageError("the target is missing: give it with --to, or test the restore of a sample with --test")
    if is_test and overwrite:
        raise click.UsageError("--test and --overwrite cannot be combined: --test writes nothing")
    if at is not None and from_store is not None:
        raise click.UsageError(
            "--as-of and --from cannot be combined: --as-of picks the copy that has the content of that time"
        )
    with Node.open(settings, reads=is_test) as node:
        _require_known(node, space, from_store)
        target = None if to is None else open_target(node, to, space)
        report = RestoreReport(space=space)
        items = _items(node, space, prefix, from_store, at)
        if is_test:
            report.seed = seed or secrets.token_hex(4)
            items = iter(sample(items, count, report.seed))
        vanished = frozenset[str]() if target is None or at is not None else _vanished(node, space)
        _run(node, items, target, report, overwrite=overwrite, last=vanished)
        has_open = at is not None and print_open_changes(node, space=space)
    _print(report, to, as_json)
    if has_open or not report.is_complete:
        return 1
    if not report.items:  # nothing was restored or tested: a mistyped prefix, or the wrong store or time
        which = f"item whose id begins with {prefix!r}" if prefix else "item"
        echo_line(f"there is no {which} to restore: check PREFIX, --from and --as-of", err=True)
        return NotFoundError.exit_code
    return 0


def _require_known(node: Node, space: str, store: str | None) -> None:
    if store is not None:
        node.stores.providers.require(store)
    spaces = {name for _, name in (*node.stores.manifest.spaces(), *node.mill.audit.log.spaces())}
    if space not in spaces:
        raise UnknownSpaceError(
            f"the manifest has no space {space!r}: check the name, or if its stores still have it, "
            "rebuild the manifest with `millstream mill rebuild content-index`"
        )


def _items(node: Node, space: str, prefix: str, from_store: str | None, at: int | None) -> Iterator[RestorableItem]:
    lookup = node.mill.audit.lookup
    listing = ItemListing(
        node.stores.providers,
        node.stores.manifest,
        space,
        sources=node.policies.current.sources(space),
        audit_lookup=lookup,
    )
    if at is None:
        return listing.items(prefix, from_store)
    past = PastListing(node.mill.audit.log, node.stores.manifest, listing, space, audited=lookup.audited)
    return past.items(at, prefix)


def _vanished(node: Node, space: str) -> frozenset[str]:
    """The ids that the sources of *space* had, and do not have any more: a file may stand where their folder was."""
    catalog = AdoptionCatalog(node.databases.own)
    sources = node.policies.current.sources(space)
    return frozenset(item.content_id for store in sources for item in catalog.vanished(store, space))


def _run(
    node: Node,
    items: Iterable[RestorableItem],
    target: RestoreTarget | None,
    report: RestoreReport,
    *,
    overwrite: bool,
    last: Collection[str],
) -> None:
    """Restore *items*; those with ids in *last* come after all others, which need their paths."""
    restorer = Restorer(node.stores.providers, target, overwrite=overwrite, threads=node.settings.mill.workers)
    columns = (TextColumn("{task.description} {task.fields[items]:,} items"), DownloadColumn(), TransferSpeedColumn())
    with drawn(*columns) as bars:
        bar = bars.add_task("testing" if target is None else "restoring", total=None, items=0)
        left = list[RestorableItem]()
        for some in (_without(items, last, left), left):
            for item in restorer.run(some):
                report.add(item)
                bars.update(bar, completed=report.bytes, items=report.items)


def _without(
    items: Iterable[RestorableItem], last: Collection[str], left: list[RestorableItem]
) -> Iterator[RestorableItem]:
    """Those of *items* whose ids are not in *last*; the others are added to *left*."""
    for item in items:
        if item.content_id in last:
            left.append(item)
        else:
            yield item


def _print(report: RestoreReport, to: str | None, as_json: bool) -> None:
    if as_json:
        print_json({**msgspec.to_builtins(report), "complete": report.is_complete, "items": report.items})
        return
    for item in report.named:
        for copy in item.bad:
            echo_line(f"{item.content_id!r}: the copy in store {copy.store} was not used: {copy.reason}")
        if item.reason:
            outcome = _WORDS[item.outcome] if item.is_good else "not restored"
            echo_line(f"{item.content_id!r} was {outcome}: {item.reason}")
    unnamed = sum(report.outcomes[one] for one in (RestoreOutcome.DIFFERENT, RestoreOutcome.FAILED)) - len(
        [item for item in report.named if not item.is_good]
    )
    if unnamed > 0:
        click.echo(f"and {unnamed:,} more that were not restored")
    counts = ", ".join(f"{count:,} {_WORDS[RestoreOutcome(name)]}" for name, count in sorted(report.outcomes.items()))
    where = f"to {to}" if report.seed is None else f"tested (--seed {report.seed})"
    echo_line(f"{report.space} {where}: {counts or 'no items'}; {size_text(report.bytes)} read and verified")


_WORDS = {
    RestoreOutcome.RESTORED: "restored",
    RestoreOutcome.VERIFIED: "verified",
    RestoreOutcome.PRESENT: "there already",
    RestoreOutcome.DIFFERENT: "different at the target",
    RestoreOutcome.FAILED: "not restored",
}
