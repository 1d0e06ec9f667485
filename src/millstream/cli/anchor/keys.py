"""``millstream anchor key`` and ``checkpoint``: the keys that sign the ledgers, and the signed checkpoints."""

from __future__ import annotations

import sys

import click
import msgspec

from millstream.anchoring.transparency.signed_note import parse_ledger_key
from millstream.cli.change_log import record_change_if_node, require_audit_log
from millstream.cli.command_group import SummaryGroup
from millstream.cli.common import data_options, json_option, print_json
from millstream.cli.examples import example
from millstream.cli.parameter_types import Duration
from millstream.core.amounts import counted, format_duration
from millstream.core.clock import SystemClock
from millstream.core.private_files import make_private_folder
from millstream.core.timestamps import format_timestamp
from millstream.node import Node
from millstream.node.ledgers import LEDGERS, LedgerName, ledger_keys
from millstream.settings import Settings

ledger_option = click.option(
    "--ledger",
    "ledger_name",
    type=click.Choice(LEDGERS),
    default=LEDGERS[0],
    show_default=True,
    help="Ledger of event batches, of integrity reports, or of identifiers.",
)


@click.group(cls=SummaryGroup)
def key() -> None:
    """Make, show and replace the keys that sign the ledgers."""


@example("millstream anchor key create --origin example.org/anchors")
@key.command()
@click.option(
    "--origin", metavar="NAME", help="Name of the ledger, such as example.org/anchors (default: a random one)."
)
@click.option(
    "--replaces", multiple=True, metavar="KEY", help="Verifier key of the lost key of this ledger; repeatable."
)
@ledger_option
@data_options
def create(settings: Settings, origin: str | None, replaces: tuple[str, ...], ledger_name: LedgerName) -> None:
    """Create the key of a ledger, and print its verifier key for you to publish.

    The origin is part of every checkpoint and cannot be changed later. Without this command, a key with a random origin
    is created at first use. --replaces creates a key that replaces a lost one, with the same origin.
    """
    make_private_folder(settings.folder)
    lost = [parse_ledger_key(each) for each in replaces]
    require_audit_log(settings)
    made = ledger_keys(settings, ledger_name, SystemClock()).create(origin, replaces=lost)
    record_change_if_node(settings, "create key", f"ledger {ledger_name}", key=str(made), replaces=list(replaces))
    print(made)


@example("millstream anchor key show --ledger reports")
@key.command()
@ledger_option
@json_option
@data_options
def show(settings: Settings, ledger_name: LedgerName, as_json: bool) -> None:
    """Print the verifier keys of a ledger: those that sign, the newest first.

    With --json also those of earlier keys (retired), which verify what they signed.
    """
    keys = ledger_keys(settings, ledger_name, SystemClock())
    signing = keys.signing_until()
    if as_json:
        shown = [{"key": str(each), "until": until} for each, until in signing]
        retired = [str(each) for each in keys.retired()]
        print_json({"ledger": ledger_name, "origin": keys.origin(), "signing": shown, "retired": retired})
        return
    for verifier_key, until in signing:
        print(verifier_key)
        if until is not None:
            click.echo(f"signs until {format_timestamp(until)}", err=True)


@example("millstream anchor key rotate --overlap 30d")
@key.command()
@click.option(
    "--overlap", type=Duration(), default="30d", show_default=True, help="Time for which the previous key also signs."
)
@ledger_option
@data_options
def rotate(settings: Settings, overlap: int, ledger_name: LedgerName) -> None:
    """Create a new key with the same origin, and print its verifier key.

    Both keys sign during --overlap, so that readers can change to the new one. After that, the node deletes the
    old private key at its next signature, if it can write the key file. The old verifier key stays valid for older
    signatures.
    """
    require_audit_log(settings)
    made = ledger_keys(settings, ledger_name, SystemClock()).rotate(overlap)
    record_change_if_node(settings, "rotate key", f"ledger {ledger_name}", key=str(made))
    print(made)
    click.echo(f"the previous key signs for {format_duration(overlap)} more", err=True)


@example("millstream anchor verify --ledger reports")
@click.command()
@ledger_option
@json_option
@data_options
def verify(settings: Settings, ledger_name: LedgerName, as_json: bool) -> None:
    """Compare the signed tree of a ledger with its entries.

    Also compared are the newest checkpoint, its copy and the published tiles. Exit code 1 if there is a difference; the
    first one is printed.
    """
    with Node.open(settings, reads=True) as node:
        found = node.ledgers.tree(ledger_name).verify()
    if as_json:
        print_json({"ledger": ledger_name, **msgspec.structs.asdict(found)})
        return
    print(f"ledger      {counted(found.entries, 'entry')}, an unbroken chain")
    print(f"tree        {found.leaves:,} entries match")
    for name, size in (("checkpoint", found.signed), ("copy", found.copied), ("published", found.published)):
        print(f"{name:<11} " + ("none" if size is None else f"{size:,} entries match"))
    if (found.signed or 0) < found.entries:
        print(
            f"{found.entries - (found.signed or 0):,} entries are not signed: run `millstream anchor checkpoint "
            f"--ledger {ledger_name}`, which signs them or reports why it cannot"
        )


@example("millstream anchor checkpoint > checkpoint.txt")
@click.command()
@click.option("--cosigned", is_flag=True, help="Print the newest checkpoint that the quorum of witnesses has cosigned.")
@ledger_option
@data_options
def checkpoint(settings: Settings, ledger_name: LedgerName, cosigned: bool) -> None:
    """Print the newest checkpoint of a ledger: its name, number of entries and root hash, signed.

    If the ledger has grown, a new checkpoint is signed first. A missing copy of it (anchoring.checkpoint_copy) or
    publication (anchoring.tiles) is made, too. The checkpoint has the cosignatures that were collected for it. Anyone
    who keeps a checkpoint can detect that the ledger was rewritten. Exit code 3 if --cosigned finds no checkpoint with
    the quorum.
    """
    with Node.open(settings) as node:
        ledgers = node.ledgers
        data = (
            ledgers.cosignatures.required_collector(ledger_name).cosigned()
            if cosigned
            else ledgers.signed(ledger_name).checkpoint()
        )
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()
