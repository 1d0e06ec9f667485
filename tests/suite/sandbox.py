"""A copy of the tree with a virtual environment of its own, in which sources can be changed.

The environment is what makes it safe: whatever ``PYTHONPATH`` a test gives its children, ``sys.executable`` imports the
copy. Packages other than Millstream come from the environment that made the copy.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import venv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[2]
_LEFT_OUT = {"PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "PYTEST_ADDOPTS", "VIRTUAL_ENV"}
_GRACE = 20.0
"""Seconds that processes get to end by themselves."""


class SandboxError(Exception):
    """The copy is not what it must be."""


class Sandbox:
    """The copy in *root*. :func:`sandbox` makes one."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.python = root / ".venv" / "bin" / "python"
        self._written = 0

    @property
    def packages(self) -> Path:
        """The folder of the packages that are only in the copy."""
        return self.root / ".venv" / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"

    def environment(self) -> dict[str, str]:
        """The variables for a process in the copy."""
        kept = {name: value for name, value in os.environ.items() if name not in _LEFT_OUT}
        path = f"{self.python.parent}:{os.environ.get('PATH', os.defpath)}"
        return kept | {"PATH": path, "PYTHONPATH": str(self.root / "tests")}

    def start(
        self, arguments: Sequence[str], more: Mapping[str, str], stdout: IO[str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start Python with *arguments*, and *more* variables, in the copy, as a session of its own."""
        line, variables = [str(self.python), *arguments], self.environment() | dict(more)
        return subprocess.Popen(line, cwd=self.root, env=variables, stdout=stdout, start_new_session=True)

    def write(self, file: str, text: str) -> None:
        """Change the source *file*. Its time is a new one, or Python would run what it compiled of an earlier text."""
        path = self.root / file
        path.write_text(text, "utf-8")
        self._written += 1
        os.utime(path, (self._written, self._written))

    def check(self) -> None:
        """Raise :class:`SandboxError` unless Python imports Millstream from the copy."""
        line = [str(self.python), "-c", "import millstream; print(millstream.__file__)"]
        said = subprocess.run(line, cwd="/", env=self.environment(), capture_output=True, text=True, check=True).stdout
        if Path(said.strip()) != self.root / "src" / "millstream" / "__init__.py":
            raise SandboxError(f"the copy {self.root} imports {said.strip()}")


@contextlib.contextmanager
def sandbox() -> Iterator[Sandbox]:
    """Copy the tree as it is now, with files that are not committed yet; the copy is deleted in the end."""
    with tempfile.TemporaryDirectory(prefix="millstream-mutants-", ignore_cleanup_errors=True) as folder:
        made = Sandbox(Path(folder).resolve())
        _copy_tree(made.root)
        _make_environment(made)
        made.check()
        yield made


def _copy_tree(target: Path) -> None:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def _make_environment(made: Sandbox) -> None:
    venv.EnvBuilder(symlinks=True).create(made.root / ".venv")
    paths = [str(made.root / "src"), sysconfig.get_path("purelib")]
    (made.packages / "millstream-tree.pth").write_text("\n".join(paths) + "\n")
    bin_here = Path(sys.executable).parent
    for program in bin_here.iterdir():
        copy = made.python.with_name(program.name)
        if not copy.exists():
            _add_program(program, copy, bin_here)


def _add_program(program: Path, copy: Path, bin_here: Path) -> None:
    """Link *program*; one that runs Python is copied, so that it runs that of the copy."""
    shebang = f"#!{bin_here}/".encode()
    if program.is_file() and program.read_bytes().startswith(shebang):
        copy.write_bytes(f"#!{copy.parent}/".encode() + program.read_bytes().removeprefix(shebang))
        copy.chmod(0o755)
    else:
        copy.symlink_to(program)


def end_marked(name: str, value: str) -> None:
    """End the processes that were started with the variable *name* set to *value*: first let them end by themselves."""
    mark, deadline = f"{name}={value}".encode(), time.perf_counter() + _GRACE
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and folder.name != str(os.getpid()):
            with contextlib.suppress(OSError):
                _end_if_marked(int(folder.name), mark, deadline)


def _end_if_marked(pid: int, mark: bytes, deadline: float) -> None:
    descriptor = os.pidfd_open(pid)
    try:
        if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            left = max(deadline - time.perf_counter(), 0.0)
            if not select.select([descriptor], [], [], left)[0]:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    finally:
        os.close(descriptor)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End *process*, if it runs, in order, as Ctrl-C does. After the grace time it is killed with its group."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(_GRACE)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
