"""Policies: the document's files, lookup, errors that name line and column, lint, and where the files lie."""

from __future__ import annotations

import io
import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.core.clock import VirtualClock
from millstream.mill.errors import PolicyError
from millstream.mill.policies.lint import find_cycle, lint_policies, lint_policy
from millstream.mill.policies.located_json import JsonArray, JsonObject, JsonScalar, JsonString, Node, parse_located
from millstream.mill.policies.locations import MAX_BYTES
from millstream.mill.policies.policy import Pair, Policy, encode_policy, parse_accounts, parse_policy
from millstream.mill.policies.repository import REFRESH_SECONDS, CachedPolicies, Policies, PolicyRepository
from millstream.stores import MemoryStore
from support.altered import altered

SAMPLE = """{
  "spaceDuplicationStorePolicies":{
    "spaceA":
      [
        {"srcStoreId":"1","destStoreId":"2"},
      ],
    "spaceB":
      [
        {"srcStoreId":"1","destStoreId":"2"},
        {"srcStoreId":"1","destStoreId":"3"}
      ]
  }
}
"""
TO_2, TO_3 = Pair("1", "2"), Pair("1", "3")
POLICY = Policy("a", {"own": (TO_3,), "empty": (), "ignored": (TO_3,)}, (TO_2,), ("ignored", "left alone"))


def test_the_sample_of_the_document_loads_and_its_trailing_comma_is_named() -> None:
    policy, warnings, _ = parse_policy(SAMPLE, "account1")
    assert policy.spaces == {"spaceA": (TO_2,), "spaceB": (TO_2, TO_3)}
    assert [(warned.code, str(warned)) for warned in warnings] == [
        ("trailing-comma", "line 5, column 45: a comma before the closing bracket")
    ]


@pytest.mark.parametrize(
    ("space", "pairs"),
    [
        ("own", (TO_3,)),
        ("empty", (TO_2,)),
        ("unlisted", (TO_2,)),
        ("ignored", ()),
        ("left alone", ()),
        ("x-quarantine", ()),
    ],
)
def test_a_space_has_its_own_pairs_or_the_defaults_or_none(space: str, pairs: tuple[Pair, ...]) -> None:
    assert POLICY.lookup(space) == pairs


def test_the_sources_of_a_space_are_not_themselves_copies() -> None:
    chain = Policy("a", {"s": (Pair("1", "2"), Pair("2", "3"))})
    assert chain.sources("s") == {"1"}
    assert chain.sources("other") == frozenset()


def test_a_policy_survives_being_written_and_read() -> None:
    assert parse_policy(encode_policy(POLICY).decode(), "a")[:2] == (POLICY, [])


ERRORS = [
    ("", "line 1, column 1: expected a value"),
    ("[]", "line 1, column 1: expected a policy in curly brackets"),
    ('{"spaces": {}}', "line 1, column 2: unknown field 'spaces': use one of defaultPolicies"),
    ('{"defaultPolicies": {}}', "line 1, column 21: expected a list of store pairs in square brackets"),
    ('{"defaultPolicies": [1]}', "line 1, column 22: expected a store pair in curly brackets"),
    (
        '{"defaultPolicies":\n [{"srcStoreId":"1"}]}',
        "line 2, column 3: field 'destStoreId' of this store pair is missing: add the field",
    ),
    ('{"defaultPolicies":[{"srcStoreId":"1","destStoreId":2}]}', "line 1, column 53: expected a name in double quotes"),
    ('{"defaultPolicies":[{"srcStoreId":"1","to":"2"}]}', "line 1, column 39: unknown field 'to'"),
    ('{"spacesToIgnore":[""]}', "line 1, column 20: a name must not be empty"),
    ('{"spacesToIgnore":["a" "b"]}', "line 1, column 24: expected a comma or ']'"),
    ('{"spacesToIgnore":["a"', "line 1, column 23: expected a comma or ']'"),
    ('{"spacesToIgnore":[,]}', "line 1, column 20: expected a value"),
    ('{"spacesToIgnore":["a",,]}', "line 1, column 24: expected a value"),
    ('{"spacesToIgnore" []}', "line 1, column 19: expected ':'"),
    ('{"spacesToIgnore":[],\n"spacesToIgnore":[]}', "line 2, column 1: name 'spacesToIgnore' occurs twice"),
    ("{spacesToIgnore:[]}", "line 1, column 2: expected a name in double quotes"),
    ('{"spacesToIgnore":["a\n"]}', "line 1, column 22: the string contains a control character"),
    ('{"spacesToIgnore":["\\ud800"]}', "line 1, column 20: the string contains an unpaired surrogate"),
    ("{} {}", "line 1, column 4: expected the end of the file"),
    ("{'a':1}", "line 1, column 2: expected a name in double quotes"),
    ('{"a":NaN}', "line 1, column 6: expected a value"),
    ("[" * 50, "line 1, column 21: the value is nested deeper than the limit of 20 levels"),
]


