"""``millstream node``: where a node keeps its tables."""

from __future__ import annotations

import sys

import click

from millstream.cli.common import data_options, echo_line, json_option, print_json
from millstream.cli.examples import example
from millstream.core.errors import BusyError
from millstream.settings import Settings

FILE = "file"
"""The target that is the file ``node.db`` in the node's folder."""


class NodeServesError(BusyError):
    """A process serves the node."""


@click.group()
def node() -> None:
    """Move the tables of a node between its folder and a database server."""


@example("millstream node move postgresql://millstream@db.example/node")
@node.command()
@click.argument("target")
@json_option
@data_options
def move(settings: Settings, target: str, as_json: bool) -> None:
    """Copy the node's tables to an empty database, and compare them.

    TARGET is postgresql://user:password@host:port/name, mariadb://…, mysql://…, or "file" for node.db in the node's
    folder. Stop all processes of the node first. An interrupted move resumes with the same command. The source keeps
    its tables; afterwards set node.database to the target.
    """
    from millstream.cli.node_tables import node_tables
    from millstream.node.databases import has_database, open_tables
    from millstream.node.errors import NodeNotFoundError
    from millstream.node.moving import MoveError, move_tables
    from millstream.status.serving_node import find_serving_node

    source_url, goal_url = settings.node.database, "" if target == FILE else target
    if goal_url == source_url:
        raise MoveError("the node's tables are in this database already: name another one")
    if (serving := find_serving_node(settings.folder)) is not None:
        raise NodeServesError(f"process {serving.pid} serves this node: stop it first")
    if not has_database(settings):
        raise NodeNotFoundError("the node has no tables to move; check --data and node.database")
    with open_tables(settings, source_url) as source, open_tables(settings, goal_url) as goal:
        counts = dict[str, int]()

        def told(table: str, rows: int) -> None:
            counts[table] = counts.get(table, 0) + rows
            if not as_json and sys.stderr.isatty():
                echo_line(f"{table}: {counts[table]:,} rows", err=True)

        moved = move_tables(source, goal, node_tables(), str(settings.folder), told=told)
    if as_json:
        print_json({"tables": moved, "copied": counts})
        return
    for table in moved:
        echo_line(f"{table.name}  {table.rows:,} rows  {table.checksum}")
    setting = "remove node.database from the settings" if target == FILE else "set node.database to it"
    echo_line(f"{sum(table.rows for table in moved):,} rows moved and verified; now {setting}")
