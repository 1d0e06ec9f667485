"""A store whose process is killed at any moment holds each item whole: bytes, checksum and properties together."""

from __future__ import annotations

import hashlib
import io
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from millstream.stores import ItemNotFoundError, LocalStore
from suite.sizes import sized

pytestmark = pytest.mark.crash

ITEMS = 6
Change = tuple[str, int]
NEVER: Change = ("delete", 0)


class Observed:
    """What the killed process said it had done, item by item, and what it was doing when it was killed."""

    def __init__(self) -> None:
        self.done: dict[str, Change] = {}
        self.doing: tuple[str, Change] | None = None
        self.last = 0

    def hear(self, line: str) -> None:
        moment, what, content_id, number = line.split()
        self.last = int(number)
        there = self.done.get(content_id, NEVER)[0] != "delete"
        if moment == "begin":
            self.doing = (content_id, (what, self.last))
        else:
            self.doing = None
            if there or what == "put":
                self.done[content_id] = (what, self.last)

    def allowed(self, content_id: str) -> list[Change]:
        """What may have been the last change of an item."""
        under_way = [self.doing[1]] if self.doing and self.doing[0] == content_id else []
        return [self.done.get(content_id, NEVER), *under_way]


def start_writer(root: Path, seed: int, last: int, items: int = ITEMS) -> subprocess.Popen[str]:
    """A process that changes the store until it is killed."""
    script = Path(__file__).with_name("crash_writer.py")
    command = [sys.executable, str(script), str(root), str(seed), str(last), str(items)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def run_and_kill(root: Path, seed: int, observed: Observed) -> None:
    """Let a writer make a random number of changes, and kill it in the midst of the next one."""
    draw = random.Random(seed)
    with start_writer(root, seed, observed.last) as child:
        assert child.stdout is not None
        steps = draw.randrange(2, 60)
        killer = threading.Timer(draw.random() * 0.002, child.send_signal, (signal.SIGKILL,))
        for number, line in enumerate(child.stdout):
            if line.endswith("\n"):
                observed.hear(line)
            if number == steps:
                killer.start()
        assert child.wait() == -signal.SIGKILL


@pytest.mark.smoke
@pytest.mark.long
def test_p2_an_item_is_old_or_new_and_whole_after_kill_9(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.create_space("space")
    observed = Observed()
    for seed in range(sized(ci=12, long=200)):
        run_and_kill(tmp_path, seed, observed)
        for number in range(ITEMS):
            check_item(store, f"folder/{number}", observed)
        observed.doing = None
    store.put("space", "last", io.BytesIO(b""))
    drafts = [path for path in (tmp_path / ".millstream" / "drafts").iterdir() if path.is_dir()]
    assert len(drafts) == 1, "the drafts of the dead are cleared away"


def check_item(store: LocalStore, content_id: str, observed: Observed) -> None:
    """The item is what was confirmed last, or what was under way when the process was killed."""
    allowed = observed.allowed(content_id)
    try:
        info = store.info("space", content_id)
    except ItemNotFoundError:
        assert "delete" in {what for what, _ in allowed}
        observed.done[content_id] = NEVER
        return
    data = store.path_of("space", content_id).read_bytes()
    assert info.checksum() == hashlib.sha256(data).hexdigest()
    assert info.size == len(data)
    ((what, number),) = info.properties.items()
    assert (what, int(number)) in allowed
    assert what != "put" or data.startswith(f"{number} ".encode())
    observed.done[content_id] = (what, int(number))


@pytest.mark.smoke
def test_p2_processes_that_write_the_same_items_and_are_killed_leave_each_of_them_whole(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.create_space("space")
    children = [start_writer(tmp_path, seed, seed * 1000, items=2) for seed in range(3)]
    for child in children:
        assert child.stdout is not None
        for _ in range(60):
            child.stdout.readline()
    for child in children:
        child.kill()
        child.communicate()
    for entry in store.entries("space"):
        info = store.info("space", entry.content_id)
        data = store.path_of("space", entry.content_id).read_bytes()
        assert (info.checksum(), info.size) == (hashlib.sha256(data).hexdigest(), len(data))
        assert "put" not in info.properties or data.startswith(f"{info.properties['put']} ".encode())
