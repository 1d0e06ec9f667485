"""``millstream mill accept``: adopt the bytes of a source as they are now."""

from __future__ import annotations

from collections.abc import Sequence

import click

from millstream.cli.common import data_options, json_option, print_json
from millstream.cli.protect_parts import adoption_target
from millstream.core.errors import MillstreamError
from millstream.mill.adoption.adopter import Adopter
from millstream.node import Node
from millstream.settings import Settings


@click.command()
@click.argument("store")
@click.argument("space")
@click.argument("content_ids", nargs=-1, required=True)
@data_options
@json_option
def accept(settings: Settings, *, store: str, space: str, content_ids: Sequence[str], as_json: bool) -> int:
    """Adopt the bytes of items of STORE as they are now, whatever was recorded or listed of them.

    That is for items with suspected rot, or with another checksum than a list says, which turn out to be as they should
    be. The next `millstream protect` replaces their copies. Exit code 1 if one of them could not be read.
    """
    failed = 0
    with Node.open(settings) as node:
        adopter = Adopter(adoption_target(node, store))
        for content_id in content_ids:
            try:
                item = adopter.accept(space, content_id)
            except MillstreamError as error:
                click.echo(f"{content_id}: {error}", err=True)
                failed += 1
                continue
            if as_json:
                print_json({"content_id": content_id, "sha256": item.sha256, "size": item.size})
            else:
                click.echo(f"{content_id}: adopted as {item.sha256}")
    return 1 if failed else 0
