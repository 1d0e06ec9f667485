"""The event loop of servers: uvloop's if it is installed, with the signals and errors that asyncio's has."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

from millstream.core.event_loop import run_server
from millstream.testing.waiting import until

WITHOUT_UVLOOP = "import sys\nsys.modules['uvloop'] = None\n"

DRAINING = """
import asyncio, threading
from millstream.cli.serve import _stop_on_signals
from millstream.core.event_loop import run_server
async def main():
    stop = asyncio.Event()
    _stop_on_signals(asyncio.get_running_loop(), stop)
    print("runs", flush=True)
    await stop.wait()
    print("drains", flush=True)
    await asyncio.to_thread(threading.Event().wait)
run_server(main())
"""


async def loop_type() -> type[asyncio.AbstractEventLoop]:
    return type(asyncio.get_running_loop())


def test_servers_run_in_uvloop() -> None:
    uvloop = pytest.importorskip("uvloop")
    assert issubclass(run_server(loop_type()), uvloop.Loop)
    assert asyncio.run(loop_type()) is not uvloop.Loop, "other event loops of the process stay as they are"


def test_without_uvloop_servers_run_in_the_loop_of_asyncio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)
    assert run_server(loop_type()) is asyncio.SelectorEventLoop


def test_an_error_of_a_server_is_raised_and_its_tasks_are_cancelled() -> None:
    cancelled = list[str]()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append("work")
            raise

    async def main() -> None:
        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        raise OSError(f"no line for {task.get_name()}")

    with pytest.raises(OSError, match="no line"):
        run_server(main())
    assert cancelled == ["work"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("before", ["", WITHOUT_UVLOOP], ids=["uvloop", "asyncio"])
def test_the_first_signal_drains_a_node_and_the_second_ends_it(before: str, number: signal.Signals) -> None:
    command = [sys.executable, "-c", before + DRAINING]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as child:
        assert child.stdout is not None
        for state in ("runs", "drains"):
            assert child.stdout.readline() == f"{state}\n"
            child.send_signal(number)
        try:
            until(_ended(child))
        finally:
            child.kill()
    assert child.returncode == -number


def _ended(child: subprocess.Popen[str]) -> Callable[[], bool]:
    return lambda: child.poll() is not None
