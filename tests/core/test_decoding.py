"""Several threads decode into a type that none has decoded into before."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import millstream
from millstream.core.decoding import prepared

SOURCE = Path(millstream.__file__).parent

THREADS = """
import sys, threading, types
import msgspec
from millstream.core.decoding import prepared

sys.setswitchinterval(1e-6)
LINES = ["from __future__ import annotations", "import msgspec"]
for n in range(12):
    LINES += [f"class C{n}(msgspec.Struct):", *(f"    f{f}: int | None = None" for f in range(8))]
    LINES += [f"    sub: C{n - 1} | None = None"] if n else []
for number in range(40):
    module = sys.modules[f"m{number}"] = types.ModuleType(f"m{number}")
    exec("\\n".join(LINES), module.__dict__)
    start, found = threading.Barrier(4), []

    def decode(kind, start=start, found=found):
        start.wait()
        found.append(msgspec.json.decode(b'{"sub":{"f0":1}}', type=prepared(kind)))

    threads = [threading.Thread(target=decode, args=(module.C11,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one.sub.f0 for one in found] == [1] * 4
"""


def test_threads_that_decode_into_a_new_type_at_once_do_not_end_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", THREADS], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_cannot_be_decoded_into_is_an_error_each_time() -> None:
    for _ in range(2):
        with pytest.raises(TypeError):
            prepared(dict[list, int] | dict[int, int])  # type: ignore[type-arg]


def test_all_types_that_are_decoded_into_are_prepared() -> None:
    bare = [
        f"{path.relative_to(SOURCE)}:{kind.lineno}"
        for path in SOURCE.rglob("*.py")
        if path.name != "decoding.py"
        for kind in _decoded(ast.parse(path.read_text("utf-8")))
        if not (isinstance(kind, ast.Call) and getattr(kind.func, "id", "") == "prepared")
    ]
    assert not bare, "name the type by millstream.core.decoding.prepared: " + ", ".join(bare)


def _decoded(tree: ast.Module) -> Iterator[ast.expr]:
    """The types into which the module decodes by msgspec."""
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        name, named = ast.unparse(call.func), {word.arg: word.value for word in call.keywords}
        if name.startswith("msgspec.") and name.endswith(".decode") and "type" in named:
            yield named["type"]
        elif name == "msgspec.convert":
            yield named["type"] if "type" in named else call.args[1]
        elif name in ("msgspec.json.Decoder", "msgspec.msgpack.Decoder") and (call.args or named):
            yield named["type"] if "type" in named else call.args[0]
