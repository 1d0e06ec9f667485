"""A log on a small disk of its own is vacuumed with too little room, and with enough; prints what happened as JSON.

Arguments: the empty disk, a folder on another one.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
from pathlib import Path

from millstream.log import LogSpec, StorageFullError, open_store

disk, elsewhere = Path(sys.argv[1]), sys.argv[2]
ballast, draw, found = disk / "ballast", random.Random(2), {}
url = f"sqlite:///{disk / 'log.db'}"
with open_store(url) as store:
    log = store.log(LogSpec("weather"))
    with log.writer() as writer:
        for _ in range(40):
            writer.append([draw.randbytes(10_000) for _ in range(10)])
    log.trim(201)
with open_store(url) as store:
    log = store.log(LogSpec("weather"))

    def vacuum(free: int, temporary: str) -> str:
        """What the vacuum says with so many bytes *free* on the disk, and temporary files in *temporary*."""
        os.environ["SQLITE_TMPDIR"] = temporary
        ballast.unlink(missing_ok=True)
        ballast.write_bytes(bytes(shutil.disk_usage(disk).free - free))
        try:
            sizes = log.vacuum().sizes
        except StorageFullError as error:
            return str(error)
        assert sizes is not None
        return f"{sizes.before} {sizes.after}"

    found["same disk"] = vacuum(4 << 20, str(disk))
    found["no room"] = vacuum(1 << 20, elsewhere)
    found["room elsewhere"] = vacuum(4 << 20, elsewhere)
    found["ok"] = log.verify().ok
print(json.dumps(found))
