"""A batch service to be killed; says so after each commit. Arguments: URL of the store, state file and,
if it is not 50, the window (10 has a shorter delay, too)."""

from __future__ import annotations

import sys
from pathlib import Path

from millstream.batching import BatchConfig
from millstream.batching.service import BatchService
from millstream.core.documents import FileDocument
from millstream.core.metric_collection.hook import NoMetrics
from millstream.log import LogSpec, open_store


class Loud(NoMetrics):
    """Speaks up whenever the service has measured a commit."""

    def gauge(self, name: str, value: float, **labels: str) -> None:
        if name == "batching_open_sources":
            print("committed", flush=True)


def main(url: str, state: Path, window: int) -> None:
    with open_store(url) as store:
        source, output = store.log(LogSpec("in")), store.log(LogSpec("out"))
        rules = BatchConfig(window, 20 if window == 50 else 5)
        service = BatchService(
            source, output, rules, FileDocument(state), metrics=Loud(), commit_every=37, save_every=500
        )
        service.step()
        service.close()
    print("done", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 50)
