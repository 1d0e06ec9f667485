"""Ports for servers of tests."""

from __future__ import annotations

from pathlib import Path

from millstream.testing.ports import free_ports


def test_a_port_is_not_one_that_the_kernel_gives_to_a_connection() -> None:
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text("ascii").split()[0])
    ports = free_ports(20)
    assert len(set(ports)) == 20
    assert all(1024 < port < first for port in ports)
