"""``millstream log read`` with filters: what it prints, and what it says of the search."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from millstream.cli.main import run
from millstream.log import LogSpec, Message, open_store


@pytest.fixture
def data(tmp_path: Path) -> list[str]:
    with open_store(f"sqlite:///{tmp_path}/log.db") as store, store.log(LogSpec("weather")).writer() as writer:
        writer.append(
            [
                Message(b"wind 4", "JFK", "buoy", event_time=60_000_000, headers=(("trace", b"7"),)),
                Message(b"wind 5", "EWR", "buoy", event_time=120_000_000),
                Message(b"rain", "JFK", "station", event_time=180_000_000, headers=(("trace", b"8"),)),
            ]
        )
    return ["--data", str(tmp_path)]


@pytest.mark.parametrize(
    ("options", "printed"),
    [
        (["--key", "JFK"], ["wind 4", "rain"]),
        (["--key", "JFK", "--source", "station"], ["rain"]),
        (["--text", "wind"], ["wind 4", "wind 5"]),
        (["--text", "wind", "--max", "1"], ["wind 4"]),
        (["--text", "wind", "--from", "2"], ["wind 5"]),
        (["--header", "trace"], ["wind 4", "rain"]),
        (["--header", "trace=8"], ["rain"]),
        (["--since", "1970-01-01T00:02Z", "--until", "1970-01-01T00:03", "--time", "event"], ["wind 5"]),
    ],
)
def test_only_messages_that_match_all_filters_are_printed(
    data: list[str], capfd: pytest.CaptureFixture[str], options: list[str], printed: list[str]
) -> None:
    assert run(["log", "read", "weather", *options, *data]) == 0
    out, err = capfd.readouterr()
    assert out.splitlines() == printed
    assert "searched ids" in err and f"{len(printed)} message" in err


def test_the_ids_that_were_searched_are_named_and_nothing_found_is_said(
    data: list[str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(["log", "read", "weather", "--key", "LGA", *data]) == 0
    assert capfd.readouterr() == ("", "searched ids 1 to 3 of 3: nothing found\n")
    assert run(["log", "read", "weather", "--text", "wind", "--max", "1", "--jsonl", *data]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out)["key"] == "JFK" and err == "searched ids 1 to 1 of 3: 1 message found\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--text", ""], "the text to search for is empty"),
        (["--since", "noon"], "--since: invalid time 'noon': write 2013-01-31T12:00Z"),
        (["--since", "5", "--until", "5"], "its end must be after its beginning"),
        (["--header", "=1"], "give at least one of key, source, header"),
    ],
)
def test_a_filter_that_cannot_be_used_is_refused(
    data: list[str], capfd: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert run(["log", "read", "weather", *options, *data]) != 0
    assert message in capfd.readouterr().err
