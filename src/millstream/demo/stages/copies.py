"""Stages 4: content comes into the first store, and goes to the two others by policy."""

from __future__ import annotations

import mimetypes
import sysconfig
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from millstream.demo.errors import DemoError
from millstream.demo.runner import DemoRun, StageResult
from millstream.mill.duplication.planning import plan_space_duplication
from millstream.mill.duplication.source_recorder import record_space
from millstream.mill.policies.policy import Pair, Policy, policy_text
from millstream.mill.policies.repository import PolicyRepository
from millstream.mill.policies.saving import save_policy
from millstream.mill.tasks import QueueName
from millstream.mill.workers.manager import WorkTally
from millstream.node import Node
from millstream.queue import WorkQueue
from millstream.stores import CAS_SPACE, AlreadyExistsError, Store, all_entries

PRIMARY, COPIES = "primary", ("second", "third")
FILES_SPACE = "python-stdlib"
SPACES = (CAS_SPACE, FILES_SPACE)
_LEFT_OUT = {"site-packages", "dist-packages", "__pycache__", "test", "tests"}


def put_files(demo_run: DemoRun) -> None:
    """Put the running Python's standard library into the first store; the rest is left out once the run is closing."""
    store = demo_run.node.stores.providers[PRIMARY]
    store.create_space(FILES_SPACE)

    def put(file: tuple[str, Path]) -> None:
        if not demo_run.closing.is_set():
            _put(store, *file)

    with ThreadPoolExecutor(demo_run.node.settings.mill.workers) as pool:
        for _ in pool.map(put, standard_library()):
            pass


def ingest_files(demo_run: DemoRun) -> StageResult:
    """Record what the files in the first store must hash to, also the anchored ones, which are there already."""
    store = demo_run.node.stores.providers[PRIMARY]
    recorded = {
        space: record_space(demo_run.node.stores.providers, demo_run.node.stores.manifest, PRIMARY, space)
        for space in SPACES
    }
    unknown = sum(found.without_checksum for found in recorded.values())
    if unknown:
        raise DemoError(
            f"{unknown:,} items in store {PRIMARY!r} have no recorded checksum: delete the folder "
            f"{demo_run.node.folder} and run the demo again"
        )
    size = sum(entry.size for entry in all_entries(store, FILES_SPACE))
    return StageResult({"files": recorded[FILES_SPACE].listed, "anchored files": recorded[CAS_SPACE].listed}, size)


def copy_files(demo_run: DemoRun) -> None:
    """Record and copy the files, which need no anchors; the rest is left out once the run is closing."""
    node = demo_run.node
    record_space(node.stores.providers, node.stores.manifest, PRIMARY, FILES_SPACE)
    _duplicate(demo_run, FILES_SPACE, step=lambda *_: None)


def duplicate_spaces(demo_run: DemoRun) -> StageResult:
    """Write the policy, plan what it asks for, and let workers copy until nothing is left to do."""
    _duplicate(demo_run, *SPACES, step=demo_run.step)
    stores = demo_run.node.stores.providers
    copies = [entry.size for name in COPIES for space in SPACES for entry in all_entries(stores[name], space)]
    return StageResult({"copies": len(copies)}, sum(copies))


def _duplicate(demo_run: DemoRun, *spaces: str, step: Callable[[int, int], None]) -> None:
    node = demo_run.node
    policy = _policy(node)
    queue = node.queues.open(QueueName.DUPLICATION_LOW)
    if queue.depth().open:  # an earlier run was cut off, perhaps in the midst of its plan: what it left comes first
        _work(demo_run, queue, step)
    for space in spaces:
        for pair in policy.lookup(space):
            plan_space_duplication(node.stores.providers, node.stores.manifest, pair, space, queue)
    _work(demo_run, queue, step)


def _work(demo_run: DemoRun, queue: WorkQueue, step: Callable[[int, int], None]) -> None:
    planned = queue.depth().open

    def tell(tally: WorkTally) -> None:
        step(tally.done, planned)

    workers = demo_run.node.mill.workers(QueueName.DUPLICATION_LOW, on_progress=tell)
    demo_run.stop_at_close(workers.stop)
    workers.run_until_drained()
    if queue.depth().dead:
        cause = queue.dead(limit=1)[0].cause
        raise DemoError(
            f"{queue.depth().dead:,} copies failed, the first because of: {cause}; `millstream queue dead "
            f"{QueueName.DUPLICATION_LOW.value} --data {demo_run.node.folder}` lists the failed copies"
        )


def standard_library() -> list[tuple[str, Path]]:
    """The files of the running Python's standard library: their names relative to its folder, and their paths."""
    root = Path(sysconfig.get_paths()["stdlib"])
    files = (path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    kept = [path for path in files if not _LEFT_OUT.intersection(path.relative_to(root).parts[:-1])]
    return sorted((path.relative_to(root).as_posix(), path) for path in kept)


def _put(store: Store, content_id: str, path: Path) -> None:
    mimetype = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    try:
        with path.open("rb") as file:
            store.put(FILES_SPACE, content_id, file, mimetype=mimetype, create_only=True)
    except AlreadyExistsError:
        return  # an earlier run had come so far


def _policy(node: Node) -> Policy:
    """The policy in force with the demo's pairs; it is saved unless it has them, and its other rules are kept."""
    place, account = node.policies.location, node.settings.mill.account
    policy = PolicyRepository(place).load().by_account.get(account, Policy(account))
    pairs = tuple(Pair(PRIMARY, copy) for copy in COPIES)
    if all(policy.spaces.get(space) == pairs for space in SPACES):
        return policy
    policy = msgspec.structs.replace(policy, spaces={**policy.spaces, **dict.fromkeys(SPACES, pairs)})
    save_policy(place, account, policy_text(policy).encode("utf-8"))
    return policy
