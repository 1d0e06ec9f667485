"""Changes a store for ever, and says before and after each change which one it is: to be killed."""

from __future__ import annotations

import contextlib
import io
import random
import sys

from millstream.stores import ItemNotFoundError, LocalStore


def main(root: str, seed: str, version: str, items: str) -> None:
    store, draw, number = LocalStore(root), random.Random(int(seed)), int(version)
    while True:
        number += 1
        content_id = f"folder/{draw.randrange(int(items))}"
        what = draw.choice(["put", "put", "put", "properties", "delete"])
        print("begin", what, content_id, number, flush=True)
        with contextlib.suppress(ItemNotFoundError):
            change(store, what, content_id, number, draw.randrange(1, 5000))
        print("end", what, content_id, number, flush=True)


def change(store: LocalStore, what: str, content_id: str, number: int, size: int) -> None:
    if what == "put":
        store.put("space", content_id, io.BytesIO(b"%d " % number * size), properties={"put": str(number)})
    elif what == "properties":
        store.set_properties("space", content_id, {"properties": str(number)})
    else:
        store.delete("space", content_id)


if __name__ == "__main__":
    main(*sys.argv[1:])
