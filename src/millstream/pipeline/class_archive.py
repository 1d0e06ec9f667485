"""An archive of Spark's loaded classes, so that its Java machine starts in a fraction of the time.

Java writes it when a machine that was told to ends, and takes it for the same Java, the same jars in the same order and
the same options only: all of these are in the file's name. Java 25 keeps compiled methods in it as well.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from millstream.pipeline.gateway import class_path
from millstream.pipeline.java import JavaCandidate

_AHEAD_OF_TIME = 25
"""The first Java with ``-XX:AOTCacheOutput`` (JEP 514)."""


def archive_path(folder: Path, java: JavaCandidate, *, quick: bool) -> Path:
    """The path of the archive for *java* in *folder*; *quick* machines have a separate one."""
    identity = f"{java.executable}\n{java.version}\n{quick}\n{class_path()}"
    return folder / f"classes-{hashlib.sha256(identity.encode()).hexdigest()[:16]}.jsa"


def using(archive: Path, java: JavaCandidate) -> Sequence[str]:
    """The options with which a machine takes *archive*; none where it is not there. A bad one is passed over."""
    if not archive.is_file():
        return ()
    if _is_ahead_of_time(java):
        return (f"-XX:AOTCache={archive}", "-Xlog:aot=off", "-Xlog:cds=off")
    return (f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off")


def writing(archive: Path, java: JavaCandidate) -> Sequence[str]:
    """The options with which a machine writes *archive* when it ends."""
    if _is_ahead_of_time(java):
        return (f"-XX:AOTCacheOutput={archive}", "-Xlog:aot=off", "-Xlog:cds=off")
    return (f"-XX:ArchiveClassesAtExit={archive}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off")


def _is_ahead_of_time(java: JavaCandidate) -> bool:
    return java.version is not None and java.version >= _AHEAD_OF_TIME
