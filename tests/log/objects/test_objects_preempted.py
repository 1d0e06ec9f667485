"""A process that sleeps before any one of its requests, while others do much: nothing that it then says is wrong.

Each operation of the backend is stopped before each of its requests in turn; then another process takes over, commits,
trims, or replaces states, and the objects that it deleted are created again by requests that were late. What the
operation answers is compared with the objects that were created first, as in the model of the protocol.
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable, Iterator

import msgspec
import pytest

from millstream.core.clock import VirtualClock
from millstream.log.backend import Commit
from millstream.log.backends.objects.backend import ObjectsBackend
from millstream.log.backends.objects.bucket import Bucket
from millstream.log.backends.objects.commit_object import CommitObject, decode_commit, encode_commit, encode_head
from millstream.log.backends.objects.names import LogNames
from millstream.log.backends.objects.probe import RECORD
from millstream.log.backends.objects.states import BLOCK
from millstream.log.errors import FencedError, StorageUnavailableError
from millstream.log.watermarks import WATERMARKS, Watermarks, encode_watermarks
from millstream.testing.log_backends import NAME, block
from suite.sizes import sized
from support.interposed_bucket import InterposedBucket, RecordingBucket

NAMES = LogNames(NAME)
MOST_REQUESTS = 40
"""More than any operation here makes."""


class Scene:
    """A log with a fence and two commits, the process that will sleep, and what the others may do meanwhile."""

    def __init__(self) -> None:
        self.bucket = RecordingBucket()
        self.bucket.put(RECORD, b"{}")
        self.slow = InterposedBucket(self.bucket)
        self.serial = 0
        self.others = self.open(self.bucket)
        self.others.create(NAME)
        self.sleeper = self.open(self.slow)
        assert self.take(self.sleeper)
        self.commit(self.sleeper)
        self.commit(self.sleeper)

    def open(self, bucket: Bucket) -> ObjectsBackend:
        return ObjectsBackend(bucket, VirtualClock())

    def take(self, backend: ObjectsBackend) -> bool:
        return backend.take_lease(NAME, epoch=backend.head(NAME).epoch, holder=b"holder", until=1)

    def next_commit(self, backend: ObjectsBackend) -> Commit:
        head = backend.head(NAME)
        self.serial += 1
        blocks = [block(head.last_id + 1, [b"message %d" % self.serial], epoch=head.epoch)]
        return Commit(
            epoch=head.epoch, previous_id=head.last_id, last_id=head.last_id + 1, received_at=self.serial, blocks=blocks
        )

    def commit(self, backend: ObjectsBackend) -> Commit:
        commit = self.next_commit(backend)
        backend.commit(NAME, commit)
        return commit

    # What happens while the sleeper sleeps.

    def nothing(self) -> None:
        pass

    def commits(self) -> None:
        assert self.take(self.others)
        self.commit(self.others)
        self.commit(self.others)

    def trims(self) -> None:
        self.commits()
        self._trim()

    def ghosts(self) -> None:
        """After a trim, late requests of writers that were replaced create the deleted names again."""
        self.trims()
        chain = self.chain()
        for before, commit in zip([None, *chain], chain, strict=False):
            name = NAMES.commit(commit.head.number)
            if name not in self.bucket.objects:
                self.bucket.create(name, _ghost(before, commit))

    def _trim(self) -> None:
        """Trim all messages; the newest commit stays."""
        first_id = self.others.head(NAME).last_id + 1
        version = self.others.get_state(NAME, WATERMARKS).version
        marks = encode_watermarks(Watermarks(first_id, first_id))
        assert self.others.put_state(NAME, WATERMARKS, marks, version=version)
        assert self.others.reclaim(NAME, first_id, max_bytes=1 << 30)

    # What is true.

    def chain(self) -> list[CommitObject]:
        found: list[CommitObject] = []
        while (data := self.bucket.first.get(NAMES.commit(len(found) + 1))) is not None:
            found.append(decode_commit(NAME, len(found) + 1, data))
        return found

    def blocks(self) -> dict[int, bytes]:
        """The block of each first id in the chain."""
        found = {}
        for commit in self.chain():
            data = self.bucket.first[NAMES.commit(commit.head.number)]
            for one in commit.head.blocks:
                start = commit.data_start + one.offset
                found[one.first_id] = data[start : start + one.size]
        return found

    def check(self) -> None:
        """The chain continues itself, and a new writer can go on."""
        fresh = self.open(self.bucket)
        assert list(fresh.check(NAME)) == []
        assert self.take(fresh)
        assert self.commit(fresh).blocks[0].data in self.blocks().values()
        for before, after in zip(self.chain(), self.chain()[1:], strict=False):
            assert after.head.previous == before.digest
            assert after.head.previous_id == before.head.last_id
            assert after.head.epoch >= before.head.epoch


def _ghost(before: CommitObject | None, commit: CommitObject) -> bytes:
    """What a writer of an older epoch would have created in place of *commit*: it continues *before* as that does."""
    epoch = commit.head.epoch if before is None else before.head.epoch
    last_id = 0 if before is None else before.head.last_id
    new = block(last_id + 1, [b"ghost"], epoch=epoch)
    head = msgspec.structs.replace(commit.head, epoch=epoch, nonce="ghost", is_fence=before is None)
    if before is None:
        return encode_head(head)[1]
    ghost = Commit(epoch=epoch, previous_id=last_id, last_id=last_id + 1, received_at=0, blocks=[new])
    return encode_commit(head, ghost)[1]


Operation = Callable[[Scene], Callable[[], None]]
"""Prepares an operation of the sleeper, and returns it: it asserts that its answer is true."""


def commit(scene: Scene) -> Callable[[], None]:
    prepared = scene.next_commit(scene.sleeper)

    def act() -> None:
        with contextlib.suppress(FencedError):
            scene.sleeper.commit(NAME, prepared)
            assert scene.blocks().get(prepared.previous_id + 1) == prepared.blocks[0].data, "confirmed and not stored"

    return act


def take_over(scene: Scene) -> Callable[[], None]:
    epoch = scene.sleeper.head(NAME).epoch

    def act() -> None:
        if scene.sleeper.take_lease(NAME, epoch=epoch, holder=b"sleeper", until=1):
            assert any(each.head.is_fence and each.head.epoch == epoch + 1 for each in scene.chain()), "no fence"

    return act


def take_over_from_an_old_place(scene: Scene) -> Callable[[], None]:
    """The sleeper knows the commits up to the second; two more were made since, and trimmed while it sleeps."""
    scene.commits()
    epoch = scene.others.head(NAME).epoch

    def act() -> None:
        if scene.sleeper.take_lease(NAME, epoch=epoch, holder=b"sleeper", until=1):
            assert any(each.head.is_fence and each.head.epoch == epoch + 1 for each in scene.chain()), "no fence"

    return act


def read(scene: Scene) -> Callable[[], None]:
    scene.commits()

    def act() -> None:
        for found in scene.sleeper.read(NAME, 1, 2**62, max_bytes=1 << 30):
            assert scene.blocks().get(found.first_id) == found.data, "delivered and not in the chain"

    return act


def read_for_the_first_time(scene: Scene) -> Callable[[], None]:
    scene.sleeper = scene.open(scene.slow)
    return read(scene)


def look(scene: Scene) -> Callable[[], None]:
    scene.commits()
    before = scene.others.head(NAME).last_id

    def act() -> None:
        head = scene.sleeper.head(NAME)
        assert before <= head.last_id <= scene.chain()[-1].head.last_id

    return act


def trim(scene: Scene) -> Callable[[], None]:
    scene.commits()

    def act() -> None:
        scene.sleeper.reclaim(NAME, scene.others.head(NAME).last_id + 1, max_bytes=1 << 30)
        assert scene.others.head(NAME).last_id == scene.chain()[-1].head.last_id

    return act


OPERATIONS = (commit, take_over, take_over_from_an_old_place, read, read_for_the_first_time, look, trim)
MEANWHILE = (Scene.nothing, Scene.commits, Scene.trims, Scene.ghosts)


@pytest.mark.parametrize("loses", [False, True], ids=["sleeps", "late"])
@pytest.mark.parametrize("meanwhile", MEANWHILE, ids=lambda each: each.__name__)
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.__name__)
def test_a_process_that_sleeps_before_any_request_says_nothing_wrong(
    operation: Operation, meanwhile: Callable[[Scene], None], loses: bool
) -> None:
    for at in range(MOST_REQUESTS):
        scene = Scene()
        act = operation(scene)
        scene.slow.begin(at, lambda: meanwhile(scene), loses=loses)  # noqa: B023 - called before the next one is made
        with contextlib.suppress(StorageUnavailableError):
            act()
        scene.check()
        if scene.slow.requests <= at:
            return
    raise AssertionError(f"{operation.__name__} makes more than {MOST_REQUESTS} requests")


STRIDE = sized(quick=7, ci=3, long=1)
"""Every how many requests the two that sleep are stopped."""


@pytest.mark.parametrize("loses", [(False, False), (False, True), (True, False), (True, True)], ids=str)
@pytest.mark.parametrize("meanwhile", [Scene.commits, Scene.ghosts], ids=lambda each: each.__name__)
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.__name__)
def test_a_successor_that_sleeps_as_well_says_nothing_wrong(
    operation: Operation, meanwhile: Callable[[Scene], None], loses: tuple[bool, bool]
) -> None:
    for at in range(0, MOST_REQUESTS, STRIDE):
        for successor_at in range(0, MOST_REQUESTS, STRIDE):
            scene = Scene()
            successor = InterposedBucket(scene.bucket)
            act = operation(scene)
            scene.slow.begin(at, lambda: _succeed(scene, successor), loses=loses[0])  # noqa: B023 - this turn's
            successor.begin(successor_at, lambda: meanwhile(scene), loses=loses[1])  # noqa: B023 - this turn's
            with contextlib.suppress(StorageUnavailableError):
                act()
            scene.check()
            if successor.requests <= successor_at:
                break
        if scene.slow.requests <= at:
            return


def _succeed(scene: Scene, bucket: InterposedBucket) -> None:
    """Another writer takes over and commits, by way of *bucket*."""
    backend = scene.open(bucket)
    with contextlib.suppress(StorageUnavailableError, FencedError):
        if scene.take(backend):
            commit = scene.commit(backend)
            assert scene.blocks().get(commit.previous_id + 1) == commit.blocks[0].data, "confirmed and not stored"


def _versions(key: str, count: int) -> Iterator[str]:
    return (NAMES.state(key, version) for version in range(1, count + 1))


class States:
    """A state that others replace until its oldest versions are deleted and created again by late requests."""

    def __init__(self, known: int, newest: int) -> None:
        self.bucket = RecordingBucket()
        self.bucket.put(RECORD, b"{}")
        self.slow = InterposedBucket(self.bucket)
        self.others, self.sleeper = (ObjectsBackend(bucket, VirtualClock()) for bucket in (self.bucket, self.slow))
        self.others.create(NAME)
        self.put(known)
        self.sleeper.get_state(NAME, "key")
        self.put(newest)
        self.newest = newest

    def put(self, newest: int) -> None:
        for version in range(self.others.get_state(NAME, "key").version, newest):
            assert self.others.put_state(NAME, "key", b"value %d" % (version + 1), version=version)

    def replace(self) -> None:
        self.put(BLOCK + 3)

    def replace_and_create_again(self) -> None:
        self.replace()
        for name in _versions("key", BLOCK):
            self.bucket.create(name, msgspec.json.encode({"value": b"ghost", "nonce": ""}))

    def value(self, version: int) -> bytes:
        """What the first object of *version* has as its value."""
        data = self.bucket.first[NAMES.state("key", version)] if version else b"{}"
        return base64.b64decode(msgspec.json.decode(data).get("value", ""))


@pytest.mark.parametrize("newest", range(BLOCK - 2, BLOCK + 2))
@pytest.mark.parametrize("known", [0, BLOCK - 2, BLOCK - 1])
def test_a_state_is_never_a_version_that_was_created_again(known: int, newest: int) -> None:
    for at in range(MOST_REQUESTS):
        states = States(min(known, newest), newest)
        states.slow.begin(at, states.replace_and_create_again, loses=False)
        found = states.sleeper.get_state(NAME, "key")
        assert found.version >= newest
        assert found.value == states.value(found.version), f"version {found.version}, asleep before request {at}"
        if states.slow.requests <= at:
            return
    raise AssertionError("too many requests")


@pytest.mark.parametrize("loses", [False, True], ids=["sleeps", "late"])
@pytest.mark.parametrize("meanwhile", [States.replace, States.replace_and_create_again])
@pytest.mark.parametrize("newest", [1, BLOCK - 1, BLOCK])
def test_a_state_is_written_or_not_as_is_said(newest: int, meanwhile: Callable[[States], None], loses: bool) -> None:
    for at in range(MOST_REQUESTS):
        states = States(newest, newest)
        states.slow.begin(at, lambda: meanwhile(states), loses=loses)  # noqa: B023 - as above
        try:
            written = states.sleeper.put_state(NAME, "key", b"own", version=newest)
        except StorageUnavailableError:
            continue
        assert written == (states.value(newest + 1) == b"own"), f"asleep before request {at}"
        if states.slow.requests <= at:
            return
    raise AssertionError("too many requests")
