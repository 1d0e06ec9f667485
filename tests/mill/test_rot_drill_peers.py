"""The rot drill beside rclone: the same damage to the copies of each, and what each finds, heals and destroys."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.testing import services
from millstream_peers.mill.drill import FAULTS, DrillFault, DrillResult, run_drill, table, tools
from millstream_peers.rclone import RcloneMissingError, program
from suite.missing import end_without
from suite.sizes import sized

pytestmark = [pytest.mark.served, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def server() -> Iterator[services.Server]:
    try:
        program()
    except RcloneMissingError as error:
        end_without(error)
    with services.private("swift") as server:
        yield server


def drilled(server: services.Server, folder: Path, name: str) -> DrillResult:
    (tool,) = (tool for tool in tools(folder, server) if tool.name == name)
    return run_drill(folder, server, tool, items=sized(ci=2, long=2000))


def told(outcome: DrillResult) -> dict[str, str | None]:
    return {f"{fault.store} {fault.name}": finding.told for fault, finding in outcome.findings.items()}


def test_p6_every_fault_is_found_under_its_row_and_healed_and_an_emptied_source_takes_no_copy_with_it(
    server: services.Server, tmp_path: Path
) -> None:
    outcome = drilled(server, tmp_path, "Millstream")
    rows = {place: (said or "").split()[0] for place, said in told(outcome).items()}
    assert rows == {
        "2 flipped": "B3", "2 truncated": "B3", "2 deleted": "B18", "2 replaced": "B3", "2 recoated": "D8",
        "3 flipped": "B3", "3 truncated": "B18", "3 deleted": "B18", "3 replaced": "B19", "3 recoated": "D8",
        "3 parts": "B4", "1 flipped": "B3",
    }  # fmt: skip
    assert all(finding.healed and not finding.spread for finding in outcome.findings.values())
    assert (outcome.lost, outcome.false_alarms, outcome.drained) == (0, 0, 0)
    assert len(table([outcome]).splitlines()) == 2 + len(FAULTS) + 3


def test_rclone_check_misses_what_rots_behind_a_servers_checksums(server: services.Server, tmp_path: Path) -> None:
    outcome = drilled(server, tmp_path, "rclone check")
    missed = {place for place, said in told(outcome).items() if said is None}
    assert missed == {"2 recoated", "3 flipped", "3 truncated", "3 recoated", "3 parts"}
    assert not any(finding.healed for finding in outcome.findings.values())


def test_rclone_sync_spreads_what_rots_at_the_source_and_what_is_taken_from_it(
    server: services.Server, tmp_path: Path
) -> None:
    rotten = DrillFault("flipped", "1", "a bit flipped on the disk")
    outcome = drilled(server, tmp_path, "rclone sync --checksum")
    assert outcome.findings[rotten].spread == 2
    assert outcome.drained == outcome.copies > 0
