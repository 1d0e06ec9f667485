"""``millstream node``: move and vacuum the tables of a node, and list and drain its processes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from millstream.cli.change_log import record_change, record_change_in, record_freed_space
from millstream.cli.command_group import SummaryGroup
from millstream.cli.common import data_options, echo_line, json_option, print_json
from millstream.cli.examples import example
from millstream.core.amounts import counted, format_duration
from millstream.core.clock import SystemClock
from millstream.core.errors import BusyError
from millstream.core.secrets import safe_url
from millstream.core.timestamps import format_timestamp
from millstream.node.context import DATABASE
from millstream.settings import Settings

if TYPE_CHECKING:
    import sqlalchemy as sa

    from millstream.core.documents import Documents
    from millstream.node import Node
    from millstream.node.members.member_table import MemberTable
    from millstream.node.members.members_status import Member

FILE = "file"
"""The target that means the file ``node.db`` in the node's folder."""


_OPEN_SECONDS = 10.0
"""For how long a command that has node.db open is waited for."""


class NodeServesError(BusyError):
    """A process serves the node."""


@click.group(cls=SummaryGroup)
def node() -> None:
    """Move the tables of a node, and list its processes."""


class _RowCounter:
    """Counts the rows of tables that were processed (*done* is the verb), and shows them on a terminal."""

    def __init__(self, done: str) -> None:
        self.rows = dict[str, int]()
        self._done = done

    def add(self, table: str, rows: int) -> None:
        self.rows[table] = self.rows.get(table, 0) + rows
        if sys.stderr.isatty():
            echo_line(f"{table}: {self.rows[table]:,} rows {self._done}", err=True)


def _documents(settings: Settings, engine: sa.Engine, url: str) -> Documents:
    """The documents of the node whose tables are in the database of *engine*, at *url* where that is on a server."""
    from millstream.core.documents import DatabaseDocuments, FolderDocuments

    return DatabaseDocuments(engine) if url else FolderDocuments(settings.folder)


@example("millstream node move postgresql://millstream@db.example/node")
@node.command()
@click.argument("target")
@json_option
@data_options
def move(settings: Settings, target: str, as_json: bool) -> None:
    """Copy the node's tables to an empty database, and compare the copies with the originals.

    TARGET is postgresql://user:password@host:port/name, mariadb://…, mysql://…, or "file" for node.db in the node's
    folder. Stop all processes of the node first. An interrupted move resumes with the same command. The source keeps
    its tables; afterwards set node.database to the target.
    """
    from millstream.cli.node_tables import node_tables
    from millstream.mill.reports.archive import copy_reports, require_same_reports
    from millstream.node.databases import has_database, open_tables
    from millstream.node.errors import NodeNotFoundError
    from millstream.node.moving import MoveError, move_documents, move_tables
    from millstream.node.reports import open_reports
    from millstream.status.serving_node import find_serving_node

    source_url, goal_url = settings.node.database, "" if target == FILE else target
    if goal_url == source_url:
        raise MoveError("the node's tables are in TARGET already: name another database")
    if (serving := find_serving_node(settings.folder)) is not None:
        raise NodeServesError(f"process {serving.pid} serves this node: stop the process first")
    if not has_database(settings):
        raise NodeNotFoundError(f"the node in {settings.folder} has no tables to move: check --data and node.database")
    _require_unused(settings)
    with contextlib.ExitStack() as stack:
        source = stack.enter_context(open_tables(settings, source_url))
        before = open_reports(settings, source if source_url else None)
        if not goal_url:  # a database is empty, or has a part of this node
            require_same_reports(before, open_reports(settings, None))
        goal = stack.enter_context(open_tables(settings, goal_url))
        copied_rows, compared_rows = _RowCounter("copied"), _RowCounter("compared")
        copied, reports = 0, 0

        names = {"source": safe_url(source_url) or DATABASE, "database": safe_url(goal_url) or DATABASE}

        def documents() -> None:
            nonlocal copied, reports
            _require_unused(settings)  # a process may have begun just before the tables were locked
            copied = move_documents(_documents(settings, source, source_url), _documents(settings, goal, goal_url))
            reports = copy_reports(before, open_reports(settings, goal if goal_url else None))

        moved = move_tables(
            source, goal, node_tables(), str(settings.folder),
            told=copied_rows.add, compared=compared_rows.add, at_end=documents,
            target_name=names["database"],
        )  # fmt: skip
        record_change_in(goal, SystemClock(), "move", "node", **names, rows=sum(table.rows for table in moved))
    if as_json:
        print_json({"tables": moved, "copied": copied_rows.rows, "documents": copied, "reports": reports})
        return
    for table in moved:
        echo_line(f"{table.name}  {table.rows:,} rows  {table.checksum}")
    echo_line(f"states of batching, producers and MQTT sessions  {copied:,}")
    echo_line(f"integrity reports  {reports:,}")
    setting = "remove node.database from the settings" if target == FILE else "set node.database to the new URL"
    echo_line(f"{sum(table.rows for table in moved):,} rows moved and verified; now {setting}")


@example("millstream node vacuum")
@node.command()
@json_option
@data_options
def vacuum(settings: Settings, as_json: bool) -> None:
    """Give the free space in node.db back to the file system.

    The file keeps the space of rows that were removed for new rows. Stop all processes of the node first. A crash or a
    power loss loses nothing. The disk must have room for two copies of what remains; if SQLITE_TMPDIR names a folder on
    another disk, for one copy on each.
    """
    from millstream.node.vacuuming import vacuum_database
    from millstream.status.serving_node import find_serving_node

    if (serving := find_serving_node(settings.folder)) is not None:
        raise NodeServesError(f"process {serving.pid} serves this node: stop the process first")
    sizes = vacuum_database(settings)
    record_freed_space(settings, "vacuum", DATABASE, bytes_before=sizes.before, bytes_after=sizes.after)
    if as_json:
        print_json({"bytes_before": sizes.before, "bytes_after": sizes.after})
    else:
        echo_line(f"{DATABASE}: {sizes}")


