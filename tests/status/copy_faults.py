"""Faults of copies, their reports, plans and policies, on a :class:`faulty_node.FaultyNode`."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import TYPE_CHECKING

from millstream.mill.policies.policy import policy_file
from millstream.stores import LocalStore
from millstream.testing.damage import flip_bit

if TYPE_CHECKING:
    from faulty_node import FaultyNode

DAY = 24 * 3600


@contextlib.contextmanager
def report_stale(desk: FaultyNode) -> Iterator[None]:
    desk.clock.jump(61 * DAY)
    yield
    desk.clock.jump(-61 * DAY)


@contextlib.contextmanager
def report_incomplete(desk: FaultyNode) -> Iterator[None]:
    with desk.moved(desk.two):
        desk.command("mill", "check", "--store", "two", "--space", "photos")
    yield
    desk.command("mill", "check")


@contextlib.contextmanager
def report_absent(desk: FaultyNode) -> Iterator[None]:
    with desk.moved(desk.folder / "reports" / "two" / "photos"):
        yield


@contextlib.contextmanager
def forged(desk: FaultyNode) -> Iterator[None]:
    path = desk.two / "photos" / "b"
    before = path.read_bytes()
    flip_bit(path)
    desk.command("mill", "check")
    yield
    path.write_bytes(before)
    desk.command("mill", "check")


@contextlib.contextmanager
def deleted(desk: FaultyNode) -> Iterator[None]:
    path = desk.two / "photos" / "b"
    before = path.read_bytes()
    path.unlink()
    desk.command("mill", "check")
    yield
    path.write_bytes(before)
    desk.command("mill", "check")


@contextlib.contextmanager
def uncovered(desk: FaultyNode) -> Iterator[None]:
    store = LocalStore(desk.folder / "stores" / "one")
    store.create_space("drafts")
    store.put("drafts", "x", io.BytesIO(b"x"))
    yield
    store.delete("drafts", "x")


@contextlib.contextmanager
def held_plan(desk: FaultyNode) -> Iterator[None]:
    for name in ("a", "b", "c"):
        (desk.folder / "stores" / "one" / "photos" / name).rename(desk.folder / name)
    desk.command("mill", "forget", "one", "photos", "a", "b", "c")
    desk.command("mill", "duplicate")
    yield
    desk.node.stores.change_guard.approve()


@contextlib.contextmanager
def vanished(desk: FaultyNode) -> Iterator[None]:
    original = desk.folder / "stores" / "one" / "photos" / "a"
    original.rename(desk.folder / "a")
    desk.command("mill", "duplicate")
    yield
    (desk.folder / "a").rename(original)
    desk.command("mill", "duplicate")


@contextlib.contextmanager
def rejected_plan(desk: FaultyNode) -> Iterator[None]:
    for name in ("a", "b", "c"):
        (desk.folder / "stores" / "one" / "photos" / name).rename(desk.folder / name)
    desk.command("mill", "duplicate")
    (plan,) = desk.node.stores.change_guard.pending()
    desk.command("mill", "reject", str(plan.number), "--reason", "the wrong disk")
    yield
    for name in ("a", "b", "c"):
        (desk.folder / name).rename(desk.folder / "stores" / "one" / "photos" / name)
    desk.command("mill", "duplicate")


@contextlib.contextmanager
def not_configured(desk: FaultyNode) -> Iterator[None]:
    path = desk.folder / "policies" / policy_file("local")
    before = path.read_bytes()
    path.write_bytes(before.replace(b'"two"', b'"gone"'))
    yield
    path.write_bytes(before)


@contextlib.contextmanager
def policy_broken(desk: FaultyNode) -> Iterator[None]:
    path = desk.folder / "policies" / policy_file("local")
    before = path.read_bytes()
    path.write_text("{")
    yield
    path.write_bytes(before)
