"""A private RabbitMQ for tests: ``python -m millstream.testing.rabbitmq FOLDER PORT`` becomes the server.

It listens on loopback alone, with a port mapper of its own, and keeps everything in FOLDER.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from millstream.testing.ports import free_ports

PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
GREETING = b"AMQP\x00\x00\x09\x01"
"""How a client of AMQP 0-9-1 begins."""


def environment(folder: Path, port: int) -> dict[str, str]:
    """The environment of a server in *folder* on *port*; nodes talk and find one another on ports that are free now."""
    talking, finding = free_ports(2)
    return {
        "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
        "HOME": str(folder),
        "LANG": "C.UTF-8",
        "RABBITMQ_NODENAME": f"millstream-{port}@localhost",
        "RABBITMQ_MNESIA_BASE": str(folder / "data"),
        "RABBITMQ_LOG_BASE": str(folder / "log"),
        "RABBITMQ_LOGS": "-",
        "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "RABBITMQ_DIST_PORT": str(talking),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "ERL_EPMD_PORT": str(finding),
    }


def lay_out(folder: Path) -> None:
    """Write the configuration of a server that has never run."""
    (folder / "plugins").write_text("[].\n")
    (folder / "rabbitmq.conf").write_text(
        "loopback_users = none\n"
        "log.console = true\n"
        "log.console.level = warning\n"
        "vm_memory_high_watermark.absolute = 1GB\n"
        "disk_free_limit.absolute = 50MB\n"
    )


def main(folder: Path, port: int) -> None:
    """Become the server in *folder* on 127.0.0.1:*port*."""
    with (folder / "rabbitmq.conf").open("a") as file:
        file.write(f"listeners.tcp.1 = 127.0.0.1:{port}\n")
    own = environment(folder, port)
    # Erlang would start the port mapper as a daemon that outlives us; as our child it ends with the group.
    subprocess.Popen(["epmd", "-address", "127.0.0.1", "-port", own["ERL_EPMD_PORT"]], env=own)
    os.execve(PROGRAM, [str(PROGRAM)], own)  # noqa: S606 - no shell is what we want


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
