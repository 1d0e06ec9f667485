"""A reader to be killed: acknowledges every message once it has printed its id. Argument: URL of the store."""

from __future__ import annotations

import sys

from millstream.log import LogSpec, open_store

with open_store(sys.argv[1]) as store, store.log(LogSpec("torture")).reader("child") as reader:
    for batch in reader.batches(10):
        for message in batch:
            sys.stdout.write(f"{message.id}\n")
            sys.stdout.flush()
            reader.ack(message.id)
