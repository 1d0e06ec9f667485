"""The anchor linksets of a whole ledger, for readers of Orb: each names the ones before it by their hashes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from millstream.anchoring.cas import Cas
from millstream.anchoring.ledger import Ledger
from millstream.anchoring.registry.protocol_versions import ProtocolVersions
from millstream.anchoring.sidetree import BatchFileError, OperationType, read_batch
from millstream.anchoring.sidetree.hashlinks import HashLink, link_to
from millstream.anchoring.sidetree.linksets import PreviousAnchor, write_linkset

_BEGINNINGS = {OperationType.CREATE, OperationType.RECOVER}


class ExportedLinkset(msgspec.Struct, frozen=True):
    """The anchor linkset of ledger entry *number*; its hashlink names its bytes."""

    number: int
    hashlink: HashLink
    data: bytes


def export_linksets(
    cas: Cas, ledger: Ledger, versions: ProtocolVersions, *, author: str, links: Sequence[str] = ()
) -> Iterator[ExportedLinkset]:
    """The anchor linkset of every entry of *ledger* that readers take, in order.

    *author* is a URI, *links* are prefixes of the URLs of files. The same ledger gives the same bytes.
    Memory grows with the number of DIDs. Entries are passed over that no reader takes, and those with an operation on
    a DID that was never created. Raises the errors of *cas*.
    """
    known = dict[str, PreviousAnchor]()
    for entry in ledger.entries():
        profile = versions.at(entry.time).profile
        try:
            batch = read_batch(entry.anchor_string, cas.get, profile, time=entry.time)
            data = write_linkset(batch, entry.anchor_string, known, profile, author=author, links=links)
        except BatchFileError:
            continue
        bare = link_to(data)
        name = link_to(data, [f"{prefix}u{bare.multihash}" for prefix in links])
        for operation in batch.operations:
            begins = operation.type in _BEGINNINGS
            known[operation.suffix] = PreviousAnchor(name, name if begins else known[operation.suffix].canonical)
        yield ExportedLinkset(entry.number, name, data)
