"""``millstream anchor linksets``: anchored operations in Orb's linkset format."""

from __future__ import annotations

from pathlib import Path

import click

from millstream.cli.common import data_options, json_option, print_json
from millstream.cli.examples import example
from millstream.core.durable import write_durably
from millstream.node import Node
from millstream.settings import Settings


@example("millstream anchor linksets links/ --author did:orb:abc")
@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--author", required=True, metavar="URI", help="Author of the linksets, such as did:web:registry.example.org."
)
@click.option(
    "--link",
    "links",
    multiple=True,
    metavar="URL",
    help="URL of the files, to which the multihash is appended; repeatable.",
)
@json_option
@data_options
def linksets(settings: Settings, folder: Path, author: str, links: tuple[str, ...], as_json: bool) -> None:
    """Write the anchor linkset of every anchor of identifiers into FOLDER.

    Each file is named by its multihash. The network must have the profile "orb" and files named by their SHA-256
    (`registry.cid = "raw"`). Linksets contain no credentials of witnesses: add them yourself.
    """
    from millstream.anchoring.registry.linkset_export import export_linksets

    folder.mkdir(parents=True, exist_ok=True)
    count = 0
    with Node.open(settings, reads=True) as node:
        registry = node.registry.instance
        for made in export_linksets(
            node.anchoring.cas, node.registry.ledger, registry.versions, author=author, links=links
        ):
            file = folder / f"u{made.hashlink.multihash}"
            write_durably(file, made.data)
            count += 1
            if as_json:
                print_json({"number": made.number, "hashlink": made.hashlink.text, "file": str(file)})
    if not as_json:
        print(f"{count:,} anchor linksets written to {folder}")
