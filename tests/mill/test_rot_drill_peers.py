"""The rot drill beside rclone: the same damage to the copies of each, and what each finds, repairs and destroys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from millstream.testing import services
from millstream_peers.mill.drill import DrillResult, run_drill, table, tools
from millstream_peers.mill.drill_faults import BUCKET, FAULTS, FOLDER, SOURCE, DrillFault
from millstream_peers.rclone import RcloneMissingError, program
from suite.missing import end_without
from suite.sizes import sized

pytestmark = [pytest.mark.served, pytest.mark.timeout(1800)]

OLD = ("flipped", "truncated", "deleted", "replaced", "recoated", "parts")
"""Damage that rclone is compared with in tests; a full drill compares it with all of it."""


@pytest.fixture(scope="module")
def server() -> Iterator[services.Server]:
    try:
        program()
    except RcloneMissingError as error:
        end_without(error)
    with services.private("swift") as server:
        yield server


def drilled(server: services.Server, folder: Path, name: str, faults: Sequence[DrillFault] = FAULTS) -> DrillResult:
    (tool,) = (tool for tool in tools(server) if tool.name == name)
    return run_drill(folder, server, tool, items=sized(ci=2, long=2000), faults=faults)


def told(outcome: DrillResult) -> dict[str, str | None]:
    return {f"{fault.place} {fault.name}": result.told for fault, result in outcome.results.items()}


def unrepaired(outcome: DrillResult) -> set[str]:
    return {f"{fault.place} {fault.name}" for fault, result in outcome.results.items() if not result.repaired}


def assert_nothing_good_was_lost(outcome: DrillResult) -> None:
    assert not any(result.spread for result in outcome.results.values())
    assert (outcome.lost, outcome.false_alarms, outcome.drained, outcome.escapes) == (0, 0, 0, [])
    for mount in outcome.mounts.values():
        assert (mount.named, mount.well, mount.written, mount.lost) == (True, False, 0, 0)


def assert_what_is_left_is_named(outcome: DrillResult) -> None:
    assert None not in told(outcome).values()
    assert all(result.left for result in outcome.results.values())
    assert not (outcome.well and unrepaired(outcome)), "no exit code 0 over damage"


def test_p6_a_node_finds_every_fault_and_repairs_all_but_a_source_that_was_rewritten(
    server: services.Server, tmp_path: Path
) -> None:
    outcome = drilled(server, tmp_path, "Millstream")
    assert_what_is_left_is_named(outcome)
    assert_nothing_good_was_lost(outcome)
    assert unrepaired(outcome) <= {"1 outdated", "1 forged", "1 garbled", "1+2 twice"}
    words = {place: (said or "").rpartition("(")[2].rstrip(")") for place, said in told(outcome).items()}
    assert {place: row for place, row in words.items() if place.split()[1] in OLD} == {
        "2 flipped": "B3", "2 truncated": "B3", "2 deleted": "B18", "2 replaced": "B3", "2 recoated": "D8",
        "3 flipped": "B3", "3 truncated": "B18", "3 deleted": "B18", "3 replaced": "B19", "3 recoated": "D8",
        "3 parts": "B4", "1 flipped": "B3",
    }  # fmt: skip
    assert len(table([outcome]).splitlines()) == 2 + len(FAULTS) + 6


def test_rclone_check_misses_what_rots_behind_a_servers_checksums(server: services.Server, tmp_path: Path) -> None:
    faults = [fault for fault in FAULTS if fault.name in OLD]
    outcome = drilled(server, tmp_path, "rclone check", faults)
    missed = {place for place, said in told(outcome).items() if said is None}
    assert missed == {"2 recoated", "3 flipped", "3 truncated", "3 recoated", "3 parts"}
    assert not any(result.repaired for result in outcome.results.values())


def test_rclone_sync_spreads_what_rots_at_the_source_and_what_is_taken_from_it(
    server: services.Server, tmp_path: Path
) -> None:
    (rotten,) = (fault for fault in FAULTS if (fault.name, fault.place) == ("flipped", SOURCE))
    outcome = drilled(server, tmp_path, "rclone sync --checksum", [rotten])
    assert outcome.results[rotten].spread == len((FOLDER, BUCKET))
    assert outcome.mounts[FOLDER].written > 0
    assert outcome.drained == outcome.copies > 0
