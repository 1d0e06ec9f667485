"""Writers, a trimmer, a compactor and a reader of one log in a bucket, killed over and over: run as a program.

``python bucket_kill_loop.py URL SEED KILLS`` lets two writers take the log in the bucket at URL over from each other
again and again, while a trimmer trims it, a compactor merges its commits, and a reader follows it. Each of the five
processes reaches the server through a proxy of its own. KILLS times, one is killed by ``kill -9`` while the proxy holds
a certain request of it: before the server gets the request, which is then lost or done much later, or when the server
has done it and the answer is due. A few of the other requests are lost, late, doubled or refused. A line of JSON for
each kill, and one in the end, say what came of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import multiprocessing
import os
import queue
import random
import signal
import sys
import threading
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import msgspec

from millstream.core.clock import SystemClock
from millstream.log import Gap, Log, LogSpec, LogStore
from millstream.log.backend import Commit
from millstream.log.backends.objects.backend import ObjectsBackend
from millstream.log.backends.objects.commit_object import decode_commit
from millstream.log.backends.objects.names import commit_number
from millstream.log.block import Block
from millstream.log.errors import FencedError, StorageError
from millstream.log.tiering import Compaction, compactor
from millstream.log.tiering.spec import MIN_COMMITS
from millstream.stores.s3 import S3Address, connect, parse_address
from millstream.stores.s3.log_bucket import open_log_bucket
from millstream.testing.log_backends import NAME, block
from millstream.testing.object_bucket import BucketFault, RandomFaults
from support.bucket_chain import chain_blocks, chain_commits
from support.s3_fault_proxy import ProxiedAnswer, ProxiedRequest
from support.server_places import fault_proxy, through

FAULTS = 0.03
PATIENCE_SECONDS = 600.0
LOST, LATE, AFTER = "before, lost", "before, late", "after"
MOMENTS = (LOST, LATE, AFTER)
DONE = (200, 204, 206, 404)
"""Answers of the server to a request that it has done, if only to say that there is no such object."""

POINTS = {
    "writer": [("layout read", LOST), *itertools.product(("commit", "epoch", "fence"), MOMENTS)],
    "trimmer": [*itertools.product(("layout", "delete", "state"), MOMENTS)],
    "compactor": [*itertools.product(("sealed", "layout", "delete", "state"), MOMENTS)],
    "reader": [("read", LOST), ("read", AFTER), ("read sealed", AFTER)],
}
"""Where processes of each role are killed, in turn: at which request, and when."""

MOST_BEFORE = {"writer": 6, "trimmer": 3, "compactor": 2, "reader": 20}
"""How many such requests of a process may be done as they should before the one at which it is killed."""

Say = Callable[[Any], None]


def write(url: str, number: int, say: Say) -> None:
    """Take the log over, commit some messages, and begin again; *say* what was confirmed."""
    draw, backend = random.Random(number), _opened(url)
    while True:
        try:
            _write_in_one_epoch(backend, number, draw.randrange(1, 6), say)
        except (FencedError, StorageError):
            continue


def _write_in_one_epoch(backend: ObjectsBackend, number: int, count: int, say: Say) -> None:
    epoch = backend.head(NAME).epoch
    if not backend.take_lease(NAME, epoch=epoch, holder=b"%d" % number, until=0):
        return
    last_id = backend.head(NAME).last_id
    sequence = int(backend.get_state(NAME, "producer/p").value or 0)
    for _ in range(count):
        sequence += 1
        bodies = [b"%d of %d" % (sequence, number)] * (1 + sequence % 3)
        made = block(last_id + 1, bodies, epoch=epoch + 1)
        last_id += len(bodies)
        commit = Commit(
            epoch=epoch + 1,
            previous_id=last_id - len(bodies),
            last_id=last_id,
            received_at=sequence,
            blocks=[made],
            producer="p",
            sequence=sequence,
        )
        backend.commit(NAME, commit)
        say(("confirmed", made.header.first_id, _digest(made.data), sequence))


def trim(url: str, number: int, say: Say) -> None:
    """Trim what is older than some messages, again and again; enough stay for sealed objects to be read."""
    draw, log = random.Random(number), _log(url)
    while True:
        with contextlib.suppress(StorageError):
            log.trim(max(log.last_id + 1 - draw.randrange(60, 150), log.first_id))


def compact(url: str, number: int, say: Say) -> None:
    """Merge commits into sealed objects, and small sealed objects into larger, again and again."""
    log = _log(url)
    while True:
        with contextlib.suppress(StorageError):
            log.compact()


def read(url: str, number: int, say: Say) -> None:
    """Follow the log from its beginning; *say* what was delivered."""
    log = _log(url)
    position = 1
    while True:
        with contextlib.suppress(StorageError):
            for batch in log.read(position):
                if not isinstance(batch, Gap):
                    say(("delivered", batch.first_id, [message.body.decode() for message in batch]))
                position = batch.last_id + 1


ROLES = {"writer": write, "trimmer": trim, "compactor": compact, "reader": read}


def _log(url: str) -> Log:
    """The log as a process that does not write to it has it; a few commits are enough to be merged."""
    compactor.KEPT_BLOCKS, compactor.MERGED = 4, 8
    store = LogStore(_opened(url), SystemClock(), compaction=Compaction(commits=MIN_COMMITS))
    return store.log(LogSpec(NAME), create=False)


def _opened(url: str) -> ObjectsBackend:
    return ObjectsBackend(open_log_bucket(url), SystemClock())


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def run_child(role: str, url: str, number: int, said: Connection) -> None:
    threading.Thread(target=_die_with_parent, daemon=True).start()
    try:
        ROLES[role](url, number, said.send)
    except BaseException:
        traceback.print_exc()
        raise


def _die_with_parent() -> None:
    """Nothing of a loop that was interrupted continues."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


