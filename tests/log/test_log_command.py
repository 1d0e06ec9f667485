"""``millstream log`` as a user runs it; where the test is about pipes, in a real process."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.log import LogSpec, open_store
from support.commands import run_command


class Shell:
    """Runs commands on one data folder."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"

    def run(self, *arguments: str, stdin: bytes = b"", code: int = 0) -> str:
        answer = run_command("log", *arguments, "--data", str(self.data), stdin=stdin)
        assert answer.code == code, answer.err
        self.errors = answer.err
        return answer.out

    def copy(self, source: str, target: str) -> str:
        answer = run_command("log", "copy", source, target, "weather")
        assert answer.code == 0, answer.err
        return answer.out

    def line(self, *arguments: str) -> list[str]:
        """The command line of a process of its own."""
        return [sys.executable, "-m", "millstream", "log", *arguments, "--data", str(self.data)]


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def test_lines_go_in_and_come_out(shell: Shell) -> None:
    shell.run("create", "weather")
    assert shell.run("append", "weather", stdin=b"a\nb\r\n\nlast without end") == "1 3\n4 4\n"
    assert shell.run("read", "weather") == "a\nb\r\n\nlast without end\n"
    assert shell.run("read", "weather", "--from", "2", "--max", "1") == "b\r\n"
    assert (shell.data / "log.db").exists()


def test_json_lines_keep_every_member(shell: Shell) -> None:
    headers = '"headers":[{"name":"a","value":"1"}]'
    line = '{"body_base64":"/wA=","event_time":5,' + headers + ',"key":"k","received_at":6,"source":"s"}'
    assert shell.run("append", "weather", "--jsonl", stdin=line.encode() + b"\n\n") == "1 1\n"
    assert json.loads(shell.run("read", "weather", "--jsonl")) == {**json.loads(line), "id": 1}


def test_json_lines_may_have_times_as_people_write_them(shell: Shell) -> None:
    line = b'{"body":"a","event_time":"2013-01-31T13:00:00.5+01:00","received_at":6}\n'
    assert shell.run("append", "weather", "--jsonl", stdin=line) == "1 1\n"
    assert json.loads(shell.run("read", "weather", "--jsonl"))["event_time"] == 1_359_633_600_500_000
    shell.run("append", "weather", "--jsonl", stdin=b'{"body":"b","event_time":"2013-01-31 13:00"}\n', code=2)
    assert "standard input, line 1" in shell.errors
    assert "Nothing of it is stored: fix line 1, and append it again" in shell.errors
    assert "has no time zone: write it with Z or an offset" in shell.errors


def test_a_json_line_with_the_source_of_ticks_is_refused_unless_it_is_a_tick(shell: Shell) -> None:
    tick = b'{"body":"","source":"millstream.tick","event_time":5,"received_at":5}\n'
    lines = tick + b'{"body":"lost","source":"millstream.tick"}\n'
    assert shell.run("append", "weather", "--jsonl", stdin=lines, code=2) == "1 1\n"
    assert "line 2: the source 'millstream.tick' is reserved for ticks" in shell.errors
    copied = shell.run("read", "weather", "--jsonl")
    assert shell.run("append", "weather", "--jsonl", stdin=copied.encode()) == "2 2\n"


def test_a_bad_json_line_is_named_and_all_before_it_is_stored(shell: Shell) -> None:
    lines = b'{"body":"a"}\n{"body":"b"}\n{"body":3}\n{"body":"d"}\n'
    assert shell.run("append", "weather", "--jsonl", stdin=lines, code=2) == "1 2\n"
    assert "standard input, line 3: invalid message" in shell.errors
    assert "Lines 1 to 2 are stored: fix line 3, and append again from line 3 (`tail -n +3`)" in shell.errors
    assert shell.run("read", "weather") == "a\nb\n"


