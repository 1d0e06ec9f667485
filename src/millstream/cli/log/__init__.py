"""``millstream log``: write, read and check message logs."""

from __future__ import annotations

import click

from millstream.cli.command_group import CommandGroup

TABLES = {
    "Messages": {
        "create": (
            "millstream.cli.log.create:create",
            "Create the log NAME if it does not exist.",
        ),
        "append": (
            "millstream.cli.log.append:append",
            "Append the lines of FILES (or of standard input) to the log NAME, one message per line.",
        ),
        "read": (
            "millstream.cli.log.read:read",
            "Print the bodies of the messages of the log NAME, in order, one per line.",
        ),
        "tail": (
            "millstream.cli.log.read:tail",
            "Print the bodies of the last messages of the log NAME, one per line.",
        ),
        "list": (
            "millstream.cli.log.describe:list_logs",
            "List the logs.",
        ),
        "describe": (
            "millstream.cli.log.describe:describe",
            "Show the size, ids, writer, consumers and retention of the log NAME.",
        ),
    },
    "Storage": {
        "verify": (
            "millstream.cli.log.verify:verify",
            "Verify every checksum of the log NAME, and that no id is missing.",
        ),
        "copy": (
            "millstream.cli.log.copy:copy",
            "Copy the log NAME between two stores, such as sqlite:///log.db and segments:///folder.",
        ),
        "trim": (
            "millstream.cli.log.trim:trim",
            "Trim the oldest messages of the log NAME: below an id, by rules, or by the log's own policy.",
        ),
        "vacuum": (
            "millstream.cli.log.vacuum:vacuum",
            "Give the space of trimmed messages of the log NAME back to the file system.",
        ),
        "tier": (
            "millstream.cli.log.tier:tier",
            "Move older messages of the log NAME to an object store; readers still find them.",
        ),
        "upkeep": (
            "millstream.cli.log.upkeep:upkeep",
            "Tier and trim every log once, by its own rules (`log tier`, `log trim --keep-policy`).",
        ),
    },
    "Consumers and sources": {
        "seek": (
            "millstream.cli.log.seek:seek",
            "Set the position of a consumer of the log NAME to an id or a time.",
        ),
        "relay": (
            "millstream.cli.log.relay:relay",
            "Move the rows of an outbox table into a log, in order, each exactly once.",
        ),
    },
    "Testing": {
        "torture": (
            "millstream.cli.log.torture:torture_command",
            "Kill writers and readers at random moments, and verify that nothing is lost.",
        ),
    },
}


@click.group(cls=CommandGroup, tables=TABLES)
def log() -> None:
    """Write, read and check message logs."""
