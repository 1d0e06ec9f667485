"""A witness as a program: over HTTP, killed at any moment, with TLS, and with a key that is made at its first start."""

from __future__ import annotations

import json
import random
import threading
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from millstream.anchoring.errors import HttpError, LedgerKeyError, WitnessRefusalError
from millstream.anchoring.transparency.signed_note import parse_note, verify_note
from millstream.anchoring.witness import WitnessClient
from millstream.anchoring.witness.requests import MAX_REQUEST_BYTES
from millstream.anchoring.witness.witness_key import create_key_file, read_key_file
from millstream.core.clock import VirtualClock
from millstream.rest.witness_app import RateLimit
from suite.sizes import sized
from support.certificates import Authority
from support.commands import run_command
from support.witness_process import WitnessProcess
from support.witnessed_log import WitnessedLog

LOG = WitnessedLog(size=2_000)
NO_TLS = ["--tls-key", "x", "--tls-certificate", "y"]
"""Files that are not there: a witness ends when it is about to listen."""

FORK = WitnessedLog(size=2_000, branch="other")


def refused(url: str, body: bytes, **headers: str) -> tuple[int, str | None]:
    """Status and ``Retry-After`` of the refusal of *body*, sent with *headers*."""
    with pytest.raises(HTTPError) as caught, urlopen(Request(url, body, headers)):
        pass
    with caught.value as answer:
        return answer.code, answer.headers.get("Retry-After")


def test_a_witness_makes_its_key_cosigns_over_http_and_ends_in_order(tmp_path: Path) -> None:
    with WitnessProcess(tmp_path, [LOG.key.verifier_key], "--name", "example.net/w") as witness:
        assert witness.key.name == "example.net/w"
        with urlopen(witness.url) as answer:
            assert answer.read().decode().strip() == str(witness.key)
        client = WitnessClient(witness.url, witness.key)
        for size in (5, 5, 300, 2_000):
            note, cosigned = LOG.checkpoint(size), client.cosign(LOG.checkpoint(size), LOG.path)
            signed = parse_note(note)
            assert verify_note(type(signed)(signed.text, cosigned.signatures), [witness.key])[0].time == cosigned.time
        assert refused(f"{witness.url}/add-checkpoint", b"x" * (MAX_REQUEST_BYTES + 1))[0] == 413
        assert refused(f"{witness.url}/add-checkpoint", b"x", **{"Content-Encoding": "gzip"})[0] == 415
        assert witness.stop() == 0
    assert (tmp_path / "witness.key").stat().st_mode & 0o777 == 0o600
    status = json.loads(run_command("witness", "status", "--key", str(tmp_path / "witness.key"), "--json").out)
    assert [(head["origin"], head["size"]) for head in status["heads"]] == [(LOG.key.name, 2_000)]
    with WitnessProcess(tmp_path, [LOG.key.verifier_key]) as witness:
        assert witness.key.name == "example.net/w", "the key stays"
        client = WitnessClient(witness.url, witness.key)
        client.cosign(LOG.checkpoint(2_000), LOG.path)
        assert client.known_size == 2_000
        with pytest.raises(WitnessRefusalError, match=r"has cosigned a tree of 2,000 entries, .* restored") as smaller:
            client.cosign(LOG.checkpoint(300), LOG.path)
        assert smaller.value.known_size == 2_000
        with pytest.raises(WitnessRefusalError, match=r"status 409: the ledger was forked") as forked:
            client.cosign(FORK.checkpoint(2_000), FORK.path)
        assert forked.value.is_fork
    code, out, _ = run_command("witness", "status", "--key", str(tmp_path / "witness.key"))
    assert (code, "FORK: example.org/log signed two different trees of 2,000 entries" in out) == (1, True)


def test_a_witness_that_is_killed_at_any_moment_never_cosigns_two_histories(tmp_path: Path) -> None:
    """Two clients press it with the branches of a fork while it dies and starts again: one branch is cosigned."""
    chance, kills = random.Random(7), sized(quick=3, ci=10, long=150)
    granted: list[tuple[WitnessedLog, int]] = []
    sizes = {LOG: 0, FORK: 0}
    interrupted = 0
    for _ in range(kills):
        with WitnessProcess(tmp_path, [LOG.key.verifier_key], "--rate", "100000", "--burst", "100000") as witness:
            clients = {log: WitnessClient(witness.url, witness.key) for log in (LOG, FORK)}
            enough = threading.Semaphore(0)

            def press(
                log: WitnessedLog, client: WitnessClient = clients[LOG], enough: threading.Semaphore = enough
            ) -> None:
                try:
                    while True:
                        size = sizes[log] = min(sizes[log] + 1, 2_000)
                        try:
                            client.cosign(log.checkpoint(size), log.path)
                            granted.append((log, size))
                        except WitnessRefusalError as error:
                            sizes[log] = max(sizes[log], error.known_size or 0)
                        enough.release()
                except HttpError:
                    return

            threads = [threading.Thread(target=press, args=(log, clients[log])) for log in (LOG, FORK)]
            for thread in threads:
                thread.start()
            for _ in range(chance.randrange(1, 40)):
                enough.acquire()
            interrupted += all(thread.is_alive() for thread in threads)
            assert witness.kill() == -9
            for thread in threads:
                thread.join()
    assert interrupted == kills, "each kill fell while both clients were asking"
    assert len({log for log, _ in granted}) == 1
    assert len(granted) > kills


