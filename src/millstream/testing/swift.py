"""A real OpenStack Swift with its S3 interface, in one folder and on loopback, for tests.

``python -m millstream.testing.swift FOLDER PORT`` runs its four servers (proxy, account, container, object) until it is
told to end. Rings have one replica on one device, users come from the configuration file, and nothing else is needed.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from millstream.testing.ports import free_ports

CREDENTIALS = "MILLSTREAM_TEST_S3"
"""What the names of the environment variables begin with in which the credentials are."""

ENVIRONMENT = {f"{CREDENTIALS}_ACCESS_KEY_ID": "test:tester", f"{CREDENTIALS}_SECRET_ACCESS_KEY": "testing"}
"""The access key and the secret of the only user of a private server."""

DEVICE = "disk"
"""Everything that the servers keep lies in the folder of this name."""

_BACKENDS = ("account", "container", "object")

_DIE_WITH_PARENT = "import ctypes; ctypes.CDLL(None).prctl(1, 9)"
"""The servers leave our process group: Linux shall kill them when this process is gone."""

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
pipeline = catch_errors gatekeeper s3api tempauth bulk slo proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:gatekeeper]
use = egg:swift#gatekeeper
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


def serve(folder: Path, port: int) -> int:
    """Run the four servers, the proxy on *port*, until one ends or this process is told to."""
    if not (folder / "swift.conf").exists():
        lay_out(folder)
    text = (folder / "proxy.template").read_text("utf-8").replace("{port}", str(port))
    (folder / "proxy-server.conf").write_text(text, "utf-8")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    children = [_start(folder, kind) for kind in (*_BACKENDS, "proxy")]
    try:
        return children[-1].wait()
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        for child in children:
            child.kill()
            child.wait()


def data_files(folder: Path, data: bytes) -> Sequence[Path]:
    """The files that hold exactly *data* (an object, or a part of one), in the *folder* of a private server."""
    files = (folder / DEVICE / "objects").rglob("*.data")
    return [path for path in files if path.stat().st_size == len(data) and path.read_bytes() == data]


def _start(folder: Path, kind: str) -> subprocess.Popen[bytes]:
    module = "obj" if kind == "object" else kind
    code = f"{_DIE_WITH_PARENT}; import sys; from swift.{module}.server import main; sys.exit(main())"
    return subprocess.Popen([sys.executable, "-c", code, str(folder / f"{kind}-server.conf")], cwd=folder)


def _write_ring(folder: Path, kind: str, port: int) -> None:
    from swift.common.ring import RingBuilder

    builder = RingBuilder(part_power=3, replicas=1, min_part_hours=0)
    place = {"region": 1, "zone": 1, "ip": "127.0.0.1", "port": port, "device": DEVICE, "weight": 1.0}
    builder.add_dev({**place, "replication_ip": "127.0.0.1", "replication_port": port, "meta": ""})
    builder.rebalance()
    builder.get_ring().save(str(folder / f"{kind}.ring.gz"))


if __name__ == "__main__":
    sys.exit(serve(Path(sys.argv[1]), int(sys.argv[2])))
