"""``millstream anchor``: the ledger, the status of batches, and operations on identifiers."""

from __future__ import annotations

import click

from millstream.cli.command_group import CommandGroup

TABLES = {
    "Anchors": {
        "status": (
            "millstream.cli.anchor.status:status",
            "Show how many batches are in each state, and what is invalid or rejected, with reasons.",
        ),
        "cut": (
            "millstream.cli.anchor.cut:cut",
            "Anchor the waiting batches and operations, and finish an interrupted run.",
        ),
        "feed": (
            "millstream.cli.anchor.feed:feed_command",
            "Anchor the batches that `batch serve` or `pipeline batch --stream` writes.",
        ),
        "ledger": (
            "millstream.cli.anchor.ledger:ledger",
            "Print the entries of a ledger, one per line.",
        ),
        "verify": (
            "millstream.cli.anchor.keys:verify",
            "Compare the signed tree of a ledger with its entries.",
        ),
        "replay": (
            "millstream.cli.anchor.replay:replay",
            "Verify every anchor again from the ledger and the files alone.",
        ),
        "observe": (
            "millstream.cli.anchor.observe:observe",
            "Read and verify new ledger entries, and index their content.",
        ),
    },
    "Keys, witnesses and time stamps": {
        "key": (
            "millstream.cli.anchor.keys:key",
            "Make, show and replace the keys that sign the ledgers.",
        ),
        "checkpoint": (
            "millstream.cli.anchor.keys:checkpoint",
            "Print the newest checkpoint of a ledger: its name, number of entries and root hash, signed.",
        ),
        "cosign": (
            "millstream.cli.anchor.cosign:cosign",
            "Ask the witnesses to cosign the newest checkpoint of a ledger, and print how each answered.",
        ),
        "witnesses": (
            "millstream.cli.anchor.cosign:witnesses",
            "Show the newest cosigned checkpoint of a ledger, and how each witness answered last.",
        ),
        "monitor": (
            "millstream.cli.anchor.monitor:monitor",
            "Follow a ledger of others, and find out if its operator rewrites, forks, truncates or hides it.",
        ),
        "timestamp": (
            "millstream.cli.anchor.timestamps:timestamp",
            "Have the newest checkpoint of a ledger time-stamped now, and print the answer of each authority.",
        ),
        "timestamps": (
            "millstream.cli.anchor.timestamps:timestamps",
            "List the time stamps of a ledger, and what was wrong when authorities were asked last.",
        ),
    },
    "Identifiers": {
        "submit": (
            "millstream.cli.anchor.operations:submit",
            'Submit the operations on identifiers in FILE, one JSON object per line ("-" for standard input).',
        ),
        "serve": (
            "millstream.cli.anchor.operations:serve",
            "Run a registry of identifiers: accept operations over HTTP and anchor them, until SIGTERM.",
        ),
        "redrive": (
            "millstream.cli.anchor.operations:redrive",
            "Retry the dead operations with the ids OPERATION_IDS, or without ids all dead operations.",
        ),
        "linksets": (
            "millstream.cli.anchor.linksets:linksets",
            "Write the anchor linkset of every anchor of identifiers into FOLDER.",
        ),
    },
}


@click.group(cls=CommandGroup, tables=TABLES)
def anchor() -> None:
    """Show, check and extend the ledger of anchors; submit operations on identifiers."""
