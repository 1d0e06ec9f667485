"""A node with all its parts at work and without a fault, watched for any issue or unknown that its verdict names.

As a program it takes a node that exists, such as the demo's, and writes what it saw into a file of JSON lines:
``PYTHONPATH=tests/console:tests python tests/console/quiet_hour.py FOLDER STORE:SPACE SECONDS OUTPUT``.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chromium import CHROMIUM, FLAGS, Watched, sign_in
from world import Served, basic, guard, serving

from millstream.cli.main import run
from millstream.core.clock import MICROSECONDS, SystemClock
from millstream.log import LogSpec
from millstream.node import Node
from millstream.settings import load_settings
from support.busy_settings import BUSY_SETTINGS

if TYPE_CHECKING:
    from playwright.sync_api import Page

WORK = f"""{BUSY_SETTINGS}[mill.produce]
duplication_frequency = "2m"
duplication_every = "30s"
bits_frequency = "5m"
bits_every = "1m"
statistics_frequency = "10m"
statistics_every = "1m"
"""
"""What the node does beside serving: everything, and often."""

MESSAGE_SECONDS, ITEM_SECONDS, LOOK_SECONDS = 0.3, 20.0, 5.0


Sighting = Mapping[str, Any]
"""One look: ``second``, ``load`` of the machine, and by :data:`PARTS` the issues and unknown parts that they named."""

PARTS = ("overview", "api", "status", "metrics")


def watch_node(
    folder: Path, store: str, space: str, seconds: float, browser: Any, note: Callable[[Sighting], object]
) -> Mapping[str, int]:
    """Serve the node in *folder* under load for *seconds*, and *note* what is seen; how much was done meanwhile.

    The load are messages, batches, anchors, and items of *space* in *store* that are copied and checked.
    """
    with (folder / "millstream.toml").open("a", encoding="utf-8") as file:
        file.write(WORK)
    ended, done = threading.Event(), {"messages": 0, "items": 0, "looks": 0}
    with serving(guard(folder), broker=True) as served:
        assert served.ask("POST", "/api/v1/topics", {"name": "readings"}, basic("ada"))[0] == 200
        load = (
            _repeated(ended, MESSAGE_SECONDS, lambda number: _publish(served, number, done)),
            _repeated(ended, ITEM_SECONDS, _item_writer(folder, store, space, done)),
        )
        with contextlib.ExitStack() as stack:
            for part in load:
                stack.enter_context(part)
            stack.callback(ended.set)
            page = Watched(browser.new_context()).page(served.url)
            sign_in(page, served, "ada")
            page.goto(served.url)
            clock = SystemClock()
            began = clock.monotonic()
            while (passed := clock.monotonic() - began) < seconds:
                note({"second": round(passed), "load": os.getloadavg()[0], **_look(served, folder, page)})
                done["looks"] += 1
                page.wait_for_timeout(LOOK_SECONDS * 1000)
            overview = served.ask("GET", "/api/v1/overview", headers=basic("vera"))[1]
    checked = overview["checks"]["checked"]
    return {
        **done,
        "anchors": overview["anchors"]["anchors"],
        "copies": overview["copies"]["copies"],
        "checked": checked,
    }


def _look(served: Served, folder: Path, page: Page) -> Mapping[str, list[str]]:
    """What each part of the interface names now."""
    verdict = served.ask("GET", "/api/v1/overview/verdict", headers=basic("vera"))[1]
    metrics = served.ask("GET", "/metrics", headers=basic("vera"))[1]
    printed = io.TextIOWrapper(io.BytesIO(), "utf-8")
    with contextlib.redirect_stdout(printed):
        run(["status", "--json", "--data", str(folder)])
    printed.flush()
    status = json.loads(printed.buffer.getvalue().splitlines()[-1])  # type: ignore[attr-defined]
    return {
        "overview": [" ".join(text.split()) for text in page.locator(".issue").all_inner_texts()],
        "api": _named(verdict),
        "status": _named(status),
        "metrics": re.findall(r"^millstream_verdict_(?:issues|unknown)\S* [1-9]\d*$", metrics, re.MULTILINE),
    }


def _named(verdict: Mapping[str, Any]) -> list[str]:
    found = [f"{one['kind']}: {one['what']}" for one in verdict["issues"]]
    return found + [f"unknown: {one['what']}" for one in verdict["unknown"]]


def _publish(served: Served, number: int, done: dict[str, int]) -> None:
    body = {
        "body": json.dumps({"value": number}), "key": ("temp", "wind")[number % 2], "source": f"s{number % 3}",
        "event_time": SystemClock().now() - number % 3 * MICROSECONDS,
    }  # fmt: skip
    code, answer, _ = served.ask("POST", "/api/v1/logs/readings/messages", body, basic("ada"))
    assert code == 200, answer
    done["messages"] += 1


def _item_writer(folder: Path, store: str, space: str, done: dict[str, int]) -> Callable[[int], None]:
    def write(number: int) -> None:
        settings, _ = load_settings({"data": str(folder)})
        with Node.open(settings) as node:
            node.stores.providers[store].put(space, f"hour/{number:05d}", io.BytesIO(b"%d " % number * 1000))
            log = node.logs.store.log(LogSpec("readings", kind="topic"))
            log.set_pointer("report", log.last_id)
        done["items"] += 1

    return write


@contextlib.contextmanager
def _repeated(ended: threading.Event, seconds: float, act: Callable[[int], None]) -> Iterator[None]:
    """Call *act* with 0, 1, … every so many *seconds* until *ended*; the end of the block raises its error."""
    errors: list[Exception] = []

    def run_it() -> None:
        try:
            for number in itertools.count():
                act(number)
                if ended.wait(seconds):
                    return
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run_it)
    thread.start()
    yield
    ended.set()
    thread.join()
    if errors:
        raise errors[0]


def main(folder: str, place: str, seconds: str, output: str) -> None:
    """Watch the node in *folder*, and write every look into *output*."""
    from playwright.sync_api import sync_playwright

    store, _, space = place.partition(":")
    with Path(output).open("w", encoding="utf-8") as file, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)

        def note(sighting: Sighting) -> None:
            print(json.dumps(sighting), file=file, flush=True)

        print(watch_node(Path(folder), store, space, float(seconds), browser, note))
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
