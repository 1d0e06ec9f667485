"""Damage to files behind the back of whoever keeps them, for drills and demonstrations."""

from __future__ import annotations

import os
import random
from pathlib import Path

from millstream.core.errors import InputError


def flip_bit(path: Path, seed: int = 0) -> tuple[int, int]:
    """Flip one bit of the file, chosen by *seed*, as a failing disk would: size and times stay as they were.

    Returns the byte's offset and the bit (0 to 7). Raises :class:`InputError` where the file is empty.
    """
    status = path.stat()
    if not status.st_size:
        raise InputError(f"{path} is empty: there is no bit to flip; choose another file")
    draw = random.Random(seed)
    offset, bit = draw.randrange(status.st_size), draw.randrange(8)
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ (1 << bit)]))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    return offset, bit


def remove(path: Path) -> None:
    """Delete the file, as a careless hand would."""
    path.unlink()
