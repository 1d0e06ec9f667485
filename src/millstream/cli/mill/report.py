"""``millstream mill report`` and ``statistics``: results of checks, and sizes of spaces."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from millstream.anchoring import LedgerEntry
from millstream.cli.common import data_options, echo_line, json_option, print_json
from millstream.cli.examples import example
from millstream.cli.mill.space_options import chosen_spaces
from millstream.cli.open_changes import print_open_changes
from millstream.core.amounts import counted, share_text, size_text
from millstream.core.durable import output_file
from millstream.core.errors import NotFoundError
from millstream.core.shown_commands import check_command
from millstream.core.timestamps import format_timestamp
from millstream.mill.adoption.adopted_store import find_adopted_store
from millstream.mill.errors import ReportError
from millstream.mill.reports.archive import ReportArchive, decode_report, last_reports, reports_of, verify_chain
from millstream.mill.reports.page import age_text, overview
from millstream.mill.reports.report import IntegrityReport, ReportResult, report_lines
from millstream.mill.reports.statistics import store_sizes
from millstream.mill.tasks import QueueName, StorageStatistics, encode_task
from millstream.node import Node
from millstream.node.missing_reports import absent_reports
from millstream.node.reports import report_anchor
from millstream.settings import Settings

_NAMED = 10
"""Of the missing reports this many, the newest ones, are printed with their entry; of the unknown ones too."""


@example("millstream mill report second photos --html report.html")
@click.command()
@click.argument("store", required=False)
@click.argument("space", required=False)
@click.option(
    "--verify",
    is_flag=True,
    help="Instead, verify the chain of reports against the ledger, and print the SHA-256 of the last report.",
)
@click.option(
    "--html", type=click.Path(path_type=Path), metavar="FILE", help="Also write an HTML page with one line per space."
)
@click.option(
    "--tsv",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also write the table of the report; requires STORE and SPACE.",
)
@data_options
@json_option
def report(
    settings: Settings,
    *,
    store: str | None,
    space: str | None,
    verify: bool,
    html: Path | None,
    tsv: Path | None,
    as_json: bool,
) -> int:
    """Print the latest report of every space, and its age.

    Exit code 0 if all reports say SUCCESS, the policies could be read, and it is known of every change whether it
    happened; 3 if STORE and SPACE are given and there is no report on them; 1 otherwise. With --verify, exit code 1 if
    a report is not in the ledger, or (without STORE and SPACE) if a report of the ledger is missing or may have been
    removed.
    """
    errors = list[str]()
    with Node.open(settings, reads=True) as node:
        archive = node.mill.reports.archive
        places = chosen_spaces(node, store, space, known=archive.spaces(), policy_errors=errors)
        last = last_reports(archive, places)
        latest = [last.get(place) for place in places]
        now = node.clock.now()
        if html is not None:
            with output_file(html) as page:
                page.write("".join(overview(places, latest, now)).encode())
        if tsv is not None:
            _write_lines(node, store, space, tsv)
        if verify:
            return _verify(node, places, is_every_space=store is None and space is None)
        for place, found in zip(places, latest, strict=True):
            if found is None:
                click.echo(_without_report(node, *place), err=True)
            else:
                print_report(found, as_json, now)
        left = print_open_changes(node, store, space)
    if store is not None and space is not None and latest == [None]:
        return NotFoundError.exit_code
    good = all(found is not None and found.result == ReportResult.SUCCESS for found in latest)
    return 0 if good and not left and not errors else 1


def _without_report(node: Node, store: str, space: str) -> str:
    line = f"{store}/{space}: no report yet; run `{check_command(store, space)}`"
    provider = node.stores.providers.unchecked.get(store)
    is_protected = provider is not None and find_adopted_store(provider) is not None
    return f"{line} (`millstream status` shows what `protect` read)" if is_protected else line


def _write_lines(node: Node, store: str | None, space: str | None, path: Path) -> None:
    """Write the lines of the last report on *space* in *store* to *path*."""
    if store is None or space is None:
        raise click.UsageError("--tsv writes the table of one report: name its STORE and SPACE")
    if node.mill.reports.archive.latest(store, space) is None:
        raise NotFoundError(_without_report(node, store, space))
    lines = node.mill.reports.archive.lines(store, space)
    if lines is None:
        raise ReportError(
            f"the last report on {space} in {store} has no table: run `{check_command(store, space)}` first"
        )
    with output_file(path) as file:
        file.writelines(lines)


def _verify(node: Node, places: Sequence[tuple[str, str]], *, is_every_space: bool) -> int:
    """Exit code 1 if a report is not in the ledger, or if the ledger has an entry whose report is or may be missing.

    An entry does not name its space, so missing reports are found only if *places* are those of every space.
    """
    archive, entries, code = node.mill.reports.archive, node.mill.reports.ledger_entries(), 0
    unchained = archive.unchained()  # before the chains: meanwhile a report outside may become a part of one
    others = set(archive.spaces()).difference(places) if is_every_space else ()
    bad = list[tuple[str, str]]()
    heads, anchors = dict[tuple[str, str], str](), dict[tuple[str, str], list[str]]()
    for place in (*places, *sorted(others)):
        heads[place], anchors[place], is_good = _examine(archive, *place)
        if not is_good:
            bad.append(place)
    found = {anchor for some in anchors.values() for anchor in some}
    entered = entries if found <= entries.keys() else node.mill.reports.ledger_entries()  # reports are made meanwhile
    for store, space in dict.fromkeys((*places, *bad)):
        some = anchors[store, space]
        without_entry = sum(anchor not in entered for anchor in some)
        code = 1 if without_entry or (store, space) in bad else code
        note = f"; {without_entry:,} of its reports are not in the ledger" if without_entry else ""
        click.echo(f"{store}/{space}: {heads[store, space]}{note}", err=(store, space) in bad)
    if not is_every_space:
        click.echo("not checked: whether the newest reports were removed; for this, omit STORE and SPACE", err=True)
        return code
    missing, unknown, other = absent_reports(entries, anchors, map(decode_report, unchained))
    if other:
        click.echo(f"{counted(len(other), 'report')} of other chains, which members had in their folders: not changed")
    _print_unknown(unknown)
    _print_missing(missing)
    missing_anchors = {entry.anchor_string for entry in missing}
    if missing and (folder := node.mill.reports.folder_to_take_over(missing_anchors)) is not None:
        click.echo(
            f"reports that an early release wrote to {folder} are not in the database yet: start `millstream serve`, "
            "which adds them, and verify again",
            err=True,
        )
    return 1 if missing or unknown else code


def _examine(archive: ReportArchive, store: str, space: str) -> tuple[str, list[str], bool]:
    """The head of a chain in words, the anchors of its reports, and whether it is good: others are verified, too."""
    try:
        head = verify_chain(archive, store, space) or "no report yet"
        return head, [report_anchor(one) for one in reports_of(archive, store, space)], True
    except ReportError as error:
        anchors = list[str]()
        with contextlib.suppress(ReportError):  # those up to one that cannot be read
            for one in reports_of(archive, store, space):
                anchors.append(report_anchor(one))
        return f"NOT VERIFIED: {error}", anchors, False


def _print_missing(missing: Sequence[LedgerEntry]) -> None:
    """Print the entries of the ledger whose reports are *missing*, the newest ones one by one."""
    if not missing:
        return
    click.echo(
        f"{counted(len(missing), 'report')} in the ledger {'is' if len(missing) == 1 else 'are'} missing: removed or "
        "changed; restore the reports from a backup"
    )
    _print_entries("missing", missing)


def _print_unknown(unknown: Sequence[LedgerEntry]) -> None:
    """Print the entries of the ledger whose reports are outside the chains for an *unknown* reason."""
    if not unknown:
        return
    click.echo(
        f"{counted(len(unknown), 'report')} outside the chains {'is' if len(unknown) == 1 else 'are'} unknown: removed "
        "from a chain, or of another chain, which a member had in its folder; restore them if a chain in a backup has "
        "them"
    )
    _print_entries("unknown", unknown)


def _print_entries(what: str, entries: Sequence[LedgerEntry]) -> None:
    for entry in entries[-_NAMED:]:
        click.echo(f"{what}: entry {entry.number:,} of {format_timestamp(entry.time)}, {entry.anchor_string}")


@example("millstream mill statistics second")
@click.command()
@click.argument("store", required=False)
@click.option("--count", is_flag=True, help="Count now, by tasks on the queue storage-statistics.")
@data_options
@json_option
def statistics(settings: Settings, store: str | None, count: bool, as_json: bool) -> int:
    """Print the items and bytes of each space at its last count.

    Stores with a capacity in the settings (`most_bytes`) get a total. Exit code 1 if a store exceeds its capacity, or
    if a space could not be counted with --count; 3 if STORE is unknown.
    """
    places, since = list[tuple[str, str]](), 0
    with Node.open(settings, reads=not count) as node:
        if count:
            since = node.clock.now()
            places = [place for place in node.stores.manifest.spaces() if store in (None, place[0])]
            node.queues.open(QueueName.STORAGE_STATISTICS).put(
                [encode_task(StorageStatistics(*place)) for place in places]
            )
            node.mill.workers(QueueName.STORAGE_STATISTICS).run_until_drained()
        sizes = node.stores.statistics.latest(store, until=node.clock.now())
        if store is not None and not sizes:
            node.stores.providers.require(store)
    old = sorted(set(places).difference((size.store, size.space) for size in sizes if size.at >= since))
    for place in old:
        text = "could not be counted now: see `millstream queue dead storage-statistics`"
        echo_line(f"{place[0]}/{place[1]}: {text}", err=True)
    for size in sizes:
        if as_json:
            print_json(size)
        else:
            echo_line(f"{size.store}/{size.space}: {counted(size.items, 'item')}, {size_text(size.bytes)}")
    limits = {name: one.most_bytes for name, one in settings.stores.items() if store in (None, name)}
    stores = store_sizes(sizes, limits)
    for whole in stores:
        if as_json:
            print_json({**msgspec.to_builtins(whole), "over": whole.over})
        else:
            state = "OVER its limit" if whole.over else "OK"
            most = f"{share_text(whole.share)} of {size_text(whole.most_bytes)}"
            click.echo(f"{whole.store}: {counted(whole.items, 'item')}, {size_text(whole.bytes)}, {most}: {state}")
    return 1 if old or any(whole.over for whole in stores) else 0


def print_report(found: IntegrityReport, as_json: bool, now: int | None = None) -> None:
    """Print *found* with its age at *now* (microseconds)."""
    if as_json:
        values: dict[str, Any] = msgspec.to_builtins(found)
        print_json(values)
        return
    for line in report_lines(found, age="" if now is None else age_text(now - found.ended_at)):
        echo_line(line)
