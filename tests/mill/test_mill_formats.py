"""The format pages say what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from millstream.core.amounts import parse_duration
from millstream.mill.integrity_decision import CheckVerdict, SourceAnswer
from millstream.mill.policies.lint import lint_policies
from millstream.mill.policies.policy import Policy, parse_policy
from millstream.mill.policies.repository import Policies
from millstream.mill.reports.report import COLUMNS, IntegrityReport, ReportFinding, ReportResult
from millstream.mill.tasks import QueueName
from millstream.mill.workers.pools import POOLS
from millstream.settings import ChangeGuardSettings, ProduceSettings

FORMATS = Path(__file__).parents[2] / "docs" / "formats"


def page(name: str) -> str:
    return (FORMATS / name).read_text(encoding="utf-8")


def test_the_example_policy_loads_without_a_warning() -> None:
    (example,) = re.findall(r"```json\n(.*?)```", page("duplication-policy.md"), re.DOTALL)
    policy, warnings, _ = parse_policy(example, "me")
    assert (list(policy.spaces), policy.ignored, warnings) == (["spaceA", "spaceB"], ("scratch",), [])


def test_every_warning_that_can_be_given_is_described() -> None:
    described = set(re.findall(r"^\| `([a-z-]+)` \|", page("duplication-policy.md"), re.MULTILINE))
    odd = '{"spaceDuplicationStorePolicies":{"x-s":[PAIR,PAIR],"e":[],"c":[PAIR,BACK],"i":[SAME],"o":[PAIR,MORE]},'
    odd += '"defaultPolicies":[OTHER,],"spacesToIgnore":["i"]}'
    for name, source, destination in (("PAIR", 1, 2), ("BACK", 2, 1), ("SAME", 1, 1), ("MORE", 3, 2), ("OTHER", 1, 9)):
        odd = odd.replace(name, f'{{"srcStoreId":"{source}","destStoreId":"{destination}"}}')
    policy, warnings, _ = parse_policy(odd, "me")
    assert isinstance(policy, Policy)
    found = lint_policies(Policies({"me": policy}, {"me": warnings}), "123")
    given = {warned.code for warned in found["me"]}
    assert given == described


def test_every_field_and_word_of_a_report_is_described() -> None:
    text = page("report.md")
    words = set(re.findall(r"`([^`\n]+)`", text))
    fields = [*msgspec.structs.fields(IntegrityReport), *msgspec.structs.fields(ReportFinding)]
    assert {field.name for field in fields} <= words
    assert {result.value for result in ReportResult} <= words
    assert {answer.value for answer in SourceAnswer} - {SourceAnswer.NOT_KEPT.value} <= words
    assert {verdict.value for verdict in CheckVerdict} - {CheckVerdict.RETRY.value} <= words
    listed = " ".join(re.findall(r"^    (date-checked.*)\n    (.*)$", text, re.MULTILINE)[0]).split()
    assert tuple(listed) == COLUMNS


def test_the_pools_the_queues_and_the_budgets_are_described_as_they_are() -> None:
    text = (FORMATS.parent / "mill.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `([a-z-]+)` \| [^0-9]", text, re.MULTILINE)) >= set(QueueName)
    for pool in ("all", "audit", "bits", "duplication", "repair"):
        (queues,) = re.findall(rf"^\| `{pool}` \| ([a-z-]+(?:, [a-z-]+)*) \|$", text, re.MULTILINE)
        assert tuple(queues.split(", ")) == POOLS[pool]
    budgets = ChangeGuardSettings()
    for name in ("deletes", "changes", "least"):
        assert f"| `{name}` | {getattr(budgets, name)} |" in text
    producers = ProduceSettings()
    assert producers.duplication_frequency == producers.bits_frequency == parse_duration("30d")
    assert producers.duplication_most == producers.bits_most == 10_000
    assert (budgets.window, budgets.approval) == (parse_duration("24h"), parse_duration("7d"))
