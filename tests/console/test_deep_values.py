"""JSON values of strangers as trees on pages: deep and long ones are shown in part."""

from __future__ import annotations

import json

import pytest

from millstream.console.formatting import tree


@pytest.mark.parametrize("text", ["[" * 900 + "]" * 900, '{"a":' * 900 + "1" + "}" * 900])
def test_a_deep_value_is_a_tree_of_some_levels(text: str) -> None:
    shown = str(tree(json.loads(text), open_to=2))
    assert 40 < shown.count("<details") <= 50 and "…" in shown


def test_of_a_long_value_each_level_writes_only_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    value: object = ["x" * 1000] * 100
    for _ in range(40):
        value = [value]
    written = list[object]()
    dumps = json.dumps
    monkeypatch.setattr(json, "dumps", lambda part, **how: written.append(part) or dumps(part, **how))
    shown = str(tree(value))
    assert written == ["x" * 1000] * 100 and shown.count("<details") == 41


def test_small_values_are_shown_whole() -> None:
    shown = str(tree({"a": [1, "<b>"], "c": {}}, open_to=0))
    assert "{&#34;a&#34;: [1, &#34;&lt;b&gt;&#34;], &#34;c&#34;: {}}" in shown
    assert "<code class=leaf>{}</code>" in shown
