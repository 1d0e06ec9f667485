"""A node with broker, registry, workers and console under mixed load for a long time: memory, files, errors, p99.

``PYTHONPATH=tests/soak:tests python tests/soak/soak.py FOLDER MINUTES OUTPUT`` serves the node in FOLDER, which it
makes where it is absent; a second run on the same folder goes on with its data. For five minutes each part of the load
asks as fast as it is answered, and then at :data:`SHARE` of the rates in the last of these minutes. OUTPUT is a folder
for ``samples.jsonl``, ``summary.json`` and ``p99.svg``; rates in its ``rates.json`` are taken instead of measuring
them.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import math
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from load import SPACE, TOPIC, Answer, HttpClient, Load, basic, mixed_load
from samples import folder_sizes, memory_mib, picture, slope

from millstream.core.passwords import hash_password
from millstream.mill.policies.policy import policy_file
from millstream.node import Node
from millstream.settings import load_settings
from millstream.testing.ports import free_ports
from support.busy_settings import BUSY_SETTINGS

SHARE = 0.6
"""Of the rates at which the node answered when all parts asked as fast as they could."""

WORK_BEGINS = 4
"""How many times as long as rates are measured all parts ask before: until then the node does not batch, anchor, copy
and check what came, and answers faster than it can for long."""

SAMPLE_SECONDS, FOLDER_SAMPLES = 10.0, 6
WARM_UP = 1 / 5
"""The share of the samples that is left out of slopes: caches and pools fill."""

SETTINGS = """
[stores.primary]
url = "file://{data}/stores/primary?mount=cas:cas://{data}/cas"
[stores.second]
url = "file://{data}/stores/second"
[[log.rules]]
log = "*"
max_bytes = "256MiB"
[mill.produce]
duplication_frequency = "5m"
duplication_every = "30s"
bits_frequency = "15m"
bits_every = "1m"
bits_most = 1500
[console.users.vera]
role = "admin"
"""

_POLICY = {"spaceDuplicationStorePolicies": {SPACE: [{"srcStoreId": "primary", "destStoreId": "second"}]}}


def make_node(folder: Path) -> str:
    """Make the node in *folder* where there is none; the password of its user."""
    secret = folder / "password.txt"
    if not secret.exists():
        folder.mkdir(parents=True, exist_ok=True)
        password = secrets.token_urlsafe(16)
        text = BUSY_SETTINGS + SETTINGS + f'password = "{hash_password(password)}"\n'
        (folder / "millstream.toml").write_text(text, "utf-8")
        with opened(folder) as node:
            node.stores.providers["primary"].create_space(SPACE)
        policies = folder / "policies"
        policies.mkdir(exist_ok=True)
        (policies / "duplication-accounts.json").write_text('["local"]')
        (policies / policy_file("local")).write_text(json.dumps(_POLICY))
        secret.write_text(password, "utf-8")
    return secret.read_text("utf-8")


@contextlib.contextmanager
def opened(folder: Path) -> Iterator[Node]:
    """The node in *folder*, opened in this process."""
    settings, _ = load_settings({"data": str(folder)})
    with Node.open(settings, create=True) as node:
        yield node


@contextlib.contextmanager
def served(folder: Path, log: Path) -> Iterator[tuple[subprocess.Popen[str], Mapping[str, str]]]:
    """``millstream serve`` on *folder*, and the addresses of its broker, registry and console."""
    ports = free_ports(3)
    names = dict(zip(("broker", "registry", "console"), (f"127.0.0.1:{port}" for port in ports), strict=True))
    command = [sys.executable, "-m", "millstream", "serve", "--data", str(folder), "--no-broker-tls"]
    command += ["--broker", names["broker"], "--console", names["console"]]
    environment = os.environ | {"MILLSTREAM_SERVE__REGISTRY_HTTP": names["registry"]}
    with log.open("a", encoding="utf-8") as file:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, text=True, env=environment)
        assert process.stdout is not None
        ready: set[str] = set()
        for line in process.stdout:
            ready.update(name for name in names if line.startswith(f"{name} ready"))
            if len(ready) == len(names):
                break
        else:
            raise RuntimeError(f"the node did not start: {log.read_text('utf-8')[-2000:]}")
        try:
            yield process, names
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait(300)
            process.stdout.close()
            if code:
                raise RuntimeError(f"the node ended with {code}: {log.read_text('utf-8')[-2000:]}")


async def soak(folder: Path, seconds: float, output: Path, *, measure_seconds: float = 60.0) -> Mapping[str, Any]:
    """Ask the node in *folder* for *seconds*; the summary, which is in *output* as well."""
    output.mkdir(parents=True, exist_ok=True)
    password, rows = make_node(folder), list[Mapping[str, Any]]()
    headers = basic("vera", password)
    with served(folder, output / "serve.log") as (process, at), opened(folder) as node:
        await _make_topic(at["console"], headers)
        async with mixed_load(at["broker"], at["registry"], at["console"], node, headers) as load:
            rates = await _rates(load, output / "rates.json", measure_seconds)
            load.take()
            _collect_rarely()
            began = load.second()
            with (output / "samples.jsonl").open("w", encoding="utf-8") as file:
                asked = asyncio.create_task(load.run(seconds, rates))
                async for row in _samples(load, process.pid, folder, asked, began):
                    rows.append(row)
                    print(json.dumps(row), file=file, flush=True)
                await asked
    summary = summarise(rows, rates)
    (output / "summary.json").write_text(json.dumps(summary, indent=1), "utf-8")
    lines = {name: [(row["second"], row["p99"][name] * 1000) for row in rows if name in row["p99"]] for name in rates}
    (output / "p99.svg").write_text(
        picture(lines, "p99 of each ten seconds, from when a request was due", "ms"), "utf-8"
    )
    return summary


def _collect_rarely() -> None:
    """Leave out of collections what is here by now: to go through it takes half a second, and all answers wait."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


