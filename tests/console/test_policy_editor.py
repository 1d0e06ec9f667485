"""The policy editor in a real browser: rows and text of one document, without a script, by keyboard, by two at once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from chromium import PATIENCE, Watched, expect
from world import Served, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture
def scriptless(browser: Browser) -> Iterator[Page]:
    """A page of a browser that runs no scripts."""
    context = browser.new_context(java_script_enabled=False)
    context.set_default_timeout(PATIENCE)
    yield context.new_page()
    context.close()


def saved(served: Served) -> dict[str, object]:
    """The policy in force, as a program gets it."""
    found: dict[str, object] = json.loads(served.ask("GET", "/api/v1/policies/local")[1]["text"])
    return found


def press(page: Page, name: str) -> None:
    page.get_by_role("button", name=name, exact=True).click()


def test_every_row_of_a_policy_is_added_changed_and_removed_without_a_script(
    changing: Served, scriptless: Page
) -> None:
    page = scriptless
    page.goto(f"{changing.url}/policies/local")
    press(page, "Remove primary → third of all other spaces")
    press(page, "Add a pair to all other spaces")
    page.get_by_label("copy all other spaces to").nth(1).select_option("second")
    page.get_by_label("copy all other spaces from").nth(1).select_option("third")
    page.get_by_label("Another space").first.fill("photos")
    page.get_by_role("button", name="Add to those").first.click()
    expect(page.get_by_label("copy photos from")).to_have_count(2)
    press(page, "Remove third → second of photos")
    page.get_by_label("Another space").first.fill("films")
    page.get_by_label("Another space").first.press("Enter")  # adds it, and saves nothing
    page.get_by_label("Space", exact=True).nth(1).fill("movies")
    page.get_by_label("a space that is never copied", exact=True).fill("scratch")
    page.get_by_label("Another space").last.fill("tmp")
    press(page, "Preview")
    checked = page.locator("#checked")
    for text in (
        "all other spaces",
        "− primary → third",
        "+ third → second",
        "space photos",
        "space movies",
        "− drafts",
    ):
        expect(checked).to_contain_text(text)
    expect(checked.locator("table")).to_contain_text("no longer copied")
    assert saved(changing)["spacesToIgnore"] == ["drafts"]  # nothing was saved so far
    press(page, "Save")
    expect(page.get_by_role("status")).to_contain_text("Saved as version 2")
    second = {"srcStoreId": "primary", "destStoreId": "second"}
    both = [second, {"srcStoreId": "third", "destStoreId": "second"}]
    assert saved(changing) == {
        "spaceDuplicationStorePolicies": {"photos": [second], "movies": both},
        "defaultPolicies": both,
        "spacesToIgnore": ["scratch", "tmp"],
    }
    press(page, "Undo last save…")
    expect(page.locator(".diff")).to_contain_text("movies")
    press(page, "Restore version 1")
    expect(page.get_by_role("status")).to_contain_text("Version 1 is in force again, as number 3")
    assert saved(changing)["spacesToIgnore"] == ["drafts"]
    expect(page.get_by_role("row").filter(has_text="in force")).to_contain_text("local")


def test_what_cannot_be_done_is_said_and_changes_nothing(changing: Served, scriptless: Page) -> None:
    page = scriptless
    page.goto(f"{changing.url}/policies/local")
    for name in ("photos", "films"):
        page.get_by_label("Another space").first.fill(name)
        page.get_by_role("button", name="Add to those").first.click()
    page.get_by_label("Space", exact=True).nth(1).fill("photos")
    press(page, "Preview")
    expect(page.get_by_role("alert")).to_contain_text("The space films was not renamed: photos exists already.")
    page.get_by_label("Another space").first.fill("films")
    page.get_by_role("button", name="Add to those").first.click()
    expect(page.get_by_role("alert")).to_contain_text("The space films has pairs of its own already")
    for _ in range(2):
        page.get_by_role("button", name="of films").first.click()
    expect(page.get_by_role("group", name="films")).to_contain_text("No pair")
    press(page, "Remove the space films")
    press(page, "as text")
    assert list(json.loads(page.locator("#text").input_value())["spaceDuplicationStorePolicies"]) == ["photos"]
    page.locator("#text").fill('{"defaultPolicies": [}')
    press(page, "as a form")
    expect(page.get_by_role("alert")).to_contain_text("line 1, column 22")
    assert page.locator("#text").input_value() == '{"defaultPolicies": [}'
    press(page, "Save")
    expect(page.get_by_role("alert")).to_contain_text("line 1, column 22")
    assert saved(changing)["spacesToIgnore"] == ["drafts"]


def test_form_and_text_are_two_views_of_one_document(changing: Served, watched: Watched) -> None:
    page = watched.page(f"{changing.url}/policies/local?view=text")
    text = page.locator("#text").input_value()
    policy = json.loads(text)
    press(page, "as a form")
    press(page, "as text")
    assert page.locator("#text").input_value() == text  # as it was written, where nothing was changed
    policy["spacesToIgnore"].append("seen in the text")
    page.locator("#text").fill(json.dumps(policy))
    press(page, "as a form")
    expect(page.locator("#unsaved")).to_contain_text("+ seen in the text")
    expect(page.get_by_label("a space that is never copied", exact=True)).to_have_count(2)
    press(page, "Save")
    expect(page.get_by_role("status")).to_contain_text("Saved as version 2")
    assert watched.complaints == []


def test_two_editors_at_once_lose_nothing(changing: Served, watched: Watched) -> None:
    first, second, third = (watched.page(f"{changing.url}/policies/local") for _ in range(3))
    for page, name in ((first, "mine"), (second, "theirs"), (third, "third")):
        page.get_by_label("Another space").last.fill(name)
    press(first, "Save")
    expect(first.get_by_role("status")).to_contain_text("Saved as version 2")
    press(second, "Save")
    expect(second.get_by_role("alert")).to_contain_text("Edit conflict")
    expect(second.get_by_role("alert")).to_contain_text("+ mine")
    press(second, "Merge my changes")
    expect(second.locator("#checked")).to_contain_text("+ theirs")
    press(second, "Save")
    expect(second.get_by_role("status")).to_contain_text("Saved as version 3")
    assert saved(changing)["spacesToIgnore"] == ["drafts", "mine", "theirs"]
    press(third, "Save")
    third.get_by_role("link", name="Discard mine").click()
    expect(third.get_by_label("a space that is never copied", exact=True)).to_have_count(3)
    assert watched.complaints == []


def test_an_account_is_taken_off_the_list_and_put_back(changing: Served, watched: Watched) -> None:
    page = watched.page(f"{changing.url}/policies/local")
    press(page, "Withdraw policy…")
    page.get_by_label("Reason").fill("it moved to another node")
    press(page, "Withdraw local")
    expect(page.get_by_role("status")).to_contain_text("Policy withdrawn")
    page.goto(f"{changing.url}/policies")
    expect(page.get_by_role("row", name="local")).to_contain_text("not in force")
    page.goto(f"{changing.url}/policies/local")
    press(page, "Save")
    expect(page.get_by_role("status")).to_contain_text("it is in force now")
    expect(page.locator("h1")).not_to_contain_text("not in force")
    page.goto(f"{changing.url}/audit")
    expect(page.locator("main")).to_contain_text("it moved to another node")
    assert watched.complaints == []


def test_a_policy_of_many_spaces_is_edited_some_at_a_time(changing: Served, watched: Watched) -> None:
    pair = [{"srcStoreId": "primary", "destStoreId": "second"}]
    many = {"spaceDuplicationStorePolicies": {f"space-{number:03d}": pair for number in range(100)}}
    asked = {"text": json.dumps(many)}
    assert changing.ask("PUT", "/api/v1/policies/big", asked, {"If-Match": "none"})[0] == 200
    page = watched.page(f"{changing.url}/policies/big?find=7")
    expect(page.get_by_role("group")).to_have_count(19)
    page.get_by_label("Spaces whose names contain").fill("")
    press(page, "Show")
    expect(page.get_by_role("group")).to_have_count(40)
    press(page, "Remove primary → second of space-003")
    press(page, "after ⇢")
    expect(page.get_by_role("group").first).to_contain_text("space-040")
    press(page, "Remove the space space-041")
    page.get_by_label("Another space").first.fill("new")
    page.get_by_role("button", name="Add to those").first.click()
    expect(page.get_by_role("group").last).to_contain_text("new")
    press(page, "Save")
    expect(page.get_by_role("status")).to_contain_text("Saved as version 2")
    spaces = json.loads(changing.ask("GET", "/api/v1/policies/big")[1]["text"])["spaceDuplicationStorePolicies"]
    assert (
        len(spaces) == 100 and spaces["space-003"] == [] and "space-041" not in spaces and spaces["space-099"] == pair
    )
    assert watched.complaints == []


def test_the_editor_is_used_by_keyboard_alone(changing: Served, watched: Watched) -> None:
    page = watched.page(f"{changing.url}/policies/local")
    add = page.get_by_role("button", name="Add a pair to all other spaces")
    add.focus()
    page.keyboard.press("Enter")
    row = page.get_by_label("copy all other spaces from").nth(2)
    expect(row).to_be_focused()  # where one goes on
    page.keyboard.type("third")
    page.keyboard.press("Tab")
    page.keyboard.type("second")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_label("copy all other spaces from")).to_have_count(2)
    expect(add).to_be_focused()
    assert watched.complaints == []


def test_a_node_without_copies_claims_no_coverage_and_says_what_a_pair_takes(tmp_path: Path, watched: Watched) -> None:
    (tmp_path / "millstream.toml").touch()
    with serving(tmp_path) as served:
        page = watched.page(served.url)
        expect(page.locator(".station").last).to_contain_text("no copies")
        expect(page.locator(".station").last).not_to_contain_text("100 %")
        page.goto(f"{served.url}/policies")
        press(page, "Create policy")
        press(page, "Add a pair to all other spaces")
        expect(page.get_by_role("alert")).to_contain_text("A pair needs two stores")
        page.close()
    assert watched.complaints == []
