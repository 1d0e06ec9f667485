"""Every command of Millstream, run in one process without the packages of any extra. Prints one JSON object a command.

``python base_dependencies.py FOLDER [--block]``: with ``--block`` modules that the base dependencies do not install
cannot be imported, so that an environment with all extras stands for one with none.
"""

from __future__ import annotations

import base64
import contextlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import io
import json
import os
import re
import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from support.command_examples import example_lines

ENDLESS = ("log tail", "anchor feed", "batch serve", "mill work", "serve")
"""Commands that run until they are interrupted."""

HELP_ONLY = ("bench log", "log torture")
"""They measure for a while, and start processes that nothing is kept from."""

SETUP = """
log create weather
log append weather readings.jsonl --jsonl
store create primary photos
store put primary photos up --create
mill policy save local policy.json
mill duplicate
mill check
"""
EVENT = '{"event_time": 1795305600000000, "key": "a", "source": "s", "body": "x"}\n'
POLICY = {"defaultPolicies": [{"srcStoreId": "primary", "destStoreId": "second"}]}
KEY = {"kty": "EC", "crv": "secp256k1", "x": "A" * 43, "y": "A" * 43, "d": "A" * 43}
FILES = {
    "readings.jsonl": EVENT * 8,
    "operations.jsonl": "{}\n",
    "policy.json": json.dumps(POLICY),
    "up/2013/a.jpg": "a picture",
    "photos/a.jpg": "a picture",
    "example.org.key": "example.com/foo+530d903a+AekyeRrm56hApGFkyQR4ZCbV54Id2LKaANYcrnKv3U2k\n",
    **dict.fromkeys(("request.json", "patches.json", "proof.json", "task.json"), "{}"),
    **dict.fromkeys(("update.json", "recovery.json", "old.json", "next.json", "new.json"), json.dumps(KEY)),
    "settings.toml": """
        [stores.primary]
        url = "file://{data}/stores/primary?mount=cas:cas://{data}/cas"
        [stores.second]
        url = "file://{data}/stores/second"
    """,
}
"""What the examples of commands name."""


class BaseModules(importlib.abc.MetaPathFinder):
    """Finds modules by *finders*, if they are part of Python or installed by the base dependencies."""

    def __init__(self, finders: Sequence[Any]) -> None:
        self._finders = finders
        base = base_distributions()
        owners = importlib.metadata.packages_distributions()
        installed = {module for module, names in owners.items() if base & set(map(normal, names))}
        self._allowed = {*sys.stdlib_module_names, *installed, "millstream"}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] not in self._allowed and not name.startswith("_sysconfigdata"):
            return None
        found = (finder.find_spec(name, path, target) for finder in self._finders)
        return next((spec for spec in found if spec is not None), None)

    def find_distributions(self, *context: Any) -> Any:
        return importlib.machinery.PathFinder.find_distributions(*context)


def normal(name: str) -> str:
    """The normalized name of a distribution."""
    return re.sub(r"[-_.]+", "-", name).lower()


def base_distributions() -> set[str]:
    """The distributions that ``pip install millstream`` installs."""
    found, left = set[str](), ["millstream"]
    while left:
        name = normal(left.pop())
        if name in found:
            continue
        found.add(name)
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            requirements = importlib.metadata.requires(name) or ()
            left += [re.split(r"[^\w.-]", one)[0] for one in requirements if "extra ==" not in one]
    return found


def attempt(arguments: list[str], *, endless: bool = False) -> dict[str, Any]:
    """Run one command; its exit code and what it printed."""
    from millstream.cli.main import run

    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    timer = threading.Timer(0.7, os.kill, (os.getpid(), signal.SIGINT))
    before = signal.getsignal(signal.SIGINT)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        if endless:
            timer.start()
        try:
            code = run(arguments)
        except KeyboardInterrupt:
            code = 130
        except BaseException as error:
            code, _ = -1, err.write(f"Traceback: {type(error).__name__}: {error}")
        finally:
            timer.cancel()
            signal.signal(signal.SIGINT, before)
    out.seek(0)
    return {"command": shlex.join(arguments), "code": code, "error": err.getvalue(), "output": out.read()}


def example_commands(folder: Path) -> Iterator[list[str]]:
    """The words of the example of each command, kept within *folder* and this machine."""
    suffix = base64.urlsafe_b64encode(b"\x12\x20" + bytes(32)).decode().rstrip("=")
    for line in example_lines():
        here = re.sub("/(mnt|srv)/", rf"{folder}/\1/", line.partition(" > ")[0]).replace("~/", f"{folder}/")
        here = re.sub(r"https://[\w.]+", "http://127.0.0.1:9", here).replace("EiAbc", suffix)
        yield shlex.split(here)[1:]


def main(folder: Path, *, block: bool) -> None:
    if block:
        sys.meta_path[:] = [BaseModules(tuple(sys.meta_path))]
    os.chdir(folder)
    for name, text in FILES.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text, "utf-8")
    os.environ["MILLSTREAM_CONFIG"] = str(folder / "settings.toml")
    for line in SETUP.strip().splitlines():
        print(json.dumps({"kind": "setup", **attempt(shlex.split(line))}))
    Path("events.jsonl").write_text(attempt(["log", "read", "weather", "--json"])["output"], "utf-8")
    for words in example_commands(folder):
        print(json.dumps({"kind": "help", **attempt([*words, "--help"])}))
        if not " ".join(words).startswith(HELP_ONLY):
            endless = " ".join(words).startswith(ENDLESS)
            print(json.dumps({"kind": "example", **attempt(words, endless=endless)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), block="--block" in sys.argv)
