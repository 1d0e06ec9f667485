"""The id of this process, which is known without a system call."""

from __future__ import annotations

import os
import subprocess
import sys

from millstream.core.process_id import process_id

_FORKING = """
import os
from millstream.core.process_id import process_id
child = os.fork()
assert process_id() == os.getpid()
if child:
    assert os.waitpid(child, 0)[1] == 0
"""


def test_a_forked_child_has_an_id_of_its_own() -> None:
    assert process_id() == os.getpid()
    subprocess.run([sys.executable, "-c", _FORKING], check=True)
