"""``millstream mill accept``: record the bytes of items as they are now."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import click

from millstream.cli.change_log import record_change
from millstream.cli.common import data_options, echo_line, json_option, print_json
from millstream.cli.examples import example
from millstream.cli.protect_parts import adoption_target, alone_on_adopted
from millstream.core.errors import MillstreamError, NotFoundError
from millstream.mill.adoption.adopted_store import find_adopted_store
from millstream.mill.adoption.adopter import Adopter
from millstream.mill.adoption.catalog import AdoptedItem
from millstream.mill.integrity.acceptance import accept_bytes
from millstream.mill.item_ref import ItemRef
from millstream.mill.manifest import ManifestEvent
from millstream.node import Node
from millstream.settings import Settings


@example("millstream mill accept photos photos 2013/a.jpg")
@click.command()
@click.argument("store")
@click.argument("space")
@click.argument("content_ids", nargs=-1, required=True)
@data_options
@json_option
def accept(settings: Settings, *, store: str, space: str, content_ids: Sequence[str], as_json: bool) -> int:
    """Record the current bytes of items of STORE as correct, even if their recorded or listed checksum differs.

    Use it for items with suspected rot, with a checksum other than the listed one, or changed without the node (finding
    B9 of a report), if you know that their bytes are correct. The next `millstream protect`, or `mill duplicate`,
    replaces their copies. STORE is the source of the items. Exit code 3 if an item does not exist, 1 if one could not
    be recorded for another reason; the other items are recorded nevertheless. Exit code 4 while `millstream protect`
    runs, if it protects STORE.
    """
    codes = set[int]()
    with Node.open(settings) as node, alone_on_adopted(node, store):
        accept_item = _acceptor(node, store)
        for content_id in content_ids:
            try:
                item = accept_item(space, content_id)
            except MillstreamError as error:
                echo_line(f"{content_id}: {error}", err=True)
                codes.add(NotFoundError.exit_code if isinstance(error, NotFoundError) else 1)
                continue
            record_change(node, "accept", f"{space}/{content_id}", store=store, sha256=item.sha256)
            if as_json:
                print_json({"content_id": content_id, "sha256": item.sha256, "size": item.size})
            else:
                echo_line(f"{content_id}: accepted, sha256 {item.sha256}")
    return min(codes, default=0)  # 3 only if nothing else went wrong


def _acceptor(node: Node, store: str) -> Callable[[str, str], AdoptedItem | ManifestEvent]:
    """Records an item of a space of *store*: in the catalog of what is adopted there, or else in the manifest."""
    if find_adopted_store(node.stores.providers[store]) is not None:
        return Adopter(adoption_target(node, store)).accept

    def accept_recorded(space: str, content_id: str) -> ManifestEvent:
        return accept_bytes(
            node.stores.providers,
            node.stores.manifest,
            ItemRef(store, space, content_id),
            sources=node.policies.require().sources(space),
            audit=(node.mill.audit.lookup, node.stores.outbox),
        )

    return accept_recorded