@example("millstream node ls")
@node.command("ls")
@click.option("--all", "also_ended", is_flag=True, help="Also list members that have ended in the last 30 days.")
@json_option
@data_options
def list_members(settings: Settings, also_ended: bool, as_json: bool) -> None:
    """List the members of a node: the processes of `millstream serve` and `millstream mill work` on all hosts.

    A member that sends no heartbeat for node.lease is lost, and others take over its roles. A node whose tables are
    in the file node.db has no members: one process serves it, which `millstream status` shows.
    """
    from millstream.node import Node
    from millstream.node.members.members_status import member_row

    with Node.open(settings, reads=True) as opened:
        table = _members(opened)
        members, now = (table.all() if also_ended else table.alive()), table.time()
    for member in members:
        if as_json:
            print_json(member_row(member, now))
            continue
        echo_line(_line(member, now))


@example("millstream node info web1-3f9a2c01")
@node.command()
@click.argument("member")
@json_option
@data_options
def info(settings: Settings, member: str, as_json: bool) -> None:
    """Show a member of a node: its process, its addresses, the roles that it offers, and those that it owns.

    MEMBER is an id that `millstream node ls` prints.
    """
    from millstream.node import Node
    from millstream.node.members.members_status import member_row

    with Node.open(settings, reads=True) as opened:
        table = _members(opened)
        found, now = table.find(member), table.time()
    if as_json:
        print_json(member_row(found, now))
        return
    details = found.details
    echo_line(f"{found.id}: {_state(found, now)}")
    echo_line(f"process    {details.pid} on {details.host}, millstream {details.version}")
    echo_line(f"command    {details.command}")
    echo_line(f"joined     {format_timestamp(found.since)}")
    echo_line(f"last seen  {format_timestamp(found.seen)}")
    for what, address in sorted(details.addresses.items()):
        echo_line(f"{what:10} {address}")
    for role, since in sorted(found.owns.items()):
        echo_line(f"owns       {role}, since {format_timestamp(since)}")
    for role in sorted(details.roles.keys() - found.owns.keys()):
        echo_line(f"offers     {role}")


@example("millstream node drain web1-3f9a2c01")
@node.command()
@click.argument("member")
@click.option("--cancel", is_flag=True, help="Let the member take roles again.")
@data_options
def drain(settings: Settings, member: str, cancel: bool) -> None:
    """Let a member of a node give up its roles and take no others, before you stop its host or upgrade its program.

    MEMBER is an id that `millstream node ls` prints. Roles end as they do when the process is stopped: running work is
    finished first. The process keeps running, with its workers and its console; `millstream node info` shows which
    roles it still owns. A process of `millstream mill work` has no roles: end it with SIGTERM.
    """
    from millstream.node import Node

    with Node.open(settings) as opened:
        _members(opened).drain(member, draining=not cancel)
        record_change(opened, "cancel drain" if cancel else "drain", f"member {member}")
    echo_line(f"{member} {'may take roles again' if cancel else 'gives its roles up, and takes none'}")


def _members(opened: Node) -> MemberTable:
    opened.databases.members.require_shared()
    return opened.databases.members.table


def _require_unused(settings: Settings) -> None:
    """Raise :class:`NodeServesError` if another process has node.db open, or, where the tables are on a server, a
    member on any host serves the node."""
    from millstream.core.lock_holders import find_lock_holders
    from millstream.node import Node
    from millstream.node.moving import MovedAwayError

    if not settings.node.database:
        path, clock = settings.folder / DATABASE, SystemClock()
        end = clock.monotonic() + _OPEN_SECONDS
        while holders := find_lock_holders([path, path.with_name(f"{DATABASE}-shm")]):
            if clock.monotonic() > end:
                raise NodeServesError(f"{', '.join(map(str, holders))} has {path} open: stop the process first")
            clock.sleep(0.1)
        return
    try:
        with Node.open(settings) as opened:
            table = opened.databases.members.table
            now = table.time()
            names = [member.id for member in table.alive() if member.until >= now]
    except MovedAwayError:  # a move that was killed before its end: no process has used the database since
        return
    if names:
        raise NodeServesError(f"{counted(len(names), 'member')} serve this node: stop them first: {', '.join(names)}")


def member_lines(opened: Node) -> tuple[Sequence[str], bool]:
    """A line for each member that serves the node *opened*, and whether one of them has a console, which monitors the
    node; neither if its tables are in a file."""
    if not opened.databases.members.is_shared:
        return (), False
    table = opened.databases.members.table
    now, members = table.time(), table.alive()
    is_monitored = any(
        "console" in one.details.addresses and one.state(now) in ("alive", "draining") for one in members
    )
    return [f"member {_line(member, now)}" for member in members], is_monitored


def _line(member: Member, now: int) -> str:
    command = member.details.command
    roles = ", ".join(sorted(member.owns)) or ("no roles" if command == "serve" else command)
    return f"{member.id}  {_state(member, now)}  {member.details.version}  {roles}"


def _state(member: Member, now: int) -> str:
    """The state of *member* at the time *now* of the database."""
    state = member.state(now)
    if member.ended is not None:
        return f"{state} {format_timestamp(member.ended)}"
    silent = format_duration(max(0, now - member.seen) // 1_000_000 * 1_000_000)
    waiting = " for members of an earlier version to end" if state == "waiting" else ""
    return f"{state}{waiting}, last seen {silent} ago"
