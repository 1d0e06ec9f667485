"""Writes a log, trims and vacuums it; the file ``steps`` beside the store notes when the vacuum begins and ends.

Arguments: the folder of the store, how many messages are written, the first id that is left, and ``vacuum`` or ``-``.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

from millstream.log import LogSpec, open_store

folder, messages, first_id, vacuums = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "vacuum"
handle, draw = os.open(folder / "steps", os.O_WRONLY | os.O_CREAT), random.Random(3)
with open_store(f"sqlite:///{folder / 'log.db'}") as store:
    log = store.log(LogSpec("weather", block_messages=5))
    with log.writer() as writer:
        for _ in range(messages // 5):
            writer.append([draw.randbytes(12_000) for _ in range(5)])
    log.trim(first_id)
    if vacuums:
        os.pwrite(handle, b"1", 0)
        log.vacuum()
        os.pwrite(handle, b"2", 0)
