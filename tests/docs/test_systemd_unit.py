"""The systemd unit can read the files of passwords and keys that the pages put into /etc/millstream."""

from __future__ import annotations

import re
import stat
from collections.abc import Mapping
from pathlib import Path

from millstream.anchoring.transparency.keys import require_private_mode

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "run-a-node.md").read_text("utf-8").partition("## Under systemd")[2]


def service() -> Mapping[str, str]:
    """The settings of the service; of one that is repeated the last."""
    text = (ROOT / "packaging" / "millstream@.service").read_text("utf-8").partition("[Service]")[2]
    lines = [line.partition("=") for line in text.partition("[Install]")[0].splitlines() if not line.startswith("#")]
    return {name: value for name, equals, value in lines if equals}


def test_the_unit_runs_as_the_account_that_the_page_creates() -> None:
    (account,) = re.findall(r"useradd --system .* (\w+)$", PAGE, re.MULTILINE)
    assert service()["User"] == account
    assert "DynamicUser" not in service(), "no file can be given to an account that exists only while the unit runs"
    assert re.findall(r"-u (\w+) /opt", PAGE) == [account]


def test_files_with_secrets_belong_to_the_account_of_the_unit_and_to_no_other() -> None:
    given = re.findall(r"install (?:-d )?-o (\w+) -m (\d+) .*/etc/millstream/", PAGE)
    assert {account for account, _ in given} == {service()["User"]} and len(given) == 3
    for _, mode in given:
        assert int(mode, 8) & stat.S_IRUSR
        require_private_mode(Path("anchors.json"), int(mode, 8))


def test_the_unit_has_the_paths_that_the_page_names() -> None:
    found = service()
    folder = f"/var/lib/{found['StateDirectory']}"
    assert found["Environment"] == f"MILLSTREAM_DATA={folder}" and f"--data {folder}\n" in PAGE
    assert found["ExecStart"].split() == [f"{folder.replace('/var/lib', '/opt')}/bin/millstream", "$ARGUMENTS"]
    assert found["EnvironmentFile"] == "/etc/millstream/%i.conf" and "tee /etc/millstream/mill.conf" in PAGE
