"""Cells of tables say which column they are of, whatever is in them."""

from __future__ import annotations

from millstream.console.table_labels import label_cells

HEAD = '<thead><tr><th class="n"><a href="?sort=id">id</a> ▾</th><th>a "name"</th></tr></thead>'


def test_each_cell_has_the_name_of_its_column() -> None:
    html = f"<p><td></p><table>{HEAD}<tbody><tr><td class='n'>1</td><th>x</th><td>no column</td></tr></tbody></table>"
    assert label_cells(html) == (
        f"<p><td></p><table>{HEAD}<tbody><tr><td data-label=\"id ▾\" class='n'>1</td>"
        '<th data-label="a &quot;name&quot;">x</th><td>no column</td></tr></tbody></table>'
    )


def test_a_cell_over_several_columns_and_a_table_without_a_head_have_none() -> None:
    spanning = f'<table class="x">{HEAD}<tr><td colspan="2">nothing</td></tr></table>'
    assert label_cells(spanning) == spanning
    bare = "<table><tr><td>1</td></tr></table>"
    assert label_cells(bare) == bare


def test_a_table_of_many_columns_is_one_that_folds() -> None:
    head = "<thead><tr>" + "<th>x</th>" * 4 + "</tr></thead>"
    assert label_cells(f'<table class="messages">{head}</table>').startswith('<table class="fold messages">')
    assert label_cells(f"<table>{head}</table>").startswith('<table class="fold">')
