"""The official clients, each at its newest version and an older one: how their drivers are built, started and told."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from millstream.core.durable import file_lock
from millstream.testing.waiting import until

HERE = Path(__file__).parent
SECONDS = 60.0
"""How long a request may take; some clients wait for their long poll when they close."""


class Fault(msgspec.Struct, frozen=True):
    """What a client cannot do or does wrong by itself; ``proof`` (a pattern) is found in how it then fails."""

    text: str
    proof: str


class OfficialClient(msgspec.Struct, frozen=True):
    """A client, and its own faults by flow."""

    language: str
    version: str
    faults: Mapping[str, Fault] = {}

    @property
    def name(self) -> str:
        return f"{self.language} {self.version}"

    def __str__(self) -> str:
        return self.name.replace(" ", "-")


class ClientError(Exception):
    """A driver's answer that a request failed: the client's name of the error, the protocol's code, and all it says."""

    def __init__(self, kind: str, code: int, text: str) -> None:
        super().__init__(f"{kind} ({code}): {text}")
        self.kind, self.code, self.text = kind, code, text


class Event(msgspec.Struct, frozen=True):
    """What a listener or a checker told: see ``README.md``."""

    event: str
    name: str
    at: int = 0
    message: Mapping[str, Any] = {}
    result: str = ""
    body: str = ""