@pytest.mark.parametrize(("text", "message"), ERRORS)
def test_anything_else_is_an_error_with_file_line_and_column(text: str, message: str) -> None:
    with pytest.raises(PolicyError) as caught:
        parse_policy(text, "a")
    assert str(caught.value).startswith(f"a-duplication-policy.json, {message}")


def plain(node: Node) -> object:
    match node:
        case JsonString(value=value):
            return value
        case JsonScalar(value=value):
            return json.loads(value)
        case JsonArray(items=items):
            return [plain(item) for item in items]
        case JsonObject(members=members):
            return {name: plain(member) for name, member in members.items()}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(JSON, st.sampled_from([None, 0, 2]), st.booleans())
def test_the_parser_reads_what_json_reads(value: object, indent: int | None, ascii_only: bool) -> None:
    parsed = parse_located(json.dumps(value, indent=indent, ensure_ascii=ascii_only), "f")
    assert plain(parsed.root) == value
    assert parsed.trailing_commas == ()


PIECES = st.text('{}[]":, \n\\a10-eE.tru\x00', max_size=3).map(str.encode)


@given(altered(JSON.map(lambda value: json.dumps(value).encode()), PIECES))
def test_the_parser_accepts_nothing_that_json_refuses_but_trailing_commas(content: bytes) -> None:
    text = content.decode()
    try:
        parsed = parse_located(text, "f")
    except PolicyError:
        return
    lines = text.split("\n")
    for comma in reversed(parsed.trailing_commas):
        line = lines[comma.line - 1]
        assert line[comma.column - 1] == ","
        lines[comma.line - 1] = line[: comma.column - 1] + line[comma.column :]
    assert json.loads("\n".join(lines)) == plain(parsed.root)


def test_a_large_policy_is_read_in_a_moment() -> None:
    pairs = ",\n".join(f'{{"srcStoreId":"1","destStoreId":"{n}"}}' for n in range(10_000))
    policy, _, _ = parse_policy(f'{{"defaultPolicies":[\n{pairs}\n]}}', "a")
    assert len(policy.defaults) == 10_000
    with pytest.raises(PolicyError, match="line 10002, column 1: expected a value"):
        parse_policy(f'{{"defaultPolicies":[\n{pairs},\n,]}}', "a")


LINT = [
    (Policy("a", {"s": (Pair("1", "1"),)}), "same-store", "space 's': store '1' is copied to itself"),
    (Policy("a", {}, (Pair("1", "9"),)), "unknown-store", "defaultPolicies: no store '9' is configured"),
    (Policy("a", {"s": (Pair("1", "2"), Pair("2", "1"))}), "cycle", "copied in a circle: 1 → 2 → 1"),
    (Policy("a", {"s": (TO_2,)}, (), ("s",)), "ignored-but-configured", "space 's' is ignored"),
    (Policy("a", {"x-s": (TO_2,)}), "system-space", "space 'x-s' belongs to the system"),
    (Policy("a", {"s": ()}), "empty-space", "space 's' has an empty list"),
    (Policy("a", {"s": (TO_3,)}, (TO_2,)), "shadowed-defaults", "these do not apply: 1 → 2"),
]


