"""The spaces that a new loop has to go through, also of stores that are unavailable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from millstream.mill.configured_stores import ConfiguredStores
from millstream.mill.manifest import Manifest
from millstream.mill.producers.producer_loop import LoopFailure
from millstream.stores.protocol import StoreError


def list_spaces(
    providers: ConfiguredStores, manifest: Manifest, stores: Iterable[str]
) -> tuple[Mapping[str, frozenset[str]], Sequence[LoopFailure]]:
    """The spaces of each of *stores*, and a failure for each that cannot be listed: of it those in *manifest*.

    So an unavailable store has its turn in the loop, fails there until it is available, and delays no other.
    """
    listed, failures = dict[str, frozenset[str]](), list[LoopFailure]()
    for store in stores:
        try:
            listed[store] = frozenset(providers.spaces(store))
        except StoreError as error:
            failures.append(LoopFailure(f"the spaces of store {store!r}", str(error)))
            listed[store] = frozenset(space for name, space in manifest.spaces() if name == store)
    return listed, failures
