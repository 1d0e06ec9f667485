"""Peers are measured in a checkout only: the installed package has none of them, and measures its own parts."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.bench import BENCHMARKS
from millstream.bench.log import contenders
from millstream.bench.log.options import parse_choice
from millstream.bench.peers import BENCHMARKS_WITH_PEERS, load_peers, peers_folder
from millstream.bench.runner import run_benchmark
from millstream.core.clock import SystemClock
from millstream.core.errors import InputError
from millstream_peers.sha256sum import sha256sum

PEERS = ("redis", "nats", "litequeue", "rabbitmq.py", "jetstream", "official.py", "rclone", "sha256sum", "peers/")
OURS = {
    "millstream/testing/rabbitmq.py": "a server that our own queue needs",
}
REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """As if the package had been installed from a wheel: no repository is around it."""
    monkeypatch.setattr(
        "millstream.bench.peers.__file__", str(tmp_path / "a/b/site-packages/millstream/bench/peers.py")
    )
    contenders.log_peers.cache_clear()
    yield
    contenders.log_peers.cache_clear()


def test_no_peer_is_in_the_wheel(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=REPOSITORY, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    modules = [name for name in names if name.startswith("millstream/")]
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {"millstream"}
    assert {"millstream/bench/log/ours.py", "millstream/testing/services.py"} <= set(modules)
    assert [name for name in modules if name not in OURS and any(peer in name for peer in PEERS)] == []


def test_a_checkout_has_the_peers_of_each_benchmark_that_compares() -> None:
    assert peers_folder() == REPOSITORY / "benchmarks"
    assert set(BENCHMARKS_WITH_PEERS) <= set(BENCHMARKS)
    for name in BENCHMARKS_WITH_PEERS:
        assert load_peers(name) is not None


@pytest.mark.usefixtures("installed")
def test_without_a_checkout_a_benchmark_says_so_and_measures_our_own_parts() -> None:
    said: list[str] = []
    parts = {"backends": "sqlite", "modes": "lone", "seconds": "0.001"}
    report = run_benchmark("log", size="quick", runs=1, clock=SystemClock(), show=said.append, parts=parts)
    assert [row.contender for result in report.results for row in result.rows] == ["millstream, SQLite"]
    assert "only Millstream's own parts are measured" in said[0]


@pytest.mark.usefixtures("installed")
def test_a_peer_that_is_asked_for_without_a_checkout_is_refused() -> None:
    with pytest.raises(InputError, match=r"--peers redis cannot be measured: .* run the benchmark in a checkout"):
        parse_choice({"peers": "redis"})


@pytest.mark.parametrize(("files", "calls"), [(5, ["2", "3"]), (1, ["1"]), (9, ["1", "4", "4"])])
def test_each_process_of_sha256sum_gets_a_share_of_few_files(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: int, calls: list[str]
) -> None:
    program, counts, folder = tmp_path / "bin" / "sha256sum", tmp_path / "counts", tmp_path / "files"
    for made in (program.parent, folder):
        made.mkdir()
    program.write_text(f"#!/bin/sh\necho $# >> {counts}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=":")
    for number in range(files):
        (folder / f"item-{number}").touch()
    assert sha256sum(folder, processes=2, at_once=4, path="*item-*") == files
    assert sorted(counts.read_text().split()) == calls
