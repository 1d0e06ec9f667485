"""The printed report of ``millstream protect``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from millstream.cli.common import echo_line, print_json
from millstream.core.amounts import counted, size_text
from millstream.core.shown_commands import arguments
from millstream.mill.adoption.adoption_run import AdoptionSummary
from millstream.mill.adoption.catalog import FindingKind
from millstream.mill.adoption.dry_run import ProtectionPlan
from millstream.mill.adoption.protection import CopyReport, ProtectionReport, findings_of
from millstream.mill.reports.page import age_text
from millstream.mill.reports.report import CopyFinding

SHOWN = 20
"""Maximum number of findings, and of repairs, that are printed; ``--json`` prints all."""

_REMEDIES = {
    FindingKind.SUSPECTED_ROT: "{restore}, or accept the new bytes: `millstream mill accept {in_source} ID…`",
    FindingKind.CHECKSUM_MISMATCH: "find out whether the file or the listed checksum is right; to accept the "
    "files as they are, run `millstream mill accept {in_source} ID…`",
    FindingKind.UNREADABLE: "make these items readable, or exclude them with --exclude",
    FindingKind.UNSTABLE: "run the same command again when no program writes to these items",
    FindingKind.NOT_SUPPORTED: "exclude these items with --exclude",
    FindingKind.NOT_THERE: "restore these items, or correct the list of checksums",
}


def print_protection(report: ProtectionReport, as_json: bool, now: int) -> None:
    """Print *report* with ages at *now* (microseconds)."""
    if as_json:
        print_json({**msgspec.to_builtins(report), "exit_code": report.exit_code})
        return
    for line in protection_lines(report, now):
        echo_line(line)


def print_plan(plan: ProtectionPlan, as_json: bool) -> None:
    """Print the plan of a run."""
    if as_json:
        print_json({"dry_run": True, **msgspec.to_builtins(plan), "exit_code": plan.exit_code})
        return
    for line in plan_lines(plan):
        echo_line(line)


def plan_lines(plan: ProtectionPlan) -> Iterator[str]:
    """*plan* for people."""
    found = plan.adoption
    yield f"{plan.space}: {counted(plan.items, 'item')}, {size_text(plan.bytes)}, at {plan.url}"
    yield (
        f"  would record {found.added:,} new and {found.changed:,} changed items; {plan.vanished:,} vanished, "
        f"{found.moved:,} renamed; {size_text(found.read_bytes)} read"
    )
    yield from _change_lines(found)
    if plan.vanished:
        yield (
            f"  WAITING  {counted(plan.vanished, 'item')} vanished from the source: a run lists "
            "the names, and keeps the copies"
        )
    if found.unread:
        yield (
            f"  NOT READ: {counted(found.unread, 'item')}, {size_text(found.unread_bytes)}; add "
            "--read all for an exact plan"
        )
    for copy in plan.copies:
        held = ", HELD as a whole until it is approved" if copy.is_held else ""
        yield (
            f"  {copy.store}: would copy {copy.copies:,}, replace {copy.replaced:,}, delete {copy.deletes:,}, keep "
            f"{copy.held:,} without an original{held}; {size_text(copy.bytes)} to write, at {copy.url}"
        )
        if copy.unread:
            yield f"  {copy.store}: NOT READ: {counted(copy.unread, 'copy')}; add --read all for an exact plan"
        if copy.taken_over:
            yield f"  {copy.store}: would take over {copy.taken_over:,} that exist without a record"
    repairs = [(copy.store, one) for copy in plan.copies for one in copy.repairs]
    yield from _named("WOULD REPAIR", repairs)
    yield from _named("", [(copy.store, one) for copy in plan.copies for one in copy.findings])
    for one in list(plan.findings)[:SHOWN]:
        yield f"  {one.kind.upper()}  {plan.store}  {one.content_id}: {one.detail}"
    if len(plan.findings) > SHOWN:
        yield f"  … and {counted(len(plan.findings) - SHOWN, 'more finding')}: see --json"
    yield "Nothing was changed."


def protection_lines(report: ProtectionReport, now: int) -> Iterator[str]:
    """*report* as text, with remedies."""
    found = report.adoption
    yield f"{report.space}: {counted(report.items, 'item')}, {size_text(report.bytes)}, at {report.url}"
    if report.error:
        yield f"  NOT READ: {report.error}"
    else:
        yield (
            f"  {found.added:,} new, {found.changed:,} changed, {found.moved:,} renamed, "
            f"{report.vanished:,} vanished; {size_text(found.read_bytes)} read; {report.adopted_only:,} items have no "
            "independent checksum"
        )
    yield from _change_lines(found)
    if report.exclude:
        kept = (
            f"; the copies of {counted(report.excluded, 'item')} that were copied earlier are kept"
            if report.excluded
            else ""
        )
        yield f"  excluded: {' '.join(report.exclude)} (--no-exclude removes the patterns){kept}"
    for copy in report.copies:
        yield from _copy_lines(report, copy, now)
    yield from _repair_lines(report)
    yield from _finding_lines(report)
    yield from _waiting_lines(report)
    yield _verdict(report)


def _change_lines(found: AdoptionSummary) -> Iterator[str]:
    """The names of edited and renamed items of the source."""
    yield from (f"    changed: {name!r}" for name in found.changed_items[:SHOWN])
    if found.changed > SHOWN:
        yield f"    … and {found.changed - SHOWN:,} more that changed: see --json"
    yield from (f"    renamed: {old!r} to {new!r}" for old, new in found.renames[:SHOWN])
    if found.moved > SHOWN:
        yield f"    … and {found.moved - SHOWN:,} more that were renamed: see --json"


def _copy_lines(report: ProtectionReport, copy: CopyReport, now: int) -> Iterator[str]:
    if copy.error:
        yield f"  {copy.store}: NOT AVAILABLE: {copy.error}"
        return
    age = f", each read within {age_text(now - copy.oldest_verified)}" if copy.oldest_verified else ""
    done = f"{copy.copied:,} copied, {copy.read:,} read, {copy.repaired:,} repaired, {copy.deleted:,} deleted"
    if copy.taken_over:
        done += f", {copy.taken_over:,} without a record taken over"
    yield f"  {copy.store}: {copy.verified:,} of {counted(report.items, 'copy')} verified{age} ({done}), at {copy.url}"


def _repair_lines(report: ProtectionReport) -> Iterator[str]:
    yield from _named("REPAIRED", [(copy.store, one) for copy in report.copies for one in copy.repairs])


def _named(word: str, found: Sequence[tuple[str, CopyFinding]]) -> Iterator[str]:
    """A line for each of *found* (store and finding) after *word*, or after its kind where there is none."""
    for store, one in found[:SHOWN]:
        said = f"{one.kind}: {one.detail}" if word else one.detail
        yield f"  {word or one.kind.upper()}  {store}  {one.content_id}: {said}"
    if len(found) > SHOWN:
        yield f"  … and {len(found) - SHOWN:,} more {_MORE[word]}: see --json"


_MORE = {"REPAIRED": "that were repaired", "WOULD REPAIR": "that would be repaired", "": "findings"}


def _finding_lines(report: ProtectionReport) -> Iterator[str]:
    findings = list(findings_of(report))
    for store, content_id, kind, detail in findings[:SHOWN]:
        yield f"  {kind.upper()}  {store}  {content_id}: {detail}"
    if len(findings) > SHOWN:
        yield f"  … and {counted(len(findings) - SHOWN, 'more finding')}: see --json"
    names = {"in_source": arguments(report.store, report.space), "restore": _restore_advice(report)}
    for kind in sorted({one.kind for one in report.findings}):
        yield f"  {kind}: {_REMEDIES[FindingKind(kind)].format(**names)}"


def _restore_advice(report: ProtectionReport) -> str:
    """How to restore the items of *report* that are suspected to be rotten: from a store whose copies are good."""
    rotten = {one.content_id for one in report.findings if one.kind == FindingKind.SUSPECTED_ROT}
    for copy in report.copies:
        if not copy.error and rotten.isdisjoint(one.content_id for one in copy.findings):
            where = arguments(copy.store, report.space)
            return f"restore them from a copy (`millstream store get {where} ID FILE`)"
    return "restore each from a copy that has no finding above, or from a backup"


def _waiting_lines(report: ProtectionReport) -> Iterator[str]:
    if report.is_emptied:
        yield (
            f"  WAITING  the source is empty, but had {counted(report.vanished, 'item')}: check that its disk is "
            "mounted. No copy is deleted while the source is empty, unless you delete them on purpose: see "
            "`millstream mill forget --help`"
        )
    if report.unlisted:
        yield (
            f"  WAITING  deletions are not followed while {report.unlisted!r} cannot be listed, because files may have "
            "been moved into it: grant the right to list it, or exclude it with --exclude"
        )
    if report.vanished and not report.is_emptied:
        yield (
            f"  WAITING  {counted(report.vanished, 'item')} vanished from the source, and their "
            "copies are kept: put the items back, or approve the deletion of the copies with "
            f"`millstream mill forget {arguments(report.store, report.space, options='--vanished')}`"
        )
    if report.vanished:
        yield from (f"    vanished: {name!r}" for name in report.vanished_items[:SHOWN])
        if report.vanished > SHOWN:
            yield f"    … and {report.vanished - SHOWN:,} more that vanished: see --json"
    for copy in report.copies:
        if copy.hold is not None:
            yield (
                f"  WAITING  {copy.store}: more copies would be replaced or deleted than the change guard allows: "
                "review the plan with `millstream mill approve`, then approve it with "
                f"`millstream mill approve {copy.hold}`"
            )


def _verdict(report: ProtectionReport) -> str:
    copies = len(report.copies)
    if report.exit_code == 0 and not report.items:
        return "Nothing to protect: the source is empty."
    if report.exit_code == 0:
        return f"Protected: all {report.items:,} items have {copies} verified {'copy' if copies == 1 else 'copies'}."
    if report.exit_code == 5:
        return "Waiting for your approval: follow the advice above, then run the same command again."
    return "NOT PROTECTED: follow the advice above, then run the same command again."