class Driver:
    """A driver's process, with *command*: requests by :meth:`ask`, what listeners tell in ``events``."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                command, env={**os.environ, **environment}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=errors, text=True, encoding="utf-8",
            )  # fmt: skip
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self.events: list[Event] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()

    def start(self, request: str, **fields: Any) -> Future[Any]:
        """Ask for *request*; its result is that of the future, which raises :class:`ClientError` where it failed."""
        number, answer = next(self._numbers), Future[Any]()
        self._waiting[number] = answer
        line = json.dumps({"id": number, "request": request, **fields})
        assert self._process.stdin is not None
        with self._lock:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        return answer

    def ask(self, request: str, **fields: Any) -> Any:
        """The result of *request*. Raises :class:`ClientError`, and :class:`TimeoutError` where it hangs."""
        return self.start(request, **fields).result(SECONDS)

    def told(self, event: str, name: str) -> list[Event]:
        """All events of that kind of the consumer or producer *name*, in order."""
        return [each for each in list(self.events) if (each.event, each.name) == (event, name)]

    def handled(self, name: str) -> list[str]:
        """The bodies of the messages that the listener of *name* has ended with success, in order."""
        return [str(each.message["body"]) for each in self.told("end", name) if each.result == "success"]

    def drain(
        self, name: str, count: int, seconds: float = 30.0, *, invisible: int = 10_000, patient: bool = False
    ) -> list[dict[str, Any]]:
        """*count* messages that the simple consumer *name* receives and acknowledges; fewer where no more come.

        Raises :class:`ClientError` where it fails; if *patient* it tries again.
        """
        found: list[dict[str, Any]] = []

        def receive() -> bool:
            with contextlib.suppress(ClientError) if patient else contextlib.nullcontext():
                for message in self.ask("receive", name=name, count=16, invisible=invisible)["messages"]:
                    self.ask("ack", name=name, number=message["number"])
                    found.append(message)
            return len(found) >= count

        with contextlib.suppress(TimeoutError):
            until(receive, "the messages", seconds=seconds)
        return found

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            told = json.loads(line)
            if "event" in told:
                self.events.append(msgspec.convert(told, Event))
                continue
            answer = self._waiting.pop(told["id"])
            if "error" in told:
                error = told["error"]
                answer.set_exception(ClientError(error["kind"], error["code"], error["text"]))
            else:
                answer.set_result(told["ok"])
        for answer in self._waiting.values():
            answer.set_exception(ClientError("Dead", 0, "the driver's process has ended"))


class Drivers:
    """Builds drivers in the folder *cache*, once each, and starts them with their homes in the folder *homes*."""

    def __init__(self, cache: Path, homes: Path) -> None:
        self._cache, self._homes = cache, homes

    def start(
        self,
        client: OfficialClient,
        place: object,
        *,
        ca: Path | None = None,
        key: str = "",
        secret: str = "",
    ) -> Driver:
        """The driver of *client* for the broker at *place*; with *ca* it encrypts, with *key* and *secret* it signs."""
        command, own = self._built(client)
        home = self._homes / str(client)
        home.mkdir(parents=True, exist_ok=True)
        environment = {"HOME": str(home), "TLS": "1" if ca else "0", "ACCESS_KEY": key, "SECRET": secret, **own}
        if ca is not None:
            environment |= {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(ca), "SSL_CERT_FILE": str(ca)}
        command = [part.replace("{HOME}", str(home)) for part in command]
        return Driver([*command, str(place)], environment, home / "driver.log")

    def _built(self, client: OfficialClient) -> tuple[list[str], dict[str, str]]:
        folder = self._cache / str(client)
        folder.mkdir(parents=True, exist_ok=True)
        source = HERE / client.language
        newest = max(each.stat().st_mtime for each in source.rglob("*"))
        with file_lock(folder / ".lock"):
            mark = folder / ".built"
            is_built = mark.exists() and mark.stat().st_mtime >= newest
            command = _BUILDERS[client.language](client.version, source, folder, is_built)
            mark.touch()
        return command


def _run(command: Sequence[str], folder: Path, **environment: str) -> None:
    found = subprocess.run(
        command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, check=False,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert not found.returncode, f"{' '.join(command)}:\n{(found.stdout + found.stderr)[-3000:]}"


Built = tuple[list[str], dict[str, str]]


def _java(version: str, source: Path, folder: Path, is_built: bool) -> Built:
    jars = folder / "jars"
    if not is_built:
        shutil.copy(source / "pom.xml", folder)
        line = ["mvn", "-B", "-q", "dependency:copy-dependencies", f"-Dclient.version={version}"]
        _run([*line, f"-DoutputDirectory={jars}"], folder)
        _run(["javac", "-cp", f"{jars}/*", "-d", str(folder / "classes"), str(source / "Driver.java")], folder)
    memory = ["-XX:+UseSerialGC", "-Xmx256m", "-Duser.home={HOME}"]
    return ["java", *memory, "-cp", f"{jars}/*:{folder / 'classes'}", "Driver"], {}


def _go(version: str, source: Path, folder: Path, is_built: bool) -> Built:
    if not is_built:
        for name in ("go.mod", "go.sum"):
            shutil.copy(source / name, folder)
        module = "github.com/apache/rocketmq-clients/golang/v5"
        _run(["go", "mod", "edit", f"-require={module}@{version}", str(folder / "go.mod")], source)
        tags = ["-tags", "v5_1_2"] if version == "v5.1.2" else []
        line = ["go", "build", "-p", "2", f"-modfile={folder / 'go.mod'}", "-o", str(folder / "driver"), *tags, "."]
        _run(line, source, GOFLAGS="-mod=mod")
    return [str(folder / "driver")], {}


def _node(_version: str, source: Path, folder: Path, is_built: bool) -> Built:
    if not is_built:
        shutil.copy(source / "package.json", folder)
        _run(["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--ignore-scripts"], folder)
    return ["node", str(source / "driver.cjs")], {"NODE_PATH": str(folder / "node_modules")}


def _python(version: str, source: Path, folder: Path, is_built: bool) -> Built:
    packages = folder / "packages"
    if not is_built:
        line = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q", "--upgrade", "--no-deps"]
        _run([*line, "--target", str(packages), f"rocketmq-python-client=={version}"], folder)
    return [sys.executable, str(source / "driver.py")], {"PYTHONPATH": str(packages)}


def _rust(version: str, source: Path, folder: Path, is_built: bool) -> Built:
    crate = folder / "crate"
    if not is_built:
        shutil.copytree(source, crate, dirs_exist_ok=True)
        manifest = crate / "Cargo.toml"
        lines = manifest.read_text("utf-8").splitlines()
        lines = [f'rocketmq = "={version}"' if line.startswith("rocketmq = ") else line for line in lines]
        manifest.write_text("\n".join(lines) + "\n", "utf-8")
        features = ["--features", "v0_1_2"] if version == "0.1.2" else []
        _run(["cargo", "build", "-q", "-j2", *features], crate, CARGO_TARGET_DIR=str(folder / "target"))
    return [str(folder / "target" / "debug" / "driver")], {}


_BUILDERS: Mapping[str, Callable[[str, Path, Path, bool], Built]] = {
    "java": _java, "go": _go, "node": _node, "python": _python, "rust": _rust,
}  # fmt: skip