def test_a_line_that_comes_alone_is_stored_at_once(shell: Shell) -> None:
    process = subprocess.Popen(shell.line("append", "weather"), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        for number in (1, 2, 3):
            process.stdin.write(b"line\n")
            process.stdin.flush()
            assert process.stdout.readline() == b"%d %d\n" % (number, number)
        with open_store(f"sqlite:///{shell.data / 'log.db'}", read_only=True) as store:
            assert store.log(LogSpec("weather"), create=False).last_id == 3
        process.stdin.close()
    assert process.returncode == 0


def test_files_are_appended_one_after_the_other_in_large_runs(shell: Shell, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"".join(b"%d\n" % n for n in range(50_000)))
    two.write_bytes(b"x\n" * 10)
    assert shell.run("append", "weather", str(one), str(two)) == "1 50000\n50001 50010\n"
    assert shell.run("read", "weather", "--max", "50000") == one.read_text()


def test_a_second_writer_is_told_who_writes(shell: Shell) -> None:
    with open_store(f"sqlite:///{shell.data / 'log.db'}") as store, store.log(LogSpec("weather")).writer():
        shell.run("append", "weather", stdin=b"a\n", code=4)
    assert "is being written by process" in shell.errors


def test_info_ls_and_verify_tell_people_and_programs(shell: Shell) -> None:
    shell.run("append", "weather", stdin=b"a\nb\n")
    found = json.loads(shell.run("describe", "weather", "--json"))
    assert (found["name"], found["count"], found["last_id"], found["durability"]) == ("weather", 2, 2, "fsync")
    assert "weather: 2 messages, ids 1 to 2" in shell.run("describe", "weather")
    assert [json.loads(line)["name"] for line in shell.run("list", "--json").splitlines()] == ["weather"]
    assert "weather" in shell.run("list")
    assert "2 messages in 1 block checked: ok" in shell.run("verify", "weather")
    assert json.loads(shell.run("verify", "weather", "--json"))["problems"] == []


def test_a_damaged_log_does_not_hide_the_others_of_the_list(shell: Shell, tmp_path: Path) -> None:
    url = f"segments:///{tmp_path / 'logs'}"
    with open_store(url) as store:
        for name in ("a", "b", "c"):
            store.log(LogSpec(name)).put_metadata("x", b"1")
    (tmp_path / "logs" / "logs" / "b" / "states").write_bytes(b"damaged")
    listed = shell.run("list", "--json", "--store", url, code=1)
    assert [json.loads(line)["name"] for line in listed.splitlines()] == ["a", "c"]
    assert shell.errors.startswith("b: ")


def test_verify_fails_where_something_is_wrong(shell: Shell) -> None:

    shell.run("append", "weather", stdin=b"a\nb\n")
    connection = sqlite3.connect(shell.data / "log.db")
    with connection:
        connection.execute("DELETE FROM blocks_1")
    connection.close()
    assert "1 problem" in shell.run("verify", "weather", code=1)
    assert "ids 1 to 2 are missing" in shell.errors


def test_what_is_not_there_is_not_found(shell: Shell) -> None:
    shell.run("read", "weather", code=3)
    shell.run("create", "weather")
    shell.run("describe", "wether", code=3)
    assert "no log 'wether'" in shell.errors


def test_a_reader_that_has_seen_enough_ends_the_command_quietly(shell: Shell) -> None:
    shell.run("append", "weather", stdin=b"line\n" * 200_000)
    process = subprocess.Popen(shell.line("read", "weather"), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    with process:
        assert process.stdout.readline() == b"line\n"
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_the_last_messages_are_printed_and_followed(shell: Shell) -> None:
    shell.run("append", "weather", stdin=b"".join(b"%d\n" % n for n in range(20)))
    assert shell.run("tail", "weather") == "".join(f"{n}\n" for n in range(10, 20))
    assert shell.run("tail", "weather", "-n", "0") == ""
    assert json.loads(shell.run("tail", "weather", "-n", "1", "--jsonl"))["id"] == 20
    process = subprocess.Popen(shell.line("tail", "weather", "-n", "2", "--follow"), stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process:
        assert [process.stdout.readline() for _ in range(2)] == [b"18\n", b"19\n"]
        shell.run("append", "weather", stdin=b"new\n")
        assert process.stdout.readline() == b"new\n"
        process.terminate()


def test_a_consumer_goes_to_an_id_or_a_time(shell: Shell) -> None:
    lines = b"".join(b'{"body":"x","received_at":%d}\n' % (n * 60_000_000) for n in range(10))
    shell.run("append", "weather", "--jsonl", stdin=lines)
    for where, first_id in (
        (("--to", "4"), 4),
        (("--time", "1970-01-01T01:02:30+01:00"), 4),
        (("--time", "2100-01-01"), 11),
    ):
        found = shell.run("seek", "weather", "--consumer", "job", *where)
        assert found == f"consumer job continues with id {first_id} of weather\n"
    assert json.loads(shell.run("describe", "weather", "--json"))["consumers"] == {"job": 10}
    shell.run("seek", "weather", "--consumer", "job", code=2)
    shell.run("seek", "weather", "--consumer", "job", "--time", "noon", code=2)
    shell.run("seek", "weather", "--consumer", "job", "--to", "13", code=2)
    assert "consumer 'job' cannot continue with id 13 of log 'weather': choose 1 to 11" in shell.errors


def test_a_log_is_copied_from_store_to_store_and_back(shell: Shell, tmp_path: Path) -> None:
    one, two, three = (f"sqlite:///{tmp_path}/1.db", f"segments:///{tmp_path}/2", f"sqlite:///{tmp_path}/3.db")
    shell.run("append", "weather", "--store", one, stdin=b"a\nb\n")
    assert "2 messages copied and compared, ids 1 to 2" in shell.copy(one, two)
    assert "nothing to copy, the copy has all 2" in shell.copy(one, two)
    shell.copy(two, three)
    assert shell.run("read", "weather", "--jsonl", "--store", three) == shell.run(
        "read", "weather", "--jsonl", "--store", one
    )


def test_a_bare_store_is_named_by_its_url(shell: Shell, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'bare.db'}"
    shell.run("append", "weather", "--store", url, stdin=b"a\n")
    assert shell.run("read", "weather", "--store", url) == "a\n"


def test_info_names_what_a_log_is_trimmed_by(shell: Shell) -> None:
    shell.data.mkdir()
    rules = ['log = "weather"\nmax_age = "30d"\nkeep_consumers = true\n', 'log = "*"\nmax_count = 5\n']
    (shell.data / "millstream.toml").write_text("".join(f"[[log.rules]]\n{rule}" for rule in rules), "utf-8")
    told = {}
    for name in ("weather", "other", "dotted.name"):
        shell.run("append", name, stdin=b"x\n")
        told[name] = shell.run("describe", name).split("trimmed   ")[1].splitlines()[0]
    assert told == {
        "weather": "by the rule for 'weather' in the settings: max_age 30 d, keep_consumers",
        "other": "by the rule for '*' in the settings: max_count 5",
        "dotted.name": "never: the log has no policy, and no rule in the settings matches it",
    }
    shell.run("trim", "dotted.name", "--max-age", "1d", "--keep-policy")
    assert "trimmed   by its own policy: max_age 1 d" in shell.run("describe", "dotted.name")
    assert json.loads(shell.run("describe", "other", "--json"))["rule"] == "*"


def test_an_error_in_a_later_file_says_that_the_earlier_ones_are_stored(shell: Shell, tmp_path: Path) -> None:
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    first.write_bytes(b'{"body":"a"}\n')
    second.write_bytes(b"{}\n")
    assert shell.run("append", "weather", "--jsonl", str(first), str(second), code=2) == "1 1\n"
    assert f"{second}, line 1" in shell.errors
    assert f"All lines of the files before {second} are stored" in shell.errors


def test_a_search_over_messages_that_cannot_be_read_fails(shell: Shell) -> None:
    store = f"segments:///{shell.data}/segments"
    for body in b"first grain ", b"second grain ":
        shell.run("append", "weather", "--store", store, stdin=b"".join(body + b"%d\n" % n for n in range(10)))
    (file,) = (shell.data / "segments").rglob("*.seg")
    content = file.read_bytes()
    place = content.index(b"first")
    file.write_bytes(content[:place] + b"worst" + content[place + 5 :])
    found = shell.run("read", "weather", "--text", "grain", "--store", store, code=1)
    assert found.splitlines() == [f"second grain {number}" for number in range(10)]
    assert "ids 1 to 10 could not be searched" in shell.errors


def test_an_interrupted_append_says_where_the_log_ends(shell: Shell) -> None:
    process = subprocess.Popen(
        shell.line("append", "weather"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"a\nb\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"1 2\n"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130
    assert b"interrupted: the log ends at id 2;" in errors
