"""The token by which a command proves to the node that serves a folder that it may read that folder."""

from __future__ import annotations

import hmac
from pathlib import Path

KEY_FILE = "console.key"
"""The file, in the data folder, of the key with which the console signs its sessions."""


def local_token(folder: Path) -> str:
    """The token that `millstream status` sends to the node that serves *folder*; empty if no console ever served it."""
    try:
        return token_of((folder / KEY_FILE).read_bytes())
    except OSError:
        return ""


def token_of(key: bytes) -> str:
    """The token of the folder whose console has *key*."""
    return hmac.new(key, b"status of this folder", "sha256").hexdigest()
