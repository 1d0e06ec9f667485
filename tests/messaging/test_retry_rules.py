"""How often messages are delivered, and how long consumers wait between: rules of the broker, and of a group."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from millstream.cli.main import run
from millstream.messaging.broker.admin import AdminService, GroupConfigRequest
from millstream.messaging.broker.limits import GroupSpec, Limits
from millstream.messaging.protocol import v2
from millstream.settings import SettingsError, load_settings
from support.broker_harness import BrokerHarness, bodies, with_harness

SECOND = 1_000_000


def test_a_group_has_rules_of_its_own_that_outlive_restarts_and_snapshots() -> None:
    async def first(desk: BrokerHarness) -> None:
        admin = AdminService(desk.core)
        assert await admin.configure_group(GroupConfigRequest("g", 2, (SECOND,))) == GroupSpec("g", 2, (SECOND,))
        assert (await admin.configure_group(GroupConfigRequest("h", backoff=(5, 6)))).max_attempts == 3
        await desk.send("plain", b"poison")
        for _ in range(20):
            await desk.send("one", b"x")

    async def second(desk: BrokerHarness) -> None:
        assert await AdminService(desk.core).group_specs("") == [
            GroupSpec("g", 2, (SECOND,)),
            GroupSpec("h", 3, (5, 6)),
        ]
        assert await AdminService(desk.core).groups("h") == [], "a group that has consumed nothing yet"
        for group, attempts in (("g", 2), ("other", 3)):
            for _ in range(attempts):
                assert bodies(await desk.receive(group, "plain")) == [b"poison"]
                desk.clock.advance(31)
            assert await desk.receive(group, "plain") == []
            assert bodies(await desk.receive("undertaker", f"%DLQ%{group}")) == [b"poison"]
        back = await AdminService(desk.core).configure_group(GroupConfigRequest("g", defaults=True, backoff=(7,)))
        assert back == GroupSpec("g", 3, (7,))

    with_harness(first, second, limits=Limits(longest_poll=0, max_attempts=3, snapshot_after=5))


def test_consumers_are_told_of_new_rules_at_once() -> None:
    async def step(desk: BrokerHarness) -> None:
        session = desk.heard_of()
        declared = v2.Settings(client_type=v2.PUSH_CONSUMER)
        declared.subscription.group.name = "g"
        answer = desk.service.telemetry.merge_settings(session, declared)
        assert answer.settings.backoff_policy.max_attempts == 17
        commands: asyncio.Queue[v2.TelemetryCommand] = asyncio.Queue()
        with session.stream(commands, "c", desk.clock.now()):
            await AdminService(desk.core).configure_group(GroupConfigRequest("g", 5, (SECOND // 2, 90 * SECOND)))
            policy = commands.get_nowait().settings.backoff_policy
            await AdminService(desk.core).configure_group(GroupConfigRequest("another", 6))
            assert commands.empty()
        assert policy.max_attempts == 5
        assert [each.ToMicroseconds() for each in policy.customized_backoff.next] == [SECOND // 2, 90 * SECOND]

    with_harness(step)


def test_an_operator_configures_a_group(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = '[broker]\nmax_attempts = 4\nbackoff = ["1s", "1m"]\n'
    (tmp_path / "millstream.toml").write_text(settings, "utf-8")
    data = ["--data", str(tmp_path)]
    assert run(["group", "configure", "g", "--max-attempts", "9", *data]) == 0
    assert capsys.readouterr().out == "g  dead after 9 attempts; waits 1 s, 1 min\n"
    assert run(["group", "configure", "g", "--backoff", "10s, 500ms", "--json", *data]) == 0
    assert json.loads(capsys.readouterr().out)["backoff"] == [10 * SECOND, SECOND // 2]
    assert run(["group", "describe", "g", *data]) == 0
    assert capsys.readouterr().out == "g  dead after 9 attempts; waits 10 s, 500 ms\n"
    assert run(["group", "configure", "g", "--defaults", *data]) == 0
    assert capsys.readouterr().out == "g  dead after 4 attempts; waits 1 s, 1 min\n"
    for wrong, text in (
        ((), "give --max-attempts N"), (("--backoff", "soon"), "invalid duration"),
        (("--backoff", "13h"), "more than 0 and at most 12 h, not 13 h"), (("--max-attempts", "0"), "1<=x<=1000"),
    ):  # fmt: skip
        assert run(["group", "configure", "g", *wrong, *data]) == 2
        assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("lines", "text"),
    [
        ("max_attempts = 0", "set a value, or remove the setting"),
        ("max_attempts = 1001", "max_attempts must be 1 to 1,000, not 1,001"),
        ('backoff = ["0s"]', "each duration must be more than 0 and at most 12 h"),
        ('backoff = ["1s", "x"]', r"invalid duration 'x'"),
    ],
)
def test_rules_that_cannot_be_are_refused_with_their_place(tmp_path: Path, lines: str, text: str) -> None:
    (tmp_path / "millstream.toml").write_text(f"[broker]\n{lines}\n", "utf-8")
    with pytest.raises(SettingsError, match=rf"setting broker.* \(.*millstream.toml\).*{text}"):
        load_settings({"data": str(tmp_path)}, environment={})
