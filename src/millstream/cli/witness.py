"""``millstream witness``: a witness that cosigns the ledgers of others."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click
import msgspec

from millstream.cli.command_group import SummaryGroup
from millstream.cli.common import data_options, echo_line, json_option, log_options, print_json
from millstream.cli.examples import example
from millstream.core.address import parse_address
from millstream.core.amounts import counted
from millstream.core.clock import SystemClock
from millstream.core.errors import NotFoundError
from millstream.core.timestamps import format_timestamp
from millstream.settings import Settings

STATE_SUFFIX = ".db"
_log = logging.getLogger(__name__)

_key_option = click.option(
    "--key",
    "key_file",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    metavar="FILE",
    help="Key file of the witness; its state is in FILE.db.",
)


@click.group(cls=SummaryGroup)
def witness() -> None:
    """Cosign the ledgers of others: only those that are never rewritten."""


@example("millstream witness serve --key witness.key --log example.org/anchors+5f0f5c31+AYg…")
@witness.command()
@click.option(
    "--listen",
    "address",
    default="127.0.0.1:8490",
    show_default=True,
    metavar="HOST:PORT",
    help="Address of the HTTP interface.",
)
@_key_option
@click.option(
    "--name", metavar="NAME", help="Name of a new witness, such as witness.example.org (default: a random one)."
)
@click.option("--new", is_flag=True, help="Start without FILE.db: only if the key in FILE has never cosigned.")
@click.option(
    "--log", "logs", multiple=True, required=True, metavar="KEY", help="Verifier key of a ledger to cosign; repeatable."
)
@click.option(
    "--rate",
    type=click.FloatRange(0.01),
    default=5.0,
    show_default=True,
    help="Maximum requests per second from one address.",
)
@click.option(
    "--burst", type=click.IntRange(1), default=50, show_default=True, help="Maximum requests at once from one address."
)
@click.option(
    "--tls-certificate",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Serve HTTPS with this certificate chain (PEM); requires --tls-key.",
)
@click.option(
    "--tls-key",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Private key (PEM) of --tls-certificate.",
)
@data_options
@log_options
def serve(
    settings: Settings,
    address: str,
    key_file: Path,
    *,
    name: str | None,
    new: bool,
    logs: tuple[str, ...],
    rate: float,
    burst: int,
    tls_certificate: Path | None,
    tls_key: Path | None,
) -> None:
    """Run a witness for the ledgers of --log until SIGTERM, and print its verifier key.

    It cosigns a checkpoint only if the ledger extends the one it cosigned last. The first start creates the key and
    FILE.db. Never restore FILE.db from a backup: the witness could then cosign a fork. If FILE.db is lost or damaged,
    start with a new key in another FILE.
    """
    from millstream.anchoring.transparency.signed_note import parse_ledger_key
    from millstream.anchoring.witness import Witness, WitnessState
    from millstream.anchoring.witness.witness_key import create_key_file, read_key_file
    from millstream.rest.server import TlsFiles, serve_app
    from millstream.rest.witness_app import witness_app

    if (tls_certificate is None) != (tls_key is None):
        raise click.UsageError("--tls-certificate and --tls-key must be given together")
    place = parse_address(address)
    trusted = [parse_ledger_key(each) for each in logs]
    state_file = _state_file(key_file)
    if name is not None and key_file.exists():
        raise click.UsageError(
            f"the key file {key_file} already exists, and the name in a key cannot be changed: omit --name"
        )
    if not key_file.exists() and state_file.exists():
        raise click.UsageError(
            f"the key file {key_file} is missing, but its state {state_file} exists: restore the key from a backup or, "
            "if there is none, create a new key in another file (--key)"
        )
    if key_file.exists():
        key = read_key_file(key_file)
        _require_state(state_file, key_file, new=new)
    else:
        key = create_key_file(key_file, name)
    state, clock = WitnessState(state_file), SystemClock()
    try:
        echo_line(f"witness {key.verifier_key}")
        app = witness_app(Witness(key, trusted, state, clock), clock, rate=rate, burst=burst)
        tls = TlsFiles(tls_certificate, tls_key) if tls_certificate and tls_key else None
        serve_app(app, place.host, place.port, settings.http, tls=tls)
    finally:
        state.close()


@example("millstream witness status --key witness.key")
@witness.command()
@_key_option
@json_option
def status(key_file: Path, as_json: bool) -> None:
    """Print the newest cosigned checkpoint of each ledger, and evidence of forks.

    A fork is a ledger that signed two different trees of the same size. Exit code 1 if there is a fork, 3 if the state
    of the witness (FILE.db) is missing.
    """
    from millstream.anchoring.witness import WitnessState
    from millstream.anchoring.witness.witness_key import read_key_file

    key = read_key_file(key_file)
    state_file = _state_file(key_file)
    if not _has_state(state_file):
        raise NotFoundError(
            f"the state {state_file} of the key {key_file} is missing, so it is unknown what the witness has cosigned. "
            "Retire the key, and create a new key in another file (--key). Only if this key never cosigned, start the "
            "witness with `millstream witness serve --new`"
        )
    state = WitnessState(state_file)
    try:
        heads, forks = state.heads(), state.forks()
    finally:
        state.close()
    if as_json:
        shown = [{**msgspec.structs.asdict(head), "root": head.root.hex()} for head in heads]
        print_json(
            {"key": str(key.verifier_key), "heads": _texts(shown), "forks": _texts(map(msgspec.structs.asdict, forks))}
        )
    else:
        echo_line(f"witness {key.verifier_key}")
        for head in heads:
            echo_line(
                f"{head.origin}: {counted(head.size, 'entry')}, cosigned since {format_timestamp(head.recorded_at)}"
            )
        for fork in forks:
            echo_line(
                f"FORK: {fork.origin} signed two different trees of {counted(fork.size, 'entry')}; --json prints both"
            )
    if forks:
        sys.exit(1)


def _require_state(state_file: Path, key_file: Path, *, new: bool) -> None:
    """Refuse to begin without the state of a key that may have cosigned before: it would cosign a fork, too."""
    has_state = _has_state(state_file)
    if has_state and new:
        raise click.UsageError(f"the witness has a state in {state_file}: omit --new")
    if has_state:
        return
    if not new:
        raise click.UsageError(
            f"the state {state_file} of the key {key_file} is missing: without it, the witness could cosign a fork of "
            "what it cosigned before. Retire the key, and create a new key in another file (--key). Only if this key "
            "never cosigned, add --new"
        )
    _log.warning(
        "the witness starts without state, and cosigns the first checkpoint of each ledger that it gets: if its key "
        "cosigned before, it may cosign a fork"
    )


def _has_state(state_file: Path) -> bool:
    """Whether *state_file* has a state: an empty file is what a crash or a full disk leaves."""
    return state_file.exists() and state_file.stat().st_size > 0


def _texts(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """*rows* with their signed notes as text."""
    return [
        {name: value.decode() if isinstance(value, bytes) else value for name, value in row.items()} for row in rows
    ]


def _state_file(key_file: Path) -> Path:
    return key_file.with_name(key_file.name + STATE_SUFFIX)
