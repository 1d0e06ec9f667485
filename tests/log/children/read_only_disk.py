"""Logs on a small disk that is remounted to be read alone, and then to be written again; prints what happened as JSON.

Arguments: the empty disk, the scheme of the store, an archive with a data folder of format 1 over such a store.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from millstream.log import LogError, LogSpec, open_store

disk, scheme, archive = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
url = f"{scheme}:///{disk / 'log'}"
former = f"sqlite:///{disk}/sqlite/log.db" if scheme == "sqlite" else f"segments:///{disk}/segments/log"
SPEC = LogSpec("weather")


def remount(way: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{way}", str(disk)], check=True)


def refusal(act: Callable[[], Any]) -> str:
    try:
        act()
    except LogError as error:
        return type(error).__name__
    return "done"


def look(read_only: bool) -> dict[str, Any]:
    """What a store on the disk gives that can only be read."""
    with open_store(url, read_only=read_only) as store:
        log = store.log(SPEC, create=False)
        acts: list[Callable[[], Any]] = [
            log.writer,
            lambda: log.trim(5),
            lambda: log.set_pointer("worker", 2),
            lambda: store.log(LogSpec("new")),
        ]
        return {
            "read": sum(len(batch) for batch in log.read()),
            "ok": log.verify().ok,
            "writer": log.info().writer,
            "refused": [refusal(act) for act in acts],
        }


with tarfile.open(archive) as packed:
    packed.extractall(disk, filter="data")
with open_store(url) as store, store.log(SPEC).writer() as writer:
    writer.append([b"a"] * 100)
if not os.fork():
    unclosed = open_store(f"{url}-killed").log(SPEC).writer()
    unclosed.append([b"b"] * 10)
    os._exit(0)
os.wait()
remount("ro")
found: dict[str, Any] = {"read_only": look(read_only=True), "default": look(read_only=False)}
with open_store(former) as store:
    found["former"] = sorted(store.logs())
try:
    with open_store(f"{url}-killed") as store:
        found["killed"] = store.log(SPEC, create=False).last_id
except LogError as error:
    found["killed"] = f"{type(error).__name__}: {error}"
remount("rw")
with open_store(url) as store, store.log(SPEC).writer() as writer:
    found["after"] = writer.append([b"c"]).last  # type: ignore[union-attr]
with open_store(f"{url}-killed") as store:
    found["killed_after"] = store.log(SPEC).last_id
print(json.dumps(found))