class Records:
    """What the server has created first under each name, and what the processes have said. Thread-safe."""

    def __init__(self, address: S3Address) -> None:
        self._prefix = address.prefix
        self._lock = threading.Lock()
        self.first: dict[str, bytes] = {}
        self.confirmed: list[tuple[int, str, int]] = []
        self.delivered: list[tuple[int, list[str]]] = []

    def note(self, request: ProxiedRequest, answer: ProxiedAnswer) -> None:
        if request.kind == "create" and answer.status == 200:
            with self._lock:
                self.first.setdefault(request.name.removeprefix(self._prefix), request.body)

    def listen(self, said: Connection) -> None:
        """Keep what a process says, until it is gone."""
        with contextlib.suppress(EOFError):
            while True:
                what, *values = said.recv()
                (self.confirmed if what == "confirmed" else self.delivered).append(tuple(values))
        said.close()


class Kill(msgspec.Struct):
    """A process of *role* is to be killed at a request *place*, at *moment*, after *before* such requests.

    The rest says what was done.
    """

    role: str
    place: str
    moment: str
    before: int
    name: str = ""
    answer: int = 0
    was_alive: bool = False
    status: int | None = None


class Life:
    """A process behind a proxy of its own, which is killed at the first request that *kill* names.

    *killed* gets this when that is done.
    """

    def __init__(
        self, kill: Kill, number: int, address: S3Address, records: Records, killed: queue.Queue[Life]
    ) -> None:
        self.kill, self._records, self._killed = kill, records, killed
        self._faults = RandomFaults(number, FAULTS)
        self._lock = threading.Lock()
        self._is_due, self._passed = True, 0
        self._last: ProxiedRequest | None = None
        self._last_answer = ("", 0)
        self.proxy = fault_proxy(address)
        self.proxy.script, self.proxy.observe = self._script, self._observe
        self.proxy.__enter__()
        context = multiprocessing.get_context("forkserver")
        said, saying = context.Pipe(duplex=False)
        url = through(address, self.proxy).url
        self._process = context.Process(target=run_child, args=(kill.role, url, number, saying), daemon=True)
        with self._lock:
            self._process.start()
        saying.close()
        self._listening = threading.Thread(target=records.listen, args=(said,), daemon=True)
        self._listening.start()

    def finish(self) -> Kill:
        """The kill, once the process is gone and what it has said is kept."""
        self._process.join(PATIENCE_SECONDS)
        self._listening.join(PATIENCE_SECONDS)
        self.kill.status = self._process.exitcode
        return self.kill

    def stop(self) -> None:
        """End the process, which is not to be killed by the plan any more."""
        with self._lock:
            self._is_due = False
        self._process.kill()
        self.finish()

    def end(self) -> None:
        """What the process has asked for and is late is done now, and the proxy is closed."""
        self.proxy.settle()
        self.proxy.__exit__(None, None, None)

    def _script(self, request: ProxiedRequest) -> BucketFault:
        with self._lock:
            place, self._last = self._place(request), request
            if self._is_due and place == self.kill.place:
                self._passed += 1
                if self._passed <= self.kill.before:
                    return BucketFault.NONE
                if self.kill.moment == AFTER:
                    return BucketFault.REPLY_LOST  # it is killed once the server has done the request
                self._strike(request, 0)
                return BucketFault.LATE if self.kill.moment == LATE else BucketFault.LOST
        return self._faults(request.kind, request.name)

    def _observe(self, request: ProxiedRequest, answer: ProxiedAnswer) -> None:
        self._records.note(request, answer)
        with self._lock:
            if request is not self._last:
                return  # it was late, or is done once more
            place = self._place(request)
            self._last_answer = (place, answer.status)
            is_place = place == self.kill.place and self._passed > self.kill.before
            if self._is_due and self.kill.moment == AFTER and is_place and answer.status in DONE:
                self._strike(request, answer.status)

    def _strike(self, request: ProxiedRequest, status: int) -> None:
        self._is_due = False
        self.kill.was_alive = self._process.is_alive()
        self.kill.name, self.kill.answer = request.name, status
        os.kill(self._process.pid or 0, signal.SIGKILL)
        self._killed.put(self)

    def _place(self, request: ProxiedRequest) -> str:
        """What the request is for."""
        folder = request.name.rpartition(f"/{NAME}/")[2].partition("/")[0]
        if request.kind == "get":
            if folder == "layout" and self._last_answer == ("commit", 200):
                return "layout read"
            return {"commits": "read", "sealed": "read sealed"}.get(folder, "")
        if request.kind == "create" and folder == "commits":
            commit = decode_commit(NAME, commit_number(request.name), request.body)
            return "fence" if commit.head.is_fence else "commit"
        if request.kind == "delete":
            return "delete" if b"/commits/" in request.body or b"/sealed/" in request.body else ""
        return {"epochs": "epoch", "layout": "layout", "states": "state", "sealed": "sealed"}.get(folder, "")


