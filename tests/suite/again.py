"""Run the few tests that failed in the last run once more, one at a time on a quiet machine.

``python -m suite.again PYTEST-OPTIONS…`` ends with 0 where all of them pass now, and names them: a test that needs a
second run depends on the speed of the machine, which is a fault of the test or of the code and is to be fixed. Where
none failed, or more than :data:`LIMIT`, or the run was far over a budget or ended early, nothing is run again and the
failure stands.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

LIMIT = 4
"""A change that breaks more tests than this is broken."""

CACHE = Path(".pytest_cache/v/cache/lastfailed")

OTHER_FAULT = "suite/other_fault"
"""The key in pytest's cache of what was wrong with the last run beside failed tests; the text is empty for nothing."""


def failed_tests(cache: Path = CACHE) -> list[str]:
    """The ids of the tests that failed in the last run, as pytest's cache has them."""
    return sorted(json.loads(cache.read_text())) if cache.exists() else []


def other_fault(cache: Path = CACHE) -> str:
    """What was wrong with the last run beside failed tests, or nothing."""
    path = cache.parents[1] / OTHER_FAULT
    return str(json.loads(path.read_text())) if path.exists() else ""


def refusal(tests: list[str], fault: str) -> str:
    """Why *tests* are not run again after a run with another *fault*, or nothing."""
    if fault:
        return f"{fault}; failed tests are not run again"
    if not tests:
        return "no failed test is on record; the failure has another cause"
    if len(tests) > LIMIT:
        return f"{len(tests)} tests failed, more than {LIMIT}; they are not run again"
    return ""


def main(options: list[str]) -> int:
    """Run the failed tests again; the exit code of the run, or 1 where nothing was run."""
    tests = failed_tests()
    if reason := refusal(tests, other_fault()):
        print(reason)
        return 1
    print(f"running {len(tests)} failed again, one at a time:", *tests, sep="\n  ", flush=True)
    command = [sys.executable, "-m", "pytest", "-n", "0", *options, *tests]
    code = subprocess.run(command, check=False).returncode
    if code == 0:
        print("PASSED ONLY AT THE SECOND RUN, fix them:", *tests, sep="\n  ", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
