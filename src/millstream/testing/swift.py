"""A real OpenStack Swift with its S3 interface, in one folder and on loopback, for tests.

``python -m millstream.testing.swift FOLDER PORT`` runs its four servers (proxy, account, container, object) until it is
told to end. Rings have one replica on one device, users come from the configuration file, and nothing else is needed.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from millstream.core.clock import Clock, SystemClock
from millstream.testing.ports import free_ports

if TYPE_CHECKING:
    from multiprocessing.context import ForkProcess

Application = Callable[[dict[str, Any], Any], Iterable[bytes]]

CREDENTIALS = "MILLSTREAM_TEST_S3"
"""What the names of the environment variables begin with in which the credentials are."""

ENVIRONMENT = {f"{CREDENTIALS}_ACCESS_KEY_ID": "test:tester", f"{CREDENTIALS}_SECRET_ACCESS_KEY": "testing"}
"""The access key and the secret of the only user of a private server."""

DEVICE = "disk"
"""Everything that the servers keep lies in the folder of this name."""

_BACKENDS = ("account", "container", "object")

_PR_SET_PDEATHSIG = 1

_COMMON = """\
[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
workers = {workers}
user = {user}
swift_dir = {folder}
devices = {folder}
mount_check = false
log_level = WARNING
disable_fallocate = true
fallocate_reserve = 0
"""

_SWIFT = """\
[swift-hash]
swift_hash_path_prefix = mill
swift_hash_path_suffix = stream
"""

_PROXY = """
[pipeline:main]
pipeline = catch_errors gatekeeper cache s3api tempauth bulk slo proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:gatekeeper]
use = egg:swift#gatekeeper
[filter:cache]
paste.filter_factory = millstream.testing.swift:cache_filter
[filter:s3api]
use = egg:swift#s3api
s3_acl = false
[filter:tempauth]
use = egg:swift#tempauth
user_test_tester = testing .admin
[filter:bulk]
use = egg:swift#bulk
[filter:slo]
use = egg:swift#slo
"""

_BACKEND = """
[pipeline:main]
pipeline = {kind}-server
[app:{kind}-server]
use = egg:swift#{kind}
container_update_timeout = 60
"""


def lay_out(folder: Path) -> None:
    """Write the rings and the configuration of the servers behind the proxy. *folder* is theirs from now on."""
    import getpass

    (folder / DEVICE).mkdir()
    (folder / "swift.conf").write_text(_SWIFT, "utf-8")
    values = {"folder": folder, "user": getpass.getuser(), "workers": 0}
    for kind, port in zip(_BACKENDS, free_ports(len(_BACKENDS)), strict=True):
        _write_ring(folder, kind, port)
        text = _COMMON.format(port=port, **values) + _BACKEND.format(kind=kind)
        (folder / f"{kind}-server.conf").write_text(text, "utf-8")
    (folder / "proxy.template").write_text(_COMMON.format(port="{port}", **values) + _PROXY, "utf-8")


class ProxyCache:
    """What a proxy keeps in memcached, here in its memory: whether accounts and containers exist, for a minute.

    Without it, the proxy asks two of the other servers at each request. Values are kept as JSON, as in memcached.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._values: dict[str, tuple[float, str]] = {}

    def get(self, key: str, **_: bool) -> Any:
        """The value of *key*, or None."""
        end, value = self._values.get(key, (0.0, ""))
        return json.loads(value) if self._clock.monotonic() < end else None

    def set(self, key: str, value: object, *, time: float) -> None:
        """Keep *value* for *time* seconds; Swift names the argument."""
        self._values[key] = (self._clock.monotonic() + time, json.dumps(value))

    def delete(self, key: str) -> None:
        """Forget *key*."""
        self._values.pop(key, None)


def cache_filter(*_: object, **__: object) -> Callable[[Application], Application]:
    """The filter of the pipeline that gives each request the :class:`ProxyCache`."""
    cache = ProxyCache(SystemClock())

    def with_cache(inner: Application) -> Application:
        def answer(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
            environ["swift.cache"] = cache
            return inner(environ, start_response)

        return answer

    return with_cache


def serve(folder: Path, port: int) -> int:
    """Run the four servers, the proxy on *port*, until one ends or this process is told to."""
    if not (folder / "swift.conf").exists():
        lay_out(folder)
    text = (folder / "proxy.template").read_text("utf-8").replace("{port}", str(port))
    (folder / "proxy-server.conf").write_text(text, "utf-8")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    children = [_start(folder, kind) for kind in (*_BACKENDS, "proxy")]
    try:
        children[-1].join()
        return children[-1].exitcode or 0
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for child in children:
            child.kill()
            child.join()


def data_files(folder: Path, data: bytes) -> Sequence[Path]:
    """The files that hold exactly *data* (an object, or a part of one), in the *folder* of a private server."""
    files = (folder / DEVICE / "objects").rglob("*.data")
    return [path for path in files if path.stat().st_size == len(data) and path.read_bytes() == data]


def _start(folder: Path, kind: str) -> ForkProcess:
    """Fork a server: all of them import the same modules, which takes most of their start."""
    module = importlib.import_module(f"swift.{'obj' if kind == 'object' else kind}.server")
    child = get_context("fork").Process(target=_run, args=(module.main, folder / f"{kind}-server.conf"))
    child.start()
    return child


def _run(main: Callable[[], NoReturn], configuration: Path) -> None:
    """Serve in this process. Servers leave our process group: Linux shall kill them when their parent is gone."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    sys.argv = [sys.argv[0], str(configuration)]
    main()


def _write_ring(folder: Path, kind: str, port: int) -> None:
    from swift.common.ring import RingBuilder

    builder = RingBuilder(part_power=3, replicas=1, min_part_hours=0)
    place = {"region": 1, "zone": 1, "ip": "127.0.0.1", "port": port, "device": DEVICE, "weight": 1.0}
    builder.add_dev({**place, "replication_ip": "127.0.0.1", "replication_port": port, "meta": ""})
    builder.rebalance()
    builder.get_ring().save(str(folder / f"{kind}.ring.gz"))


if __name__ == "__main__":
    sys.exit(serve(Path(sys.argv[1]), int(sys.argv[2])))