@pytest.mark.parametrize(("policy", "code", "message"), LINT)
def test_what_is_probably_not_meant_is_found(policy: Policy, code: str, message: str) -> None:
    (warned,) = lint_policy(policy, "123")
    assert warned.code == code
    assert message in str(warned)


def test_every_finding_names_its_line_and_column() -> None:
    text = """{
  "defaultPolicies": [{"srcStoreId": "1", "destStoreId": "2"}],
  "spaceDuplicationStorePolicies": {
    "round": [
      {"srcStoreId": "1", "destStoreId": "2"},
      {"srcStoreId": "2", "destStoreId": "1"}],
    "self": [{"srcStoreId": "1", "destStoreId": "2"}, {"srcStoreId": "3", "destStoreId": "3"}],
    "x-own": [{"srcStoreId": "1", "destStoreId": "2"}],
    "none": [],
    "other": [
      {"srcStoreId": "1", "destStoreId": "9"}
    ]
  },
  "spacesToIgnore": ["scratch",
    "self"]
}"""
    policy, _, spots = parse_policy(text, "a")
    found = lint_policy(policy, "123", spots)
    assert {(one.code, str(one.position)) for one in found} == {
        ("cycle", "line 4, column 5"),
        ("same-store", "line 7, column 55"),
        ("system-space", "line 8, column 5"),
        ("empty-space", "line 9, column 5"),
        ("shadowed-defaults", "line 10, column 5"),
        ("unknown-store", "line 11, column 7"),
        ("ignored-but-configured", "line 15, column 5"),
    }
    round_about = '{"defaultPolicies": [{"srcStoreId":"1","destStoreId":"2"},{"srcStoreId":"2","destStoreId":"1"}]}'
    policy, _, spots = parse_policy(round_about, "a")
    (warned,) = lint_policy(policy, "12", spots)
    assert str(warned).startswith("line 1, column 2: defaultPolicies: the stores are copied in a circle")


def together(**policies: Policy) -> dict[str, list[str]]:
    found = lint_policies(Policies(policies))
    return {account: [f"{one.code}: {one.message}" for one in each] for account, each in found.items()}


def test_a_circle_through_the_policies_of_several_accounts_is_found_in_each_of_them() -> None:
    there, back, aside = Pair("1", "2"), Pair("2", "1"), Pair("3", "4")
    found = together(
        me=Policy("me", {"s": (there, aside)}), you=Policy("you", {"s": (back,)}), they=Policy("they", {"s": (aside,)})
    )
    text = "cycle: space 's': the policies of several accounts copy the stores in a circle: 1 → 2 of me, 2 → 1 of you"
    assert found == {"me": [text], "you": [text], "they": []}
    assert together(me=Policy("me", {"s": (there,)}), you=Policy("you", {"t": (back,)})) == {"me": [], "you": []}
    by_default = together(me=Policy("me", {}, (there,)), you=Policy("you", {}, (back,), ("s",)))
    assert [text.split(":")[1] for text in by_default["me"]] == [" defaultPolicies"]
    mixed = together(me=Policy("me", {"s": (there,)}), you=Policy("you", {}, (back,)))
    assert [text.split(":")[1] for text in mixed["you"]] == [" space 's'"]
    ignored = together(me=Policy("me", {"s": (there,)}), you=Policy("you", {}, (back,), ("s",)))
    assert ignored == {"me": [], "you": []}


def test_two_originals_of_one_copy_are_found() -> None:
    one = together(me=Policy("me", {"s": (Pair("1", "3"), Pair("2", "3"))}))
    assert one["me"][0].startswith("several-originals: space 's': store '3' gets the items of '1' and '2'")
    both = together(me=Policy("me", {}, (Pair("1", "3"),)), you=Policy("you", {}, (Pair("2", "3"),)))
    assert [each.split(":")[0] for each in (*both["me"], *both["you"])] == ["several-originals"] * 2
    assert together(me=Policy("me", {}, (Pair("1", "2"), Pair("2", "3"), Pair("1", "3")))) == {"me": []}