def test_an_address_that_asks_too_often_is_told_when_to_come_back(tmp_path: Path) -> None:
    with WitnessProcess(tmp_path, [LOG.key.verifier_key], "--rate", "0.01", "--burst", "2") as witness:
        answers = [refused(f"{witness.url}/add-checkpoint", b"") for _ in range(3)]
    assert answers[:2] == [(400, None), (400, None)]
    assert answers[2] == (429, "100")
    assert isinstance(int(answers[2][1] or ""), int)


def test_a_client_that_is_told_to_come_back_raises_what_may_be_tried_again(tmp_path: Path) -> None:
    with WitnessProcess(tmp_path, [LOG.key.verifier_key], "--rate", "0.01", "--burst", "1") as witness:
        client = WitnessClient(witness.url, witness.key)
        client.cosign(LOG.checkpoint(5), LOG.path)
        with pytest.raises(HttpError, match="status 429"):
            client.cosign(LOG.checkpoint(6), LOG.path)


def test_requests_that_were_not_sent_are_saved_up_to_the_burst() -> None:
    clock = VirtualClock()
    limit = RateLimit(2, 3, clock)
    assert [limit.seconds_to_wait("a") for _ in range(4)] == [0, 0, 0, 0.5]
    assert limit.seconds_to_wait("b") == 0
    clock.advance(0.5)
    assert [limit.seconds_to_wait("a"), limit.seconds_to_wait("a")] == [0, 0.5]
    clock.advance(3600)
    assert [limit.seconds_to_wait("a") for _ in range(4)] == [0, 0, 0, 0.5]


def test_a_witness_with_tls_is_asked_over_https(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("localhost")
    arguments = ["--tls-certificate", str(certificate), "--tls-key", str(key)]
    with WitnessProcess(tmp_path, [LOG.key.verifier_key], *arguments) as witness:
        assert witness.url.startswith("https://")
        with pytest.raises(HttpError, match="certificate verify failed"):
            WitnessClient(witness.url, witness.key).cosign(LOG.checkpoint(5), LOG.path)
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.path))
        assert WitnessClient(witness.url, witness.key).cosign(LOG.checkpoint(5), LOG.path).signatures


@pytest.mark.parametrize(
    ("prepare", "arguments", "expected"),
    [
        ("key", ["--name", "example.net/w"], "the name in a key cannot be changed: omit --name"),
        ("key", NO_TLS, "w.key.db of the key {key} is missing: without it, the witness could cosign a fork"),
        ("emptied", NO_TLS, "Only if this key never cosigned, add --new"),
        ("whole", ["--new"], "w.key.db: omit --new"),
        ("state", [], "restore the key from a backup or, if there is none, create a new key in another file (--key)"),
        ("nonsense", [], "is not the key file of a witness"),
        ("readable", [], "chmod 600"),
        ("", ["--name", "with space"], "invalid origin"),
        ("", ["--tls-key", "x"], "must be given together"),
        ("", NO_TLS, "cannot serve with TLS: cannot read y: No such file"),
        ("", ["--listen", "nowhere"], "invalid address"),
    ],
)
def test_a_witness_that_cannot_start_says_why(
    tmp_path: Path, prepare: str, arguments: list[str], expected: str
) -> None:
    key = tmp_path / "w.key"
    if prepare == "state":
        (tmp_path / "w.key.db").touch()
    elif prepare == "nonsense":
        key.touch(0o600)
    elif prepare:
        create_key_file(key)
        key.chmod(0o644 if prepare == "readable" else 0o600)
        if prepare in ("emptied", "whole"):
            (tmp_path / "w.key.db").write_bytes(b"x" if prepare == "whole" else b"")
    trusted = ["--log", str(LOG.key.verifier_key)]
    code, _, err = run_command("witness", "serve", "--key", str(key), *trusted, *arguments, "--data", str(tmp_path))
    assert (code, expected.format(key=key) in err) == (2, True), err


@pytest.mark.parametrize("is_emptied", [False, True])
@pytest.mark.parametrize("options", [[], ["--json"]], ids=["text", "json"])
def test_the_status_of_a_witness_whose_state_is_lost_is_an_error(
    tmp_path: Path, is_emptied: bool, options: list[str]
) -> None:
    key = tmp_path / "w.key"
    create_key_file(key)
    if is_emptied:
        (tmp_path / "w.key.db").touch()
    code, out, err = run_command("witness", "status", "--key", str(key), *options)
    assert (code, out) == (3, "")
    assert f"the state {key}.db of the key {key} is missing, so it is unknown what the witness has cosigned" in err
    assert [path.stat().st_size for path in tmp_path.glob("w.key.db*")] == ([0] if is_emptied else [])


def test_a_key_that_never_cosigned_begins_without_state_if_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("millstream.rest.server.serve_app", lambda *_, **__: None)
    key = tmp_path / "w.key"
    create_key_file(key)
    options = ["--key", str(key), "--log", str(LOG.key.verifier_key), "--data", str(tmp_path)]
    assert run_command("witness", "serve", *options, "--new").code == 0
    assert "may cosign a fork" in caplog.text
    caplog.clear()
    assert run_command("witness", "serve", *options).code == 0, "the first start has made the state"
    assert "fork" not in caplog.text


def test_a_key_is_never_overwritten_and_one_of_a_signer_is_read(tmp_path: Path) -> None:
    made = create_key_file(tmp_path / "w.key", "example.net/w")
    assert read_key_file(tmp_path / "w.key") == made
    with pytest.raises(LedgerKeyError, match="never overwritten"):
        create_key_file(tmp_path / "w.key")
    (tmp_path / "other.key").touch(0o600)
    (tmp_path / "other.key").write_text(LOG.key.encode())
    assert read_key_file(tmp_path / "other.key").verifier_key.public == LOG.key.verifier_key.public
    assert "seed" not in repr(made)