def kill_all(address: S3Address, records: Records, seed: int, kills: int) -> Iterator[Kill]:
    """Kill *kills* processes; another takes the place of each."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(["__main__", "boto3"])
    draw, numbers = random.Random(seed), itertools.count(seed * 1_000_000)
    killed: queue.Queue[Life] = queue.Queue()
    plans = {role: itertools.cycle(draw.sample(points, len(points))) for role, points in POINTS.items()}

    def start(role: str) -> Life:
        kill = Kill(role, *next(plans[role]), draw.randrange(MOST_BEFORE[role]))
        return Life(kill, next(numbers), address, records, killed)

    alive = [start(role) for role in ("writer", "writer", "trimmer", "compactor", "reader")]
    dead: dict[int, Life] = {}
    for _ in range(kills):
        life = killed.get(timeout=PATIENCE_SECONDS)
        yield life.finish()
        index = alive.index(life)
        alive[index] = start(life.kill.role)
        if index in dead:
            dead[index].end()  # its late requests are done when its successor is dead as well
        dead[index] = life
    for life in alive:
        life.stop()
    for life in (*dead.values(), *alive):
        life.end()


def outcome(url: str, records: Records) -> dict[str, Any]:
    """What the log, its writers and its reader say in the end."""
    commits, blocks = [commit for commit, _ in chain_commits(records.first)], chain_blocks(records.first)
    bodies = dict(_bodies(blocks))
    sequences = [commit.head.sequence for commit in commits if commit.head.sequence is not None]
    nonces = defaultdict(set)
    for commit in commits:
        nonces[commit.head.epoch].add(commit.head.nonce)
    log = _log(url)
    stored = [(message.id, message.body.decode()) for batch in log.read(log.first_id) for message in batch]
    verification = log.verify(deep=True)
    return {
        "commits": len(commits),
        "epochs": len(nonces),
        "sealed": sum("/sealed/" in name for name in records.first),
        "messages": len(bodies),
        "confirmed": len(records.confirmed),
        "lost": [one for one in records.confirmed if _digest(blocks.get(one[0], b"")) != one[1]],
        "delivered": sum(len(texts) for _, texts in records.delivered),
        "wrong": [
            (first_id, texts)
            for first_id, texts in records.delivered
            if [bodies.get(first_id + n) for n in range(len(texts))] != texts
        ],
        "in order": sequences == list(range(1, len(sequences) + 1)),
        "twice": [sequence for sequence, count in Counter(sequences).items() if count > 1],
        "epochs of two": [epoch for epoch, writers in nonces.items() if len(writers) > 1],
        "problems": list(verification.problems),
        "gaps": [number for number in range(log.first_id, log.last_id + 1) if number not in dict(stored)],
        "differs": [number for number, text in stored if bodies.get(number or 0) != text],
        "first id": log.first_id,
        "last id": log.last_id,
    }


def _bodies(blocks: dict[int, bytes]) -> Iterator[tuple[int, str]]:
    """The messages of *blocks*, by their ids."""
    for first_id, data in blocks.items():
        for n, body in enumerate(Block(data).decode(["body"])["body"].to_pylist()):
            yield first_id + n, body.decode()


def main() -> None:
    url, seed, kills = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    address = parse_address(url)
    records = Records(address)
    log = open_log_bucket(url)
    ObjectsBackend(log, SystemClock()).create(NAME)
    for kill in kill_all(address, records, seed, kills):
        print(json.dumps(msgspec.to_builtins(kill)), flush=True)
    print(json.dumps(outcome(url, records)), flush=True)


if __name__ == "__mp_main__":  # the process from which the others are forked: what takes long is done once, here
    connect(parse_address("s3://none?endpoint=http://127.0.0.1:1"))

if __name__ == "__main__":
    main()