def test_what_policies_come_to_together_names_the_place_in_each(tmp_path: Path) -> None:
    (tmp_path / "duplication-accounts.json").write_text('["me", "you"]')
    me = '{"spaceDuplicationStorePolicies": {"s": [\n  {"srcStoreId": "1", "destStoreId": "2"}]}}'
    (tmp_path / "me-duplication-policy.json").write_text(me)
    you = '{"defaultPolicies": [\n\n    {"srcStoreId": "2", "destStoreId": "1"},\n]}'
    (tmp_path / "you-duplication-policy.json").write_text(you)
    found = lint_policies(PolicyRepository.in_folder(tmp_path).load(), "12")
    assert {account: [(one.code, str(one.position)) for one in each] for account, each in found.items()} == {
        "me": [("cycle", "line 2, column 3")],
        "you": [("trailing-comma", "line 3, column 44"), ("cycle", "line 3, column 5")],
    }


def test_a_sound_policy_has_nothing_to_warn_of() -> None:
    assert lint_policy(Policy("a", {"s": (TO_2, TO_3)}, (TO_2,)), "123") == []
    assert lint_policy(Policy("a", {}, (Pair("7", "8"),))) == []


def test_a_pair_that_stands_twice_counts_once_and_is_named() -> None:
    pair = '{"srcStoreId":"1","destStoreId":"2"}'
    policy, warnings, _ = parse_policy(f'{{"defaultPolicies":[{pair},{pair}]}}', "a")
    assert policy.defaults == (TO_2,)
    assert [warned.code for warned in warnings] == ["duplicate-pair"]


STORES = st.sampled_from("12345")


@given(st.lists(st.builds(Pair, STORES, STORES), max_size=8))
def test_a_circle_is_found_exactly_where_there_is_one(pairs: list[Pair]) -> None:
    edges = {(pair.source, pair.destination) for pair in pairs if pair.source != pair.destination}
    reach = set(edges)
    while more := {(a, d) for a, b in reach for c, d in edges if b == c} - reach:
        reach |= more
    cycle = find_cycle(pairs)
    assert (cycle is not None) == any(a == b for a, b in reach)
    if cycle:
        assert cycle[0] == cycle[-1]
        assert set(itertools.pairwise(cycle)) <= edges


def test_policies_are_read_from_a_folder(tmp_path: Path) -> None:
    (tmp_path / "duplication-accounts.json").write_text('["account1", "account2", "account1"]')
    (tmp_path / "account1-duplication-policy.json").write_text(SAMPLE)
    (tmp_path / "account2-duplication-policy.json").write_text("{}")
    policies = PolicyRepository.in_folder(tmp_path).load()
    assert list(policies.by_account) == ["account1", "account2"]
    assert [warned.code for warned in policies.warnings["account1"]] == ["trailing-comma"]
    assert policies.sources("spaceB") == {"1"}


def test_policies_are_read_from_a_space_of_a_store() -> None:
    store = MemoryStore("m")
    store.create_space("policies")
    for name, text in (("duplication-accounts.json", '["account1"]'), ("account1-duplication-policy.json", SAMPLE)):
        store.put("policies", name, io.BytesIO(text.encode()))
    assert list(PolicyRepository.in_store(store, "policies").load().by_account) == ["account1"]
    assert PolicyRepository.in_store(store, "nowhere").load().by_account == {}


def test_no_accounts_list_means_no_policies(tmp_path: Path) -> None:
    assert PolicyRepository.in_folder(tmp_path).load().by_account == {}


