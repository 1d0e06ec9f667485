"""The forked ``millstream`` of documentation pages is like the program: input, output, exit codes, folder and pipes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from millstream import __version__
from support.forked_commands import forked_commands

SCRIPT = """
printf 'one\\ntwo\\n' | millstream log append lines
millstream log read lines > read
cat read
millstream log read nothing 2>errors || echo "code $?"
MILLSTREAM_DATA=elsewhere millstream log read lines 2>>errors || echo "code $?"
yes | head -n 100000 | millstream log append many > /dev/null
millstream log read many | head -n 1
millstream --version & wait
"""


def test_commands_are_like_those_of_the_program(tmp_path: Path) -> None:
    with forked_commands() as programs:
        environment = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"}
        done = subprocess.run(
            ["bash", "-uc", SCRIPT], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
    version = f"millstream, version {__version__}"
    assert done.stdout.splitlines() == ["1 2", "one", "two", "code 3", "code 3", "y", version]
    assert done.stderr == "", "whoever reads no further ends a command without a complaint"
    missing, elsewhere = (tmp_path / "errors").read_text("utf-8").splitlines()
    assert "no log 'nothing'" in missing and str(tmp_path / "elsewhere") in elsewhere