async def _make_topic(console: str, headers: Mapping[str, str]) -> None:
    with contextlib.suppress(RuntimeError):  # it is there since the run before
        await HttpClient(console, headers).ask("POST", "/api/v1/topics", json.dumps({"name": TOPIC}).encode())


async def _rates(load: Load, file: Path, seconds: float) -> Mapping[str, float]:
    """The requests a second of each part: those in *file*, or what a measurement gives."""
    if not file.exists():
        await load.run(seconds * WORK_BEGINS)
        load.take()
        await load.run(seconds)
        counts = {name: sum(not one.error for one in answers) for name, answers in load.take().items()}
        rates = {name: count / seconds * SHARE for name, count in counts.items() if load.parts[name].paced}
        file.write_text(json.dumps(rates), "utf-8")
    found: Mapping[str, float] = json.loads(file.read_text("utf-8"))
    return found


async def _samples(
    load: Load, pid: int, folder: Path, asked: asyncio.Task[None], began: float
) -> AsyncIterator[Mapping[str, Any]]:
    """A row every :data:`SAMPLE_SECONDS` until the load has ended."""
    number = 0
    while not asked.done():
        await asyncio.wait({asked}, timeout=SAMPLE_SECONDS)
        row: dict[str, Any] = {
            "second": load.second() - began,
            "memory_mib": await asyncio.to_thread(memory_mib, pid),
            "open_files": psutil.Process(pid).num_fds(),
            "threads": psutil.Process(pid).num_threads(),
            "load": os.getloadavg()[0],
            **_of_answers(load.take()),
        }
        if number % FOLDER_SAMPLES == 0:
            row["folder"] = await asyncio.to_thread(folder_sizes, folder)
        number += 1
        yield row


def _of_answers(taken: Mapping[str, Sequence[Answer]]) -> Mapping[str, Any]:
    return {
        "answers": {name: len(answers) for name, answers in taken.items()},
        "errors": {
            name: errors for name, answers in taken.items() if (errors := [a.error for a in answers if a.error])
        },
        "p50": _quantiles(taken, 50),
        "p99": _quantiles(taken, 99),
    }


def _percentile(values: Sequence[float], percent: int) -> float:
    return float(np.percentile(values, percent)) if values else math.nan


def _quantiles(taken: Mapping[str, Sequence[Answer]], percent: int) -> Mapping[str, float]:
    return {n: float(np.percentile([a.seconds for a in found], percent)) for n, found in taken.items() if found}


def summarise(rows: Sequence[Mapping[str, Any]], rates: Mapping[str, float]) -> Mapping[str, Any]:
    """What *rows* say: rates, answers and errors, and the slope an hour of memory, open files and threads."""
    settled = rows[int(len(rows) * WARM_UP) :]
    seconds = [row["second"] for row in settled]
    slopes = dict[str, Mapping[str, float]]()
    for name in ("memory_mib", "open_files", "threads"):
        values = [row[name] for row in settled]
        line = slope(seconds, values)
        slopes[name] = {
            "first": rows[0][name],
            "least": min(values),
            "most": max(values),
            "last": values[-1],
            "an_hour": line.an_hour,
            "margin": line.margin,
        }
    return {
        "seconds": rows[-1]["second"],
        "rates": rates,
        "answers": {name: sum(row["answers"].get(name, 0) for row in rows) for name in rows[0]["answers"]},
        "errors": {name: sum(len(row["errors"].get(name, ())) for row in rows) for name in rows[0]["answers"]},
        "first_errors": [text for row in rows for errors in row["errors"].values() for text in errors][:20],
        "p99": {name: _percentile([row["p99"][name] for row in settled if name in row["p99"]], 50) for name in rates},
        "slopes": slopes,
        "folder": [row["folder"] for row in rows if "folder" in row][-1],
    }


def main(folder: str, minutes: str, output: str) -> None:
    """Soak the node in *folder* for so many *minutes*."""
    print(json.dumps(asyncio.run(soak(Path(folder), float(minutes) * 60, Path(output))), indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
