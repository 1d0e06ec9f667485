"""The section ``anchoring`` of the settings."""

from __future__ import annotations

from millstream.core.settings import Section


class AnchoringSettings(Section, frozen=True):
    """How batches are anchored: at most ``max_batches`` an anchor, in batch files of at most ``file_bytes`` bytes.

    ``cas`` is the URL of the storage provider whose space ``cas`` holds the files (``s3://…``); empty means the folder
    ``cas`` in the data folder.

    ``key_folder`` has the files of the keys that sign the ledgers (``anchors.json``, ``reports.json``,
    ``registry.json``); empty means the folder ``keys`` in the data folder.
    """

    max_batches: int = 10_000
    file_bytes: int = 4_000_000
    cas: str = ""
    key_folder: str = ""
