"""The section ``anchoring`` of the settings."""

from __future__ import annotations

from millstream.core.settings import Section


class AnchoringSettings(Section, frozen=True):
    """How batches are anchored: at most ``max_batches`` an anchor, in batch files of at most ``file_bytes`` bytes.

    ``cas`` is the URL of the storage provider whose space ``cas`` holds the files (``s3://…``); empty means the folder
    ``cas`` in the data folder.

    ``key_folder`` has the files of the keys that sign the ledgers (``anchors.json``, ``reports.json``,
    ``registry.json``); empty means the folder ``keys`` in the data folder.

    ``checkpoint_copy`` is where the newest signed checkpoint of each ledger is kept outside the data folder: a folder
    that exists, or the URL of a storage provider. It shows that the node was restored from an older backup; do not back
    it up with the node. Empty means nowhere: then a restored backup can fork the ledgers unnoticed.

    ``tiles`` publishes the ledgers as static files (tlog-tiles), which show the number and the times of anchors: true
    means in the folder ``ledger-tiles`` in the data folder, a text is a folder that exists or the URL of a storage
    provider.
    """

    max_batches: int = 10_000
    file_bytes: int = 4_000_000
    cas: str = ""
    key_folder: str = ""
    checkpoint_copy: str = ""
    tiles: bool | str = False
