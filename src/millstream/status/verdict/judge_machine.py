"""Issues of the process and its machine: disk, clock, and what cannot be read."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from millstream.core.amounts import counted, size_text
from millstream.core.clock import MICROSECONDS
from millstream.core.timestamps import time_text
from millstream.mill.reports.page import age_text
from millstream.settings.verdict import VerdictSettings
from millstream.status.disk_usage import DATA_FOLDER, LOG_STORE, Disk, filled_by
from millstream.status.verdict.facts import Facts
from millstream.status.verdict.issues import make_issue
from millstream.status.verdict.models import Issue
from millstream.stores.audit.holders import process_of

_RELAY = "serve.relay."


def machine_issues(facts: Facts) -> Iterator[Issue]:
    """Issues of the process and its machine."""
    snapshot = facts.snapshot
    troubles = {**snapshot.troubles, **facts.process.troubles, **(facts.copies.troubles if facts.copies else {})}
    for what, why in troubles.items():
        yield make_issue("trouble", what, f"{what} cannot be read: {why}", "/system")
    if snapshot.free_bytes is not None:
        yield from disk_issues(snapshot.free_bytes, facts.limits)
    for disk in facts.disks:
        if LOG_STORE in disk.holds and DATA_FOLDER not in disk.holds:
            yield from disk_issues(disk.free, facts.limits, LOG_STORE)
    for part, why in facts.process.unwritable.items():
        text = f"nothing can be written to the {part}: {why}"
        yield make_issue("folder-not-writable", part, text, "/system")
    yield from map(partial(_filling, facts), (disk for disk in facts.disks if disk.is_filling))
    yield from _clock(facts)
    yield from _process(facts)
    yield from _failing_roles(facts)


def disk_issues(free_bytes: int, limits: VerdictSettings, part: str = DATA_FOLDER) -> Iterator[Issue]:
    """The issue of the disk of *part* that has only *free_bytes* left; none where these are enough."""
    if free_bytes < limits.least_free:
        text = f"the disk of the {part} has {size_text(free_bytes)} free"
        yield make_issue("disk", part, text, "/system")


def _filling(facts: Facts, disk: Disk) -> Issue:
    used, left = size_text(disk.used_since or 0), size_text(disk.free)
    past, ahead = (age_text(round((one or 0) * MICROSECONDS)) for one in (disk.seconds, disk.full_in_seconds))
    text = f"the disk {disk.mount} ({', '.join(disk.holds)}) is full in {ahead}: {used} more in {past}, {left} free"
    grown = filled_by(disk, facts.usage)
    parts = [f"{one.part} (+{size_text(one.grown or 0)})" for one in grown[:3]]
    text += f"; what grew most: {', '.join(parts)}" if parts else "; no part of this node grew: another program does"
    if parts and sum(one.grown or 0 for one in grown) < (disk.used_since or 0) / 2:
        text += "; most of it is not data of this node"
    return make_issue("disk-filling", disk.mount, text, "/system#disks")


def _clock(facts: Facts) -> Iterator[Issue]:
    snapshot = facts.snapshot
    recorded = [(row.last_received_at, f"in the log {row.log}") for row in snapshot.logs if row.last_received_at]
    recorded += [(snapshot.head.time, "in the ledger")] if snapshot.head else []
    checked = [row for row in snapshot.spaces if row.newest_check is not None]
    recorded += [(row.newest_check or 0, f"by a check of {row.space} in {row.store}") for row in checked]
    (latest, place), now = max(recorded, default=(facts.at, "")), time_text(facts.at)
    if latest - facts.at > facts.limits.clock_off:
        text = f"the clock says {now}, {age_text(latest - facts.at)} before what the node recorded last "
        yield make_issue("clock", "clock", f"{text}({time_text(latest)}, {place})", "/system")
    elif (step := facts.step) is not None:
        text = f"the clock was set {'forward' if step.amount > 0 else 'back'} by {age_text(abs(step.amount))}"
        yield make_issue("clock", "clock", f"{text}; it says {now}", "/system", since=step.at)


def _outbox(log: str, state: str) -> Issue:
    text = f"the database of the outbox whose rows go into the log {log} {state}"
    return make_issue("outbox", log, text, f"/logs/{log}")


def _failing_roles(facts: Facts) -> Iterator[Issue]:
    """Issues of the roles of this process, and of those of other members, as these say with their heartbeats."""
    process, members = facts.process, facts.snapshot.members
    failing = dict[str, tuple[str, str]]()
    for member in members.serving if members is not None else ():
        details = member.details
        if process_of(details.process) != process.process:
            has = details.failing.keys() - (details.roles.keys() - member.owns.keys())  # without roles that it gave up
            failing |= {role: (details.failing[role], f" ({member.id})") for role in has}
    failing |= {role: (why, "") for role, why in process.failing.items()}
    for role, (why, where) in sorted(failing.items()):
        kind, _, log = role.partition(" ")
        cause = f": {why}" if why else ""
        if kind == "ingest":
            text = f"the MQTT broker whose messages go into the log {log} is not connected{where}{cause}"
            yield make_issue("ingest-disconnected", log, text, f"/logs/{log}")
        elif kind != "relay":
            yield make_issue("role-suspended", role, f"the role {role} is suspended{where}{cause}", "/system")
        elif f"{_RELAY}{log}.url" not in process.unreachable:
            yield _outbox(log, f"is not read{where}{cause}" if why else f"does not answer{where}")


def _process(facts: Facts) -> Iterator[Issue]:
    process = facts.process
    for setting, why in process.unreachable.items():
        if setting.startswith(_RELAY):
            yield _outbox(setting.removeprefix(_RELAY).removesuffix(".url"), f"cannot be reached: {why}")
            continue
        kind, name = ("queue-broker", "broker") if setting == "queue.broker" else ("database", "database")
        section = setting.partition(".")[0]
        owner = "the node's tables" if section == "node" else f"{section}s" if section != "registry" else "the registry"
        text = f"the {name} of {owner} cannot be reached: {why}"
        yield make_issue(kind, setting, text, "/system", where=setting)
    for refusal in process.refused:
        text = f"this node cannot write: {refusal.why.partition(', and a log')[0]}"
        yield make_issue("writer-refused", refusal.log, text, f"/logs/{refusal.log}", since=refusal.at)
    if failed := [one for one in process.undelivered if one.alarm.kind != "alarm-undelivered"]:
        text = f"{counted(len(failed), 'alarm was', 'alarms were')} not delivered: {failed[0].why}"
        since = min(one.since for one in failed)
        yield make_issue("alarm-undelivered", "alarms", text, "/system", since=since, count=len(failed))
    for one in process.certificates:
        left, name = one.ends_at - facts.at, f"the certificate {one.path} ({one.setting})"
        if left <= 0:
            text = f"{name} expired {age_text(-left)} ago"
            yield make_issue("certificate-expired", one.setting, text, "/system", since=one.ends_at)
        elif left < facts.limits.certificate_left:
            text = f"{name} expires in {age_text(left)}"
            yield make_issue("certificate-expiring", one.setting, text, "/system")
    if len(process.serving) > 1:
        numbers = " and ".join(str(one.pid) for one in process.serving)
        yield make_issue("served-twice", "node", f"the processes {numbers} serve this folder", "/system")
