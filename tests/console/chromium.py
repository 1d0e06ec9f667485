"""Debian's Chromium for the tests of the console, and the pages that they go through."""

from __future__ import annotations

import shutil
from urllib.parse import quote

from world import DAMAGED, did

CHROMIUM = shutil.which("chromium") or ""
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
PAGES = {
    "overview": "/", "logs": "/logs", "log": "/logs/weather", "message": "/logs/weather/7", "batches": "/batches",
    "anchors": "/anchors", "anchor": "/anchors/2", "proof": "/proof?log=weather&id=7", "policies": "/policies",
    "policy": "/policies/local", "integrity": "/integrity", "findings": "/integrity/findings",
    "space": "/integrity/space?store=second&space=photos",
    "item": f"/integrity/item?space=photos&content_id={quote(DAMAGED, safe='')}", "queues": "/queues",
    "queue": "/queues/duplication-high", "task": "/queues/duplication-high/1", "workers": "/workers",
    "dead-letters": "/dead-letters", "reports": "/integrity/reports",
    "identifiers": f"/identifiers?did={did()}", "system": "/system",
}  # fmt: skip
PATIENCE = 30_000
