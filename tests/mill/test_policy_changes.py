"""What differs between policies by meaning, and changes of one editor put over those of another."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millstream.mill.policies.changes import PolicyChange, changes_between, merge_policies
from millstream.mill.policies.policy import Pair, Policy, parse_policy, policy_text

PAIRS = st.builds(Pair, st.sampled_from("abc"), st.sampled_from("xyz"))
LISTS = st.lists(PAIRS, max_size=4, unique=True).map(tuple)
NAMES = st.text(min_size=1, max_size=6)
POLICIES = st.builds(
    Policy,
    st.just("acme"),
    st.dictionaries(NAMES, LISTS, max_size=4),
    LISTS,
    st.lists(NAMES, max_size=4, unique=True).map(tuple),
)


def meaning(policy: Policy) -> tuple[object, ...]:
    """*policy* without the order of its lists."""
    spaces = {space: frozenset(pairs) for space, pairs in policy.spaces.items()}
    return spaces, frozenset(policy.defaults), frozenset(policy.ignored)


@given(POLICIES)
def test_the_text_for_people_is_the_policy(policy: Policy) -> None:
    assert parse_policy(policy_text(policy), "acme")[:2] == (policy, [])


def test_a_pair_stands_on_a_line_of_its_own() -> None:
    policy = Policy("acme", {"photos": (Pair("a", "x"), Pair("a", "y")), "new": ()}, (Pair("a", "x"),), ("tmp", "ü"))
    assert (
        policy_text(policy)
        == """{
  "spaceDuplicationStorePolicies": {
    "photos": [
      {"srcStoreId": "a", "destStoreId": "x"},
      {"srcStoreId": "a", "destStoreId": "y"}
    ],
    "new": []
  },
  "defaultPolicies": [
    {"srcStoreId": "a", "destStoreId": "x"}
  ],
  "spacesToIgnore": ["tmp", "ü"]
}
"""
    )


@given(POLICIES, POLICIES)
def test_there_are_changes_just_where_the_meaning_differs(before: Policy, after: Policy) -> None:
    found = changes_between(before, after)
    assert changes_between(before, before) == []
    if meaning(before) != meaning(after):
        assert any(each.added or each.removed or each.note for each in found)
    else:
        assert all(each.note == "in another order" for each in found)


def test_each_change_says_where_it_is() -> None:
    before = Policy("acme", {"photos": (Pair("a", "x"),), "old": (Pair("a", "x"),)}, (Pair("a", "x"),), ("tmp",))
    after = Policy("acme", {"photos": (Pair("a", "y"),), "new": ()}, (Pair("a", "x"),), ())
    assert changes_between(before, after) == [
        PolicyChange("space photos", ["a → y"], ["a → x"]),
        PolicyChange("space old", (), ["a → x"], "as all other spaces now"),
        PolicyChange("space new", [], (), "a space of its own now"),
        PolicyChange("spacesToIgnore", [], ["tmp"]),
    ]


@given(POLICIES, POLICIES)
def test_where_only_one_of_two_changed_something_that_is_what_comes_of_it(base: Policy, changed: Policy) -> None:
    assert meaning(merge_policies(base, changed, base)) == meaning(changed)
    assert meaning(merge_policies(base, base, changed)) == meaning(changed)


def test_what_both_changed_is_all_in_it() -> None:
    base = Policy("acme", {"photos": (Pair("a", "x"),)}, (Pair("a", "x"), Pair("a", "y")), ("tmp",))
    mine = Policy("acme", {"photos": (Pair("a", "x"), Pair("b", "x"))}, (Pair("a", "x"),), ("tmp", "mine"))
    theirs = Policy(
        "acme", {"photos": (Pair("a", "y"),)}, (Pair("a", "x"), Pair("a", "y"), Pair("a", "z")), ("theirs",)
    )
    assert merge_policies(base, mine, theirs) == Policy(
        "acme", {"photos": (Pair("a", "y"), Pair("b", "x"))}, (Pair("a", "x"), Pair("a", "z")), ("theirs", "mine")
    )
