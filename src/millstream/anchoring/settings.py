"""The section ``anchoring`` of the settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import unquote, urlsplit

import msgspec

from millstream.core.amounts import Duration
from millstream.core.clock import MICROSECONDS
from millstream.core.secrets import safe_url
from millstream.core.settings import Section, SettingsError, require_time

TILES_FOLDER = "ledger-tiles"
"""Where tiles are published in the data folder."""


class AnchoringSettings(Section, frozen=True):
    """How batches are anchored: at most ``max_batches`` (1 to 10,000) an anchor, in batch files of at most
    ``file_bytes`` bytes (1 to 4,000,000).

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

    ``witness_policy`` is a file of the form `tlog-policy`: its witnesses, each with a URL, are asked to cosign each
    checkpoint, and proofs end with the newest checkpoint that its quorum has signed. Empty means no witnesses. If a
    checkpoint lacks the quorum for longer than ``witness_alarm``, the node reports it.

    ``timestamp_authorities`` are the URLs of time-stamping authorities (RFC 3161), each of which is asked at most once
    in ``timestamp_interval`` to stamp the newest checkpoint of each ledger that has grown. Each token is verified with
    the certificates in the file ``timestamp_certificates`` (PEM) when it arrives; without a file tokens are kept
    unverified. ``timestamp_digest`` is the digest that is stamped, ``sha256`` or ``sha512``. If an entry has no time
    stamp ``timestamp_alarm`` after the interval, the node reports it.

    Time stamps are renewed ``timestamp_renewal`` before the end of the certificate that signed them, or if their digest
    is one of ``timestamp_retired_digests``.
    """

    host_settings = frozenset(["key_folder", "checkpoint_copy", "tiles", "witness_policy", "timestamp_certificates"])

    max_batches: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 10_000
    file_bytes: Annotated[int, msgspec.Meta(ge=1, le=4_000_000)] = 4_000_000
    cas: str = ""
    key_folder: str = ""
    checkpoint_copy: str = ""
    tiles: bool | str = False
    witness_policy: str = ""
    witness_alarm: Duration = Duration(3600 * MICROSECONDS)
    timestamp_authorities: tuple[str, ...] = ()
    timestamp_interval: Duration = Duration(86_400 * MICROSECONDS)
    timestamp_alarm: Duration = Duration(86_400 * MICROSECONDS)
    timestamp_certificates: str = ""
    timestamp_digest: Literal["sha256", "sha512"] = "sha256"
    timestamp_renewal: Duration = Duration(90 * 86_400 * MICROSECONDS)
    timestamp_retired_digests: tuple[Literal["sha256", "sha384", "sha512"], ...] = ()

    def __post_init__(self) -> None:
        require_time(self, "timestamp_interval")
        if self.timestamp_digest in self.timestamp_retired_digests:
            raise ValueError(
                f"timestamp_digest is {self.timestamp_digest!r}, which is also in timestamp_retired_digests: choose "
                "another digest, or remove it from the retired ones"
            )
        for url in self.timestamp_authorities:
            if not url.startswith(("http://", "https://")):
                raise ValueError(
                    f"timestamp_authorities has {safe_url(url)[:200]!r}, whose scheme is neither http nor https: write "
                    "http://HOST/PATH or https://HOST/PATH"
                )

    def require_two_places(self, folder: Path) -> None:
        """Raise :class:`SettingsError` where the copy of checkpoints and the tiles of the node in *folder* meet."""
        published = self.tiles if isinstance(self.tiles, str) else str(folder / TILES_FOLDER)
        if self.checkpoint_copy and self.tiles and _place(self.checkpoint_copy) == _place(published):
            raise SettingsError(
                f"anchoring.checkpoint_copy and anchoring.tiles name the same place {self.checkpoint_copy!r}: choose "
                "another one for the copy, on another disk or in another bucket"
            )


def _place(text: str) -> str | Path:
    """*text*, a path or a URL, in one spelling."""
    scheme, _, rest = text.partition(":")
    if scheme == "file":
        return Path(unquote(urlsplit(text).path)).resolve()
    return text.rstrip("/") if rest.startswith("//") else Path(text).expanduser().resolve()
