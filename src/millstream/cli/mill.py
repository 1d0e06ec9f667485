"""``millstream mill``: duplicate by policy, check every bit, repair, report."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, BinaryIO

import click
import msgspec
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from millstream.cli.common import data_options, is_terminal, json_option, print_json, size_text
from millstream.mill.audit_log import tsv_lines as tsv_lines_of_audit
from millstream.mill.checker import Checked
from millstream.mill.errors import UnknownSpaceError, UnknownStoreError
from millstream.mill.manifest import Event
from millstream.mill.monitor import Monitor, serve_figures
from millstream.mill.policy import Policy, encode_policy, policy_file
from millstream.mill.policy_lint import lint_policy
from millstream.mill.policy_places import MAX_BYTES
from millstream.mill.policy_repository import Policies
from millstream.mill.policy_saving import read_policy, save_policy, version_of
from millstream.mill.producer import Plan, duplication_rounds, plan_space_duplication
from millstream.mill.providers import is_system
from millstream.mill.reconciliation import missing_events
from millstream.mill.recorder import record_space
from millstream.mill.report import Report, ReportResult, build_report, tsv_lines
from millstream.mill.sweep import check_space
from millstream.mill.tasks import QueueName, encode_task
from millstream.mill.workers import Tally
from millstream.node import Node
from millstream.settings import Settings
from millstream.stores import StoreError
from millstream.stores.audit import AuditedStore

WORK = (
    QueueName.AUDIT,
    QueueName.DUPLICATION_HIGH,
    QueueName.REPAIR,
    QueueName.DUPLICATION_LOW,
    QueueName.BIT_INTEGRITY,
)
"""The queues that ``mill work`` empties, in order of priority."""


@click.group()
def mill() -> None:
    """Duplicate by policy, check every bit, repair, report."""


@mill.group()
def policy() -> None:
    """Which spaces are copied from which store to which others."""


@policy.command("show")
@data_options
@json_option
def show_policy(settings: Settings, as_json: bool) -> None:
    """Print the policy of every account."""
    with Node.open(settings) as node:
        for account, one in node.policies.by_account.items():
            version = version_of(node.policy_place.read(policy_file(account)))
            if as_json:
                print_json({"account": account, "version": version, "policy": msgspec.Raw(encode_policy(one))})
                continue
            click.echo(f"{account} (version {version}):")
            for space, pairs in one.spaces.items():
                click.echo(f"  {space}: {', '.join(map(str, pairs)) or 'as other spaces'}")
            click.echo(f"  other spaces: {', '.join(map(str, one.defaults)) or 'not copied'}")
            if one.ignored:
                click.echo(f"  never copied: {', '.join(one.ignored)}")


@policy.command("lint")
@data_options
@json_option
def lint(settings: Settings, as_json: bool) -> int:
    """Say what in the policies is probably not meant. Exit code 1 if there is anything."""
    found = 0
    with Node.open(settings) as node:
        for account, one in node.policies.by_account.items():
            for warned in [*node.policies.warnings[account], *lint_policy(one, list(node.providers))]:
                found += 1
                if as_json:
                    print_json({"account": account, **msgspec.to_builtins(warned)})
                else:
                    click.echo(f"{account}: {warned.code}: {warned}")
    return 1 if found else 0


@policy.command("save")
@click.argument("account")
@click.argument("file", type=click.File("rb"))
@click.option(
    "--if-match", metavar="VERSION", help="Save only over this version (see show); `none`: there is none yet."
)
@data_options
@json_option
def save(settings: Settings, account: str, file: BinaryIO, if_match: str | None, as_json: bool) -> None:
    """Put the policy in FILE (- for standard input) in force for ACCOUNT; every version is kept.

    Exit code 4 if somebody saved another version meanwhile.
    """
    with Node.open(settings, create=True) as node:
        saved = save_policy(node.policy_place, account, file.read(MAX_BYTES + 1), if_match=if_match)
    for warned in saved.warnings:
        click.echo(f"{account}: {warned.code}: {warned}", err=True)
    if as_json:
        print_json(saved)
    else:
        click.echo(f"{account}: version {saved.version}, number {saved.number} of its history")


@policy.command("plan")
@click.argument("account")
@click.argument("file", type=click.File("rb"))
@data_options
@json_option
def plan_policy(settings: Settings, account: str, file: BinaryIO, as_json: bool) -> None:
    """Say what the policy in FILE would cause for ACCOUNT, space by space: items, bytes, deletes. Changes nothing."""
    proposed, _ = read_policy(file.read(MAX_BYTES + 1), account)
    with Node.open(settings) as node:
        current = node.policies.by_account.get(account, Policy(account))
        for pairs in duplication_rounds(Policies({account: proposed}), node.providers):
            for pair, space in pairs:
                _print_plan(plan_space_duplication(node.providers, node.manifest, pair, space, None), as_json)
        for pairs in duplication_rounds(Policies({account: current}), node.providers):
            for pair, space in pairs:
                if pair not in proposed.lookup(space) and not as_json:
                    click.echo(f"{space} {pair}: no longer brought in line; what was copied stays")


@mill.command()
@click.option("--space", metavar="SPACE", help="Only this space.")
@click.option("--all", "everything", is_flag=True, help="Look at every item, not only at those that seem to differ.")
@click.option("--dry-run", is_flag=True, help="Say what would be done.")
@data_options
@json_option
def duplicate(settings: Settings, space: str | None, everything: bool, dry_run: bool, as_json: bool) -> int:
    """Copy by policy what differs, until nothing is left to do. Exit code 1 if a task died."""
    dead = 0
    with Node.open(settings) as node:
        for pairs in duplication_rounds(node.policies, node.providers, space):
            queue = None if dry_run else node.queue(QueueName.DUPLICATION_LOW)
            for pair, name in pairs:
                if not dry_run:
                    record_space(node.providers, node.manifest, pair.source, name)
                plan = plan_space_duplication(node.providers, node.manifest, pair, name, queue, everything=everything)
                _print_plan(plan, as_json)
            if not dry_run:
                tally = _work(node, QueueName.DUPLICATION_HIGH, QueueName.DUPLICATION_LOW)
                _print_tally(tally, as_json)
                dead += tally.dead
    return 1 if dead else 0


@mill.command()
@click.option("--store", "only_store", metavar="ID", help="Only this store.")
@click.option("--space", "only_space", metavar="SPACE", help="Only this space.")
@data_options
@json_option
def check(settings: Settings, only_store: str | None, only_space: str | None, as_json: bool) -> int:
    """Read every byte, compare it with the manifest, and write a report for each space.

    What is found is put on the repair queue (see `millstream mill repair`). Exit code 1 unless every report says
    SUCCESS.
    """
    good = True
    with Node.open(settings) as node:
        for store, space in _spaces(node, only_store, only_space):
            report = _check(node, store, space)
            _print_report(report, as_json)
            good = good and report.result == ReportResult.SUCCESS
    return 0 if good else 1


@mill.command()
@click.argument("item", nargs=-1, metavar="[SPACE CONTENT_ID]")
@click.option("--dry-run", is_flag=True, help="Say what a repair of the named item would do.")
@data_options
@json_option
def repair(settings: Settings, item: Sequence[str], dry_run: bool, as_json: bool) -> int:
    """Heal what checks have found, or the copies of one item, by a vote of the manifest and the copies.

    Exit code 1 if something could not be healed; the reason is printed.
    """
    if len(item) not in (0, 2) or (dry_run and not item):
        raise click.UsageError("name a space and a content id, or nothing to work off the repair queue")
    with Node.open(settings) as node:
        if dry_run:
            print_json(node.repairer.plan(*item))
            return 0
        if not item:
            errors = node.queue(QueueName.BIT_ERROR)
            before = errors.depth().ready
            tally = _work(node, QueueName.REPAIR)
            _print_tally(tally, as_json)
            return 1 if tally.dead or errors.depth().ready > before else 0
        healing = node.repairer.repair(*item)
        for event in healing.events:
            if as_json:
                print_json(event)
            else:
                what = f"healed from store {event.good}" if event.healed else "not healed"
                click.echo(f"{event.space}/{event.content_id} {event.store}: {what}: {event.reason}")
        return 1 if healing.refused else 0


@mill.command()
@click.argument("store", required=False)
@click.argument("space", required=False)
@click.option("--verify", is_flag=True, help="Walk the chain of reports and print the SHA-256 of the last one.")
@data_options
@json_option
def report(settings: Settings, store: str | None, space: str | None, verify: bool, as_json: bool) -> int:
    """Print the latest report of every space. Exit code 1 unless all say SUCCESS."""
    good = True
    with Node.open(settings) as node:
        for where in _spaces(node, store, space):
            latest = node.reports.latest(*where)
            if latest is None:
                click.echo(f"{where[0]}/{where[1]}: never checked; run `millstream mill check`", err=True)
                good = False
                continue
            if verify:
                click.echo(f"{where[0]}/{where[1]}: {node.reports.verify(*where)}")
            else:
                _print_report(latest, as_json)
            good = good and latest.result == ReportResult.SUCCESS
    return 0 if good else 1


@mill.command()
@click.argument("queues", nargs=-1, type=click.Choice([name.value for name in QueueName]))
@click.option("--drain", is_flag=True, help="End when nothing is left to do.")
@click.option("--monitor", "port", type=click.IntRange(0, 65535), metavar="PORT", help="Serve figures of the queues.")
@data_options
@json_option
def work(settings: Settings, queues: Sequence[str], drain: bool, port: int | None, as_json: bool) -> int:
    """Work on tasks, the first queue named before the second, until stopped (SIGTERM lets running tasks end).

    Meanwhile the queues are watched, and whom the settings name (mill.alarms) is told of dead letters and of too many
    tasks. With --monitor, http://127.0.0.1:PORT/workers says as JSON how many workers each queue should have, and
    /metrics the same to Prometheus.
    """
    with Node.open(settings) as node:
        names = [QueueName(name) for name in queues] or WORK
        manager = node.workers(*names)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: manager.stop())
        click.echo(f"working on {', '.join(names)}; stop with Ctrl-C or SIGTERM", err=True)
        with _watching(node.monitor(*names), port):
            tally = manager.run_until_drained() if drain else manager.run()
        _print_tally(tally, as_json)
    return 1 if tally.dead else 0


@contextlib.contextmanager
def _watching(monitor: Monitor, port: int | None) -> Iterator[None]:
    """Watch the queues, and serve the figures where a *port* is given, for the length of the block."""
    server = None if port is None else serve_figures(lambda: monitor.figures, "127.0.0.1", port)
    threads = [threading.Thread(target=monitor.run, name="mill-monitor", daemon=True)]
    if server is not None:
        click.echo(f"figures at http://127.0.0.1:{server.server_port}/workers and /metrics", err=True)
        threads.append(threading.Thread(target=server.serve_forever, name="mill-figures", daemon=True))
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        monitor.stop()
        if server is not None:
            server.shutdown()
            server.server_close()
        for thread in threads:
            thread.join()


@mill.command()
@click.argument("store")
@click.argument("space")
@click.argument("content_ids", nargs=-1, required=True)
@data_options
@json_option
def forget(settings: Settings, store: str, space: str, content_ids: Sequence[str], as_json: bool) -> None:
    """Record that items were deleted from STORE on purpose, so that their copies may be deleted too."""
    with Node.open(settings) as node:
        now = node.clock.now()
        node.manifest.record([Event(store, space, name, now, deleted=True) for name in content_ids])
    if as_json:
        print_json({"tombstones": len(content_ids)})
    else:
        click.echo(f"{len(content_ids)} tombstones recorded; `millstream mill duplicate` deletes the copies")


@mill.command()
@click.argument("store", required=False)
@click.argument("space", required=False)
@click.argument("content_id", required=False)
@click.option("--recover", is_flag=True, help="First settle what a process on another machine left open when it ended.")
@data_options
@json_option
def audit(
    settings: Settings, store: str | None, space: str | None, content_id: str | None, recover: bool, as_json: bool
) -> None:
    """Print the audit log, of all audited stores or of the one named, as a table of text.

    Changes that were not processed yet are processed first, and duplicated (see `millstream mill work`).
    """
    with Node.open(settings) as node:
        if recover:
            for provider in node.providers.values():
                if isinstance(provider, AuditedStore):
                    provider.recover()
        _process_audits(node)
        events = node.audit_log.events(store, space, content_id)
        if as_json:
            for event in events:
                print_json(event)
            return
        for line in tsv_lines_of_audit(events):
            click.echo(line, nl=False)


@mill.command()
@click.argument("store", required=False)
@click.argument("space", required=False)
@data_options
@json_option
def reconcile(settings: Settings, store: str | None, space: str | None, as_json: bool) -> int:
    """Compare what audited stores list with the audit log, and name every event that is missing.

    Exit code 1 if there is any: somebody changed the store behind the back of the audit.
    """
    found = 0
    with Node.open(settings) as node:
        _process_audits(node)
        for where in _spaces(node, store, space, known=node.audit_log.spaces()):
            if not isinstance(node.providers[where[0]], AuditedStore):
                continue
            for missing in missing_events(node.providers, node.audit_log, node.outbox, *where):
                found += 1
                if as_json:
                    print_json(missing)
                else:
                    name = f"{missing.store}/{missing.space}/{missing.content_id}"
                    click.echo(f"{name}: no {missing.action.value}: {missing.reason}")
    return 1 if found else 0


def _process_audits(node: Node) -> None:
    if node.outbox.undelivered() or node.queue(QueueName.AUDIT).depth().open:
        node.workers(QueueName.AUDIT).run_until_drained()


def _spaces(
    node: Node, store: str | None, space: str | None, known: Iterable[tuple[str, str]] = ()
) -> list[tuple[str, str]]:
    """Every space of every configured store that is listed, or known to the manifest or otherwise; no system spaces.

    Of a store that cannot be listed only what is known is named, so that its reports say what is wrong.
    """
    if store is not None and store not in node.providers:
        raise UnknownStoreError(f"no store {store!r} is configured (there are: {', '.join(sorted(node.providers))})")
    known = {*known, *node.manifest.spaces()}
    for name in node.providers:
        try:
            known |= {(name, listed) for listed in node.providers.call(node.providers[name].spaces)}
        except StoreError as error:
            click.echo(f"{name}: {error}", err=True)
    chosen = [w for w in sorted(known) if store in (None, w[0]) and space in (None, w[1]) and not is_system(w[1])]
    if not chosen:
        raise UnknownSpaceError("there is no such space to check, neither in a store nor in the manifest")
    return chosen


def _check(node: Node, store: str, space: str) -> Report:
    started, account = node.clock.now(), node.settings.mill.account
    lines: list[str] = []

    def follow(group: Sequence[Checked]) -> None:
        rows = list(tsv_lines((one.result for one in group), account=account))
        lines.extend(rows[1:] if lines else rows)
        for name in (QueueName.REPAIR, QueueName.BIT_ERROR):
            tasks = [encode_task(one.task[1]) for one in group if one.task and one.task[0] == name]
            if tasks:
                node.queue(name).put(tasks)
        progress.advance(bar, len(group))

    with _progress(not is_terminal()) as progress:
        bar = progress.add_task(f"{store}/{space}", total=node.manifest.count(store, space))
        threads = node.settings.mill.workers
        tally = check_space(node.providers, node.manifest, store, space, threads=threads, on_checked=follow)
    made = build_report(tally, store, space, started_at=started, ended_at=node.clock.now(), account=account)
    node.reports.save(made, "".join(lines).encode())
    return made


def _work(node: Node, *names: QueueName) -> Tally:
    """Work on the queues until they are drained, with a progress bar on a terminal."""
    total = sum(node.queue(name).depth().open for name in names)
    with _progress(not is_terminal() or not total) as progress:
        bar = progress.add_task("tasks", total=total)
        manager = node.workers(*names, on_progress=lambda tally: progress.update(bar, completed=tally.done))
        return manager.run_until_drained()


def _progress(disable: bool) -> Progress:
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), disable=disable, transient=True
    )


def _print_plan(plan: Plan, as_json: bool) -> None:
    if as_json:
        print_json({"tasks": plan.tasks, **msgspec.to_builtins(plan)})
        return
    click.echo(
        f"{plan.space} {plan.pair}: {plan.copies:,} to copy, {plan.changes:,} to compare, {plan.deletes:,} to delete, "
        f"{plan.same:,} unchanged; {size_text(plan.bytes)} to read"
    )
    if plan.held:
        names = ", ".join(plan.held_examples) + (" …" if plan.held > len(plan.held_examples) else "")
        click.echo(f"  {plan.held:,} only at {plan.pair.destination}, kept because no deletion is recorded: {names}")


def _print_tally(tally: Tally, as_json: bool) -> None:
    if as_json:
        print_json(tally)
    else:
        click.echo(f"tasks: {tally.done:,} done, {tally.failed:,} tried again, {tally.dead:,} dead")


def _print_report(found: Report, as_json: bool) -> None:
    if as_json:
        values: dict[str, Any] = msgspec.to_builtins(found)
        print_json(values)
        return
    click.echo(
        f"{found.store}/{found.space}: {found.result.value}: {found.listed:,} listed, {found.checked:,} checked, "
        f"{found.explained:,} explained, {found.failed:,} failed, {size_text(found.bytes)} read, "
        f"coverage {found.coverage:.1%}"
    )
    for finding in found.findings[:20]:
        click.echo(f"  {finding.content_id}: {finding.row} {finding.kind}: {finding.detail}")
    if len(found.findings) > 20:
        click.echo(f"  … and {len(found.findings) - 20:,} more; see --json")
    for note in found.notes:
        click.echo(f"  {note}")
