"""``millstream anchor monitor``: follow another operator's ledger, and raise an alarm if it is rewritten."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, cast, get_args

import click

from millstream.cli.common import echo_line, json_option, print_json
from millstream.cli.examples import example
from millstream.cli.parameter_types import Duration
from millstream.cli.prove import trust_policy
from millstream.cli.stop_signals import end_if_stopped, stop_on_signals
from millstream.core.amounts import counted
from millstream.core.clock import MICROSECONDS, Clock, SystemClock
from millstream.core.errors import BusyError

if TYPE_CHECKING:
    from millstream.anchoring.monitor import FileReplay, MonitorFinding, MonitorReport
    from millstream.mill.notices.alarms import Alarm

ENTRY_CHECKS = ("ledger", "any", "none")
INDEX_SUFFIX = ".index"
UNAVAILABLE_LOOKS = 3
"""A ledger that cannot be read becomes a finding after this many failed reads in a row: networks have short faults."""

_PAUSE_SECONDS = 0.2


@example("millstream anchor monitor https://example.org/ledger/anchors --key ledger.key --state anchors.state --once")
@click.command()
@click.argument("url", metavar="URL")
@click.option(
    "--key",
    "keys",
    multiple=True,
    metavar="KEY|FILE",
    help="Trusted verifier key of the ledger, or a file of keys; repeatable.",
)
@click.option("--policy", type=click.File("rb"), metavar="FILE", help="Trusted ledger and witnesses (tlog-policy).")
@click.option(
    "--state",
    "state_file",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    metavar="FILE",
    help="File with what was seen before; the first run creates it.",
)
@click.option(
    "--cas",
    multiple=True,
    metavar="URL",
    help="Also verify the batch files at this location; repeatable, tried in order; only with --entries ledger.",
)
@click.option(
    "--entries",
    type=click.Choice(ENTRY_CHECKS),
    default=ENTRY_CHECKS[0],
    show_default=True,
    help="Check the entries as those of Millstream (ledger), by their hashes only (any), or not (none).",
)
@click.option(
    "--compare",
    "compared",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    multiple=True,
    metavar="FILE",
    help="Also compare with the checkpoint or proof in this file, from another reader; repeatable.",
)
@click.option("--once", is_flag=True, help="Check once, for cron: exit code 1 if there is any finding.")
@click.option("--interval", type=Duration(), default="1m", show_default=True, help="Interval between checks.")
@click.option(
    "--silence", type=Duration(), help="Longest time without a new checkpoint, such as 1d (default: no limit)."
)
@click.option(
    "--tolerance",
    type=Duration(),
    default="10m",
    show_default=True,
    help="How late an entry may be published after its time.",
)
@click.option("--alarm", metavar="URL", help="Post findings as JSON to this webhook, and continue.")
@click.option("--acknowledge", is_flag=True, help="Print the findings that are kept, forget them, and exit.")
@json_option
def monitor(
    url: str,
    *,
    keys: tuple[str, ...],
    policy: BinaryIO | None,
    state_file: Path,
    cas: tuple[str, ...],
    entries: str,
    compared: tuple[Path, ...],
    once: bool,
    interval: int,
    silence: int | None,
    tolerance: int,
    alarm: str | None,
    acknowledge: bool,
    as_json: bool,
) -> None:
    """Follow a ledger of others, and find out if its operator rewrites, forks, truncates or hides it.

    URL is the location of its published tiles, such as https://example.org/ledger/anchors, or a folder. Give --key,
    --policy or both. Each check verifies that the newest checkpoint is signed, and with --policy cosigned; that the
    tree begins with every tree seen before; and that the entries hash to the signed root, form a chain and are not
    backdated. With --cas it also reads the files of each anchor of event batches. The first run trusts what it finds.

    A finding is a violation of these rules, also of --silence and --tolerance, or a ledger that cannot be read. Without
    --once the command runs until SIGTERM, or until the first finding (exit code 1) if there is no --alarm. Findings
    that stay true, such as a fork, are kept in --state with both signed checkpoints (--json prints them), and reported
    by every run until --acknowledge. For logs of other programs use --entries any or none.
    """
    from millstream.anchoring.monitor import LedgerMonitor, MonitorRules, MonitorStateFile, open_published

    trusted = trust_policy(keys, policy)
    if trusted is None:
        raise click.UsageError("--key or --policy is missing: give the ledger's verifier key, or a trust policy")
    if cas and entries != "ledger":
        raise click.UsageError("--cas requires --entries ledger: only these entries name files")
    from millstream.anchoring.monitor.monitor import EntryCheck

    assert get_args(EntryCheck) == ENTRY_CHECKS
    rules = MonitorRules(policy=trusted, entries=cast(EntryCheck, entries), silence=silence, tolerance=tolerance)
    clock, files, store = SystemClock(), open_published(url), MonitorStateFile(state_file)
    with _replay(cas, state_file, clock) as replay:
        found = LedgerMonitor(files, store, rules, clock, replay)
        if acknowledge:
            _print_findings(found.acknowledge(), as_json=as_json)
            return
        alarms = _AlarmSender(alarm, clock) if alarm else None
        seconds = None if once else interval / MICROSECONDS
        others = {str(path): _checkpoint_in(path) for path in compared}
        look = partial(found.look, others=others)
        stop = stop_on_signals()
        if not _run(look, clock, seconds, alarms, stop, as_json=as_json):
            sys.exit(1)
        if once:
            end_if_stopped(stop)


def _checkpoint_in(path: Path) -> bytes:
    """The checkpoint (a signed note) in the file *path*: itself, or that of a proof."""
    from millstream.anchoring.proof import MAX_PROOF_BYTES, Proof, decode_proof
    from millstream.anchoring.transparency.tlog_proof import decode_tlog_proof

    with path.open("rb") as file:
        data = file.read(MAX_PROOF_BYTES + 2)
    if data.startswith(b"{"):
        proof = decode_proof(data)
        if not isinstance(proof, Proof):
            raise click.UsageError(
                f"{path} is a proof of version 1 and has no checkpoint: make it again with "
                "`millstream prove` without --chain"
            )
        return proof.checkpoint.encode()
    return decode_tlog_proof(data).checkpoint if data.startswith(b"c2sp.org/tlog-proof@") else data


@contextlib.contextmanager
def _replay(cas: Sequence[str], state_file: Path, clock: Clock) -> Iterator[FileReplay | None]:
    """The reader of the files of anchors, with its index beside the state; None without *cas*."""
    if not cas:
        yield None
        return
    from millstream.anchoring import AnchorIndex
    from millstream.anchoring.monitor import FileReplay
    from millstream.anchoring.remote_cas import FallbackCas, open_cas_source
    from millstream.core.sqlite_file import open_database

    places = FallbackCas([open_cas_source(each) for each in cas], clock=clock)
    path = state_file.with_name(state_file.name + INDEX_SUFFIX)
    engine = open_database(path, ["anchor_index_"], if_damaged="delete it; the next run reads all files again")
    try:
        yield FileReplay(AnchorIndex(engine), places, clock)
    finally:
        engine.dispose()


def _run(
    look: Callable[[Callable[[], bool]], MonitorReport],
    clock: Clock,
    seconds: float | None,
    alarms: _AlarmSender | None,
    stop: Callable[[], bool],
    *,
    as_json: bool,
) -> bool:
    """Check every *seconds* (None: once) until *stop*, or (without *alarms*) the first finding; True without one."""
    before, failed = None, 0
    while not stop():
        try:
            report = look(stop)
        except BusyError as error:
            if seconds is None:
                raise
            echo_line(str(error), err=True)
            _pause(clock, seconds, stop)
            continue
        kinds = [finding.kind for finding in report.findings]
        failed = failed + 1 if "unavailable" in kinds else 0
        findings = [
            each
            for each in report.findings
            if each.kind != "unavailable" or seconds is None or failed >= UNAVAILABLE_LOOKS
        ]
        shown = (report.size, report.cosigned, report.audited, report.replayed, kinds)
        if shown != before:
            _print_report(report, as_json=as_json)
        before = shown
        if alarms is not None:
            alarms.tell(report.origin, findings)
        if seconds is None or (findings and alarms is None):
            return not findings
        _pause(clock, seconds, stop)
    return True


def _pause(clock: Clock, seconds: float, stop: Callable[[], bool]) -> None:
    deadline = clock.monotonic() + seconds
    while not stop() and clock.monotonic() < deadline:
        clock.sleep(min(_PAUSE_SECONDS, seconds))


class _AlarmSender:
    """Posts findings to a webhook like the alarms of a node: when each begins, every hour, and when it is resolved."""

    def __init__(self, url: str, clock: Clock) -> None:
        from millstream.mill.notices.alarms import Alarms
        from millstream.mill.notices.receivers import WebHookReceiver

        self._receiver = WebHookReceiver(url, "--alarm")
        self._alarms = Alarms(sys.maxsize, float("inf"))
        self._clock = clock
        self._waiting: list[Alarm] = []

    def tell(self, origin: str, findings: Sequence[MonitorFinding]) -> None:
        """Post the findings that are due; what the receiver does not accept is posted again after the next check."""
        from millstream.mill.notices.alarms import Alarm
        from millstream.mill.notices.receivers import NoticeError

        kinds = list(dict.fromkeys(each.kind for each in findings))
        own = {kind: [each for each in findings if each.kind == kind] for kind in kinds}
        current = [Alarm(origin, f"ledger-{kind}", each[0].message, len(each)) for kind, each in own.items()]
        self._waiting += self._alarms.observe(self._clock.monotonic(), {}, others=current)
        while self._waiting:
            try:
                self._receiver.tell(self._waiting[0])
            except NoticeError as error:
                echo_line(str(error), err=True)
                return
            del self._waiting[0]


def _print_report(report: MonitorReport, *, as_json: bool) -> None:
    if as_json:
        print_json(report)
        return
    parts = [f"{report.origin}: {counted(report.size, 'entry')}, {report.new:,} new"]
    if report.signed_by:
        parts.append(f"signed by {', '.join('+'.join(key.split('+')[:2]) for key in report.signed_by)}")
    if report.cosigned is not None:
        names = f" ({', '.join(report.witnesses)})" if report.witnesses else ""
        parts.append(f"{report.cosigned:,} cosigned{names}")
    if report.audited is not None:
        parts.append(f"{report.audited:,} verified")
    if report.replayed is not None:
        parts.append(f"files of {report.replayed:,} verified")
    echo_line("; ".join(parts))
    _print_findings(report.findings, as_json=False)
    if report.more_findings:
        echo_line(f"{counted(report.more_findings, 'further finding')}, not kept: --acknowledge forgets the others")


def _print_findings(findings: Sequence[MonitorFinding], *, as_json: bool) -> None:
    for finding in findings:
        if as_json:
            print_json(finding)
        else:
            echo_line(f"{finding.kind}: {finding.message}")