@pytest.mark.parametrize(
    ("accounts", "policy", "message"),
    [
        ('["a"]', None, "lists account 'a'"),
        ('["a"]', b"{", "a-duplication-policy.json, line 1, column 2"),
        ('["a"]', b"\xff\xfe", "is not UTF-8 text"),
        ('["a"]', b" " * (MAX_BYTES + 1), "is larger than the limit of .* remove rules"),
        ('["../a"]', None, "invalid account name"),
        ('[".a"]', None, "invalid account name"),
        ('{"a":1}', None, "duplication-accounts.json, line 1, column 1"),
    ],
)
def test_one_broken_file_leaves_no_policy_in_force(
    tmp_path: Path, accounts: str, policy: bytes | None, message: str
) -> None:
    (tmp_path / "duplication-accounts.json").write_text(accounts)
    if policy is not None:
        (tmp_path / "a-duplication-policy.json").write_bytes(policy)
    with pytest.raises(PolicyError, match=message):
        PolicyRepository.in_folder(tmp_path).load()


def test_the_accounts_of_the_document_load() -> None:
    assert parse_accounts('[ "account1" , "account2" ]', "f") == ("account1", "account2")


def test_policies_that_change_are_in_force_a_minute_later_and_a_broken_file_leaves_them_as_they_were(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = VirtualClock()
    policies = CachedPolicies(PolicyRepository.in_folder(tmp_path), clock)
    (tmp_path / "duplication-accounts.json").write_text('["me"]')
    with pytest.raises(PolicyError, match=r"lists account 'me', but .* has no me-duplication-policy\.json"):
        policies()
    file = tmp_path / "me-duplication-policy.json"
    file.write_text('{"spacesToIgnore": ["a"]}')
    assert policies().by_account["me"].ignored == ("a",)
    file.write_text('{"spacesToIgnore": ["b"]}')
    clock.advance(REFRESH_SECONDS - 1)
    assert policies().by_account["me"].ignored == ("a",)
    clock.advance(1)
    assert policies().by_account["me"].ignored == ("b",)
    file.write_text("{")
    clock.advance(REFRESH_SECONDS)
    assert policies().by_account["me"].ignored == ("b",)
    assert "stay in force" in caplog.text
    accounts = (tmp_path / "duplication-accounts.json").rename(tmp_path / "away")  # as with a disk that went away
    clock.advance(REFRESH_SECONDS)
    assert policies().by_account["me"].ignored == ("b",)
    assert "stay in force: there is no policy, because" in caplog.text
    accounts.rename(tmp_path / "duplication-accounts.json")
    file.write_text('{"spacesToIgnore": ["c"]}')
    clock.advance(REFRESH_SECONDS)
    assert policies().by_account["me"].ignored == ("c",)


def test_a_policy_of_many_layers_or_of_a_long_chain_is_examined_at_once() -> None:
    layers = [(f"a{number}", f"b{number}") for number in range(60)]
    pairs = [Pair(one, other) for above, below in itertools.pairwise(layers) for one in above for other in below]
    (*_, last) = together(me=Policy("me", {"s": tuple(pairs)}))["me"]
    assert last.startswith("several-originals: space 's': store 'b59' gets the items of 'a0' and 'b0'")
    chain = [Pair(f"{number}", f"{number + 1}") for number in range(3000)]
    assert together(me=Policy("me", {"s": tuple(chain)})) == {"me": []}
    assert len(find_cycle([*chain, Pair("3000", "0")]) or ()) == 3002


def test_who_asks_while_another_reads_the_policies_again_gets_those_of_before() -> None:
    clock, is_reading, may_end = VirtualClock(), Event(), Event()

    class Hanging:
        """A repository of which the second reading ends when it may."""

        readings = 0

        def load(self) -> Policies:
            self.readings += 1
            if self.readings == 2:
                is_reading.set()
                assert may_end.wait(60)
            return Policies({f"{self.readings}": Policy("me")})

    repository = Hanging()
    policies = CachedPolicies(repository, clock)  # type: ignore[arg-type]
    assert list(policies().by_account) == ["1"]
    clock.advance(REFRESH_SECONDS)
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(policies)
        assert is_reading.wait(60)
        assert list(policies().by_account) == ["1"]
        clock.advance(REFRESH_SECONDS)  # so long it takes
        may_end.set()
        assert list(reading.result().by_account) == ["2"]
    assert (list(policies().by_account), repository.readings) == (["2"], 2)
