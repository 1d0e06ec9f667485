"""A writer whose disk is recorded: the file ``confirmed`` beside the store notes what was confirmed, and when.

Arguments: folder, packs.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

from millstream.log import LogSpec, open_store

folder, packs = Path(sys.argv[1]), int(sys.argv[2])
handle = os.open(folder / "confirmed", os.O_WRONLY | os.O_CREAT)
with open_store(f"sqlite:///{folder / 'log.db'}") as store, store.log(LogSpec("weather")).writer("p") as writer:
    for turn in range(1, packs + 1):
        draw = random.Random(turn)  # what does not compress fills the write-ahead log, so that it is checkpointed
        writer.append([b"%d %d " % (turn, n) + draw.randbytes(35_000) for n in range(20)], sequence=turn)
        os.pwrite(handle, b"%08d" % turn, 0)
