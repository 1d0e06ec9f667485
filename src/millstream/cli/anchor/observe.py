"""``millstream anchor observe``: read the node's own ledgers back, or follow another registry's ledger."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click
import msgspec

from millstream.cli.common import data_options, json_option, print_json
from millstream.cli.examples import example
from millstream.cli.parameter_types import Duration
from millstream.cli.stop_signals import end_if_stopped, stop_on_signals
from millstream.core.amounts import Duration as Microseconds
from millstream.core.amounts import counted
from millstream.core.clock import MICROSECONDS, Clock
from millstream.core.errors import MillstreamError
from millstream.core.printable import MAX_SHOWN, printable
from millstream.node import Node
from millstream.settings import FollowSettings, RegistrySettings, Settings

if TYPE_CHECKING:
    from millstream.anchoring.observer import ObserverProgress
    from millstream.anchoring.registry import AnchorRecord, FollowerProgress, FollowState, LedgerFollower
    from millstream.anchoring.remote_cas import CasFailure

PAUSE = 0.2
"""Seconds between checks for a request to stop."""

PROGRESS_SECONDS = 2.0
MOST_LINES = 10
"""Maximum number of lines in a run about a location that does not return files."""

_log = logging.getLogger(__name__)


@example("millstream anchor observe --ledger https://registry.example.org --cas https://ipfs.io/ipfs --cas files/")
@click.command()
@click.option(
    "--ledger",
    metavar="FILE|URL",
    help="Ledger of another registry: a file of entries, or the address of a node; requires --cas.",
)
@click.option(
    "--cas", multiple=True, metavar="URL", help="Location of the files of --ledger; repeatable, tried in order."
)
@click.option(
    "--profile",
    type=click.Choice(["sidetree", "orb"]),
    help="Protocol profile of its network (default: the setting registry.profile).",
)
@click.option(
    "--method",
    metavar="NAME",
    help="DID method of its network, such as ion (default: the setting registry.method, or that of the profile).",
)
@click.option("--follow", is_flag=True, help="Keep running until SIGTERM or Ctrl-C, and wait for missing files.")
@click.option(
    "--interval",
    type=Duration(),
    help="With --follow: interval between reads of the ledger, such as 10s (default: the setting "
    "registry.follow.interval).",
)
@click.option(
    "--rebuild",
    is_flag=True,
    help="Read all of a ledger that lost entries that this node had read. Stop the node's other processes first.",
)
@json_option
@data_options
def observe(
    settings: Settings,
    *,
    ledger: str | None,
    cas: tuple[str, ...],
    profile: str | None,
    method: str | None,
    follow: bool,
    interval: int | None,
    rebuild: bool,
    as_json: bool,
) -> None:
    """Read and verify new ledger entries, and index their content.

    With --ledger, follow the registry of another operator: this node then answers `millstream did resolve` and accepts
    no operations. FILE has one entry per line, as `millstream anchor ledger --ledger registry --json` prints them, or
    one object per line with number, time and anchor_string, whose chain cannot be verified. http(s)://HOST is a node,
    any other URL a file of such lines. --cas names a node (http(s)://HOST), a gateway (the URL before /CID), a folder
    or a storage provider.

    Nothing is written to the ledger's or the files' origin. Each entry is recorded completely or not at all: an
    interrupted run resumes with the same command. An entry whose files are missing everywhere is skipped and retried by
    the next run (exit code 1 until then).

    If the log of a ledger was restored from an older backup, this command and all that anchor end with an error. If the
    lost entries cannot be restored, --rebuild deletes what the node had read of that ledger, and reads the ledger
    again. The content of lost entries then waits to be anchored: `millstream anchor feed` reads all batches of a log
    again, and operations are accepted again if they ended within registry.op_queue_operation_lifespan.
    """
    if rebuild and ledger is not None:
        raise click.UsageError("--rebuild is for the node's own ledgers: omit --ledger")
    changed = _followed(settings.registry, ledger, cas, profile, method, interval)
    if changed.follow.ledger:
        with Node.open(msgspec.structs.replace(settings, registry=changed), create=True) as node:
            if ledger is None:  # named by the settings, so this node has other work too
                _observe_batches(node, rebuild=rebuild)
            _follow(node, changed.follow, as_json=as_json, forever=follow)
        return
    if cas or profile or method or follow or interval:
        raise click.UsageError("--cas, --profile, --method, --follow and --interval require --ledger: add --ledger")
    with Node.open(settings) as node:
        seen = _observe_batches(node, rebuild=rebuild)
        if node.registry.follow_state() is None:  # else the registry has the entries of another ledger
            observer = node.registry.instance.observer
            observer.rebuild() if rebuild else observer.observe()
    if as_json:
        print_json(seen)
    else:
        print(f"{counted(seen.entries, 'new entry')}; the observer is at entry {seen.position}")


def _observe_batches(node: Node, *, rebuild: bool) -> ObserverProgress:
    return node.anchoring.batch_writer.rebuild() if rebuild else node.anchoring.observer.observe()


def follow_until(
    follower: LedgerFollower,
    clock: Clock,
    seconds: float,
    stopping: Callable[[], bool],
    failed: Callable[[str], object],
    *,
    patient: bool = False,
) -> None:
    """Let *follower* catch up every *seconds* until *stopping*; *failed* is called once for each error.

    Raises :class:`~millstream.anchoring.errors.LedgerError` where the ledger was rewritten, unless this is *patient*.
    """
    from millstream.anchoring.errors import LedgerError
    from millstream.anchoring.registry import FollowError

    last = ""
    while not stopping():
        text = ""
        try:
            follower.catch_up(stopping, patient=True)
        except MillstreamError as error:
            if isinstance(error, LedgerError | FollowError) and not error.transient and not patient:
                raise
            text = str(error)
        if text and text != last:
            failed(text)
        last = text
        deadline = clock.monotonic() + seconds
        while not stopping() and clock.monotonic() < deadline:
            clock.sleep(min(PAUSE, seconds))


def follow_in_background(node: Node, stopping: Callable[[], bool]) -> Callable[[], None]:
    """A follower of the registry that the settings of *node* name, until *stopping*; it continues after every error.

    Raises :class:`~millstream.anchoring.registry.FollowError` at once where this node has operations of its own.
    """
    speaker = _FollowReporter(_log.info)
    follower = node.registry.follower(told=speaker.recorded, refused=speaker.refused)
    follower.begin()
    seconds = node.settings.registry.follow.interval / MICROSECONDS

    def failed(text: str) -> None:
        _log.warning("following: %s", text)

    def run() -> None:
        follow_until(follower, node.clock, seconds, stopping, failed, patient=True)
        total = follower.total
        _log.info("following has ended at entry %s, %s entries read", total.position, total.entries)

    return run


@contextlib.contextmanager
def following(node: Node) -> Iterator[None]:
    """Follows the registry that the settings of *node* name, if they do, in a thread while its block is open."""
    if not node.settings.registry.follow.ledger:
        yield
        return
    stop = threading.Event()
    thread = threading.Thread(target=follow_in_background(node, stop.is_set), name="following")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _follow(node: Node, settings: FollowSettings, *, as_json: bool, forever: bool) -> None:
    from millstream.anchoring.errors import ObservationBlockedError

    stop = stop_on_signals()
    speaker = _FollowReporter(_say, node.clock)
    follower = node.registry.follower(told=speaker.recorded, refused=speaker.refused)
    speaker.follower = follower
    try:
        if forever:
            seconds = settings.interval / MICROSECONDS
            follow_until(follower, node.clock, seconds, stop, lambda text: _say(f"waiting: {text}"))
        else:
            follower.catch_up(stop)
    finally:
        _print_total(follower.total, speaker.refusals, as_json=as_json)
    if forever:
        return
    end_if_stopped(stop)
    if waiting := follower.history.postponed(limit=1):
        raise ObservationBlockedError(follower.waiting_for(waiting[0]))


def print_follow_state(state: FollowState) -> None:
    """Print how far a registry has followed another one."""
    print(f"following  {state.ledger}: {state.position:,} verified, {state.behind:,} not read yet")
    if state.error:
        print(f"following  the last attempt failed: {printable(state.error, 2000)}")


def _say(text: str) -> None:
    click.echo(text, err=True)


class _FollowReporter:
    """Prints the progress of a follower, at most every few seconds."""

    def __init__(self, say: Callable[[str], object], clock: Clock | None = None) -> None:
        self.refusals: Counter[str] = Counter()
        self.follower: LedgerFollower | None = None
        self._say, self._clock = say, clock
        self._spoken_at = clock.monotonic() if clock else 0.0

    def recorded(self, record: AnchorRecord) -> None:
        if record.fault is not None:
            self._say(f"entry {record.number}: {printable(record.fault, MAX_SHOWN)}")
        if self._clock is None or self.follower is None:
            return
        now = self._clock.monotonic()
        if now - self._spoken_at >= PROGRESS_SECONDS:
            total = self.follower.total
            self._say(
                f"entry {record.number:,}: {counted(total.entries, 'entry')}, "
                f"{counted(total.operations, 'operation')} so far"
            )
            self._spoken_at = now

    def refused(self, refusal: CasFailure) -> None:
        from millstream.anchoring.errors import CasNotFoundError
        from millstream.anchoring.remote_cas import reason_of

        if isinstance(refusal.error, CasNotFoundError):  # the next place may have it
            return
        self.refusals[refusal.place] += 1
        if self.refusals[refusal.place] <= MOST_LINES:
            is_last = self.refusals[refusal.place] == MOST_LINES
            more = "; further failures of this location are not printed" if is_last else ""
            self._say(f"{refusal.place} did not return {refusal.cid}: {reason_of(refusal.error)}{more}")


def _followed(
    settings: RegistrySettings,
    ledger: str | None,
    cas: tuple[str, ...],
    profile: str | None,
    method: str | None,
    interval: int | None,
) -> RegistrySettings:
    """*settings* with the options of the command line about the followed registry."""
    follow = settings.follow
    chosen = ledger or follow.ledger
    places = cas or follow.cas
    if chosen and not places:
        raise click.UsageError("--cas is missing: give a location of the batch files, a folder or a URL")
    follow = FollowSettings(chosen, places, Microseconds(interval) if interval else follow.interval)
    return msgspec.structs.replace(
        settings, follow=follow, profile=profile or settings.profile, method=method or settings.method
    )


def _print_total(total: FollowerProgress, refusals: Counter[str], *, as_json: bool) -> None:
    if as_json:
        print_json({**msgspec.structs.asdict(total), "refusals": dict(refusals)})
        return
    behind = f", {total.behind:,} not read yet" if total.behind else ""
    waiting = f", {total.waiting:,} wait for their files" if total.waiting else ""
    print(
        f"{counted(total.entries, 'new entry')} with {counted(total.operations, 'operation')}, "
        f"{total.faults:,} with a fault; the "
        f"registry is at entry {total.position:,}{behind}{waiting}"
    )
    for place, count in refusals.items():
        print(f"{place} failed to return {counted(count, 'file')}")
    if total.chain is False:
        print("the ledger has no hashes: only changes of entries that were read before can be detected")


def observed_entries(node: Node, *, registry: bool) -> int:
    """The number of entries of the ledger that were read back and indexed in the node's database."""
    if registry:
        return node.registry.instance.history.position()[0]
    position = node.anchoring.observer.index.position()
    return position[0] if position else 0
