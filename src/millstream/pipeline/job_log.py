"""The lines that jobs log when they are done, in a file: what ran, over how much, and how long it took."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

LOGGER = "millstream.pipeline"
"""The logger that gets a line of canonical JSON per finished job: its name and inputs, rows in and out, bytes, seconds
and counts."""


@contextlib.contextmanager
def job_log_file(path: Path) -> Iterator[None]:
    """Append the lines of jobs that end inside the block to the file *path*; the folder is made where it is absent."""
    path.parent.mkdir(parents=True, exist_ok=True)
    logger, handler = logging.getLogger(LOGGER), logging.FileHandler(path, encoding="utf-8", delay=True)
    handler.setFormatter(logging.Formatter("%(message)s"))
    handler.addFilter(lambda record: record.levelno == logging.INFO)
    before = logger.level
    logger.addHandler(handler)
    if not logger.isEnabledFor(logging.INFO):
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)
        handler.close()
