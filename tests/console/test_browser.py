"""The console in a real browser (Debian's Chromium), on a furnished node: what people do on its pages."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from chromium import Watched, expect
from world import Served, did, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def test_a_link_into_a_page_leads_below_the_header(served: Served, watched: Watched) -> None:
    page = watched.page(f"{served.url}/integrity#held")
    page.set_viewport_size({"width": 1440, "height": 240})
    page.goto(f"{served.url}/queues")
    page.goto(f"{served.url}/integrity#held")
    held = page.locator("#held")
    expect(held).to_be_in_viewport()
    header, box = page.locator("header.top").bounding_box(), held.bounding_box()
    assert header and box and page.evaluate("scrollY") > 0
    assert box["y"] >= header["y"] + header["height"], (header, box)


def test_the_issues_come_first_on_a_telephone_under_a_menu_of_one_row(browser: Browser, served: Served) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True)
    page = context.new_page()
    page.goto(served.url)
    boxes = {name: page.locator(name).first.bounding_box() for name in (".folded", ".issue", ".station")}
    menu, issue, station = (box["y"] if box else 0 for box in boxes.values())
    assert 0 < menu < issue < station and issue < 844
    assert (boxes[".folded"] or {})["height"] < 50
    context.close()


def test_a_chart_of_zeros_is_a_sentence_also_while_the_page_is_open(served: Served, watched: Watched) -> None:
    page = watched.page(served.url)
    for _ in range(2):
        expect(page.locator("[data-chart=rate]")).to_contain_text("No messages were received since 20")
        expect(page.locator("[data-chart=tasks] canvas")).to_be_visible()
        page.reload()
    assert watched.complaints == []


def test_the_menu_of_a_telephone_opens_without_a_script(browser: Browser, served: Served) -> None:
    context = browser.new_context(viewport={"width": 390, "height": 844}, java_script_enabled=False)
    page = context.new_page()
    page.goto(served.url)
    link = page.get_by_role("navigation", name="Menu").get_by_role("link", name="Dead letters")
    expect(link).to_be_hidden()
    page.locator(".folded summary").click()
    link.click()
    expect(page.locator(".folded summary")).to_have_text("Menu · Dead letters")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    context.close()


def test_dead_letters_are_redriven_and_discarded_with_a_reason(changing: Served, watched: Watched) -> None:
    page = watched.page(f"{changing.url}/dead-letters")
    page.get_by_role("row", name="no store").get_by_role("button", name="Discard…").click()
    page.get_by_label("Reason").fill("the store is gone for good")
    page.locator(".confirm").get_by_role("button").click()
    expect(page.get_by_role("status")).to_contain_text("20 tasks were discarded")
    done = page.locator(".card", has_text="Actions").get_by_role("row", name="discard")
    expect(done).to_contain_text("the store is gone for good")
    page.get_by_role("button", name="Redrive", exact=True).click()
    page.locator(".confirm").get_by_role("button").click()
    expect(page.get_by_role("status")).to_contain_text("10 tasks are ready again")
    page.goto(f"{changing.url}/audit")
    expect(page.locator("main")).to_contain_text("the store is gone for good")
    assert watched.complaints == []


def test_a_dead_letter_is_looked_at_amended_and_tried_again_with_others_at_a_rate(
    changing: Served, watched: Watched
) -> None:
    page = watched.page(f"{changing.url}/queues/duplication-high")
    page.get_by_role("link", name="1", exact=True).click()
    expect(page.locator("main")).to_contain_text("did not answer")
    page.get_by_label("Body").fill(page.get_by_label("Body").input_value().replace("gone", "second"))
    page.get_by_role("button", name="Preview change").click()
    expect(page.locator(".diff .plus").last).to_contain_text("second")
    page.get_by_label("Reason").fill("the store has another name now")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("status")).to_contain_text("Body replaced")
    page.goto(f"{changing.url}/queues/duplication-high")
    page.locator(".card", has_text="by cause").get_by_role("button", name="Redrive").first.click()
    page.get_by_label("Maximum per second").fill("0.01")
    page.locator(".confirm").get_by_role("button").click()
    expect(page.get_by_role("status")).to_contain_text("20 tasks are ready again, 0.01 per second")
    expect(page.locator(".facts").first).to_contain_text("delayed19")
    page.goto(f"{changing.url}/audit")
    expect(page.locator("main")).to_contain_text("the store has another name now")
    assert watched.complaints == []


def test_what_was_refused_says_why_and_leads_back(served: Served, watched: Watched) -> None:
    page = watched.page(f"{served.url}/queues/duplication-high")
    page.get_by_role("button", name="Redrive selected").click()
    expect(page.locator(".lead")).to_have_text("Select at least one task")
    page.get_by_role("link", name="Back").click()
    expect(page.locator("h1")).to_have_text("duplication-high")


def test_the_past_of_a_queue_is_drawn_and_goes_on(changing: Served, watched: Watched) -> None:
    page = watched.page(f"{changing.url}/queues/duplication-high")
    expect(page.locator(".u-legend")).to_contain_text("delayed")
    expect(page.locator(".u-legend")).to_contain_text(re.compile(r"time \(UTC\):?\s*\d\d:\d\d:\d\d"))
    page.get_by_role("link", name="last day").click()
    expect(page.locator(".chart")).to_have_attribute("data-follow", "no")
    page.goto(f"{changing.url}/queues")
    expect(page.locator("main")).to_contain_text("An alarm is raised when")
    expect(page.get_by_role("row", name="dead-letters")).to_contain_text(
        "30 tasks of the queue duplication-high are dead"
    )
    assert watched.complaints == []


def test_dead_letters_findings_and_reports_lead_to_what_they_speak_of(served: Served, watched: Watched) -> None:
    page = watched.page(f"{served.url}/dead-letters")
    expect(page.locator("tbody tr")).to_have_count(2)
    page.get_by_role("link", name="did not answer").click()
    expect(page.locator("tr.chosen")).to_contain_text("10")
    page.goto(f"{served.url}/integrity/findings")
    page.get_by_role("link", name="B3 checksum-mismatch").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    page.goto(f"{served.url}/integrity/reports")
    expect(page.get_by_role("row", name="second photos")).to_contain_text("FAILURE")
    page.get_by_role("row", name="second photos").get_by_role("link").click()
    expect(page.locator("h1")).to_contain_text("photos")
    assert watched.complaints == []


def test_a_batch_says_why_it_ended_and_leads_to_its_file_and_messages(served: Served, watched: Watched) -> None:
    page = watched.page(f"{served.url}/batches")
    page.locator("a[href^='/batches/one']").nth(1).click()  # the last one waits for its anchor
    expect(page.locator(".facts")).to_contain_text("end reason")
    page.get_by_role("link", name="prove").first.click()
    expect(page.locator("main")).to_contain_text("the proof holds")
    page.go_back()
    page.locator("section a[href^='/files/']").first.click()
    expect(page.locator(".glimpse").first).to_contain_text('"batch": ')
    page.locator("main summary").first.click()
    expect(page.locator(".glimpse").first).to_be_hidden()
    assert watched.complaints == []


@pytest.mark.smoke
def test_the_open_overview_shows_a_fault_and_what_can_be_done_there(
    copied: Callable[[], Path], watched: Watched
) -> None:
    """A store that is away shows and goes by itself; a finding is repaired, and a plan approved, from its issue."""
    folder = copied()
    with (folder / "millstream.toml").open("a") as settings:
        settings.write('\n[verdict]\nstore_every = "1s"\n')
    with serving(folder) as served:
        page = watched.page(served.url)
        away = page.locator('.issue[data-kind="store-unreachable"]')
        expect(away).to_have_count(0)
        (folder / "stores" / "third").rename(folder / "aside")
        expect(away).to_contain_text("The store third cannot be used", timeout=60_000)
        expect(away).to_contain_text("Connect its disk")
        (folder / "aside").rename(folder / "stores" / "third")
        expect(away).to_have_count(0, timeout=60_000)
        page.locator('.issue[data-kind="findings"]').get_by_role("button", name="Repair…").click()
        page.get_by_label("Reason").fill("drill")
        page.get_by_role("button", name="Repair").click()
        expect(page.get_by_role("status")).to_contain_text("1 repaired")
        page.goto(served.url)
        page.locator('.issue[data-kind="held"]').get_by_role("button", name="Approve…").first.click()
        page.get_by_label("Reason").fill("these photos were deleted on purpose")
        page.get_by_role("button", name="Approve").click()
        expect(page.get_by_role("status")).to_contain_text("Approved")
    assert watched.complaints == []


def key_of(served: Served) -> str:
    """The verifier key of the ledger of *served*."""
    return str(served.ask("GET", "/api/v1/ledgers/anchors")[1]["keys"][0])


def test_a_did_is_resolved_and_a_proof_downloaded_and_verified(served: Served, watched: Watched) -> None:
    page = watched.page(f"{served.url}/identifiers")
    page.get_by_label("DID", exact=True).fill(did())
    page.get_by_role("button", name="Resolve").click()
    expect(page.locator("main")).to_contain_text("didDocument")
    page.goto(f"{served.url}/proof?log=weather&id=7")
    expect(page.locator("main")).to_contain_text("the proof holds")
    with page.expect_download() as download:
        page.get_by_role("link", name="proof.json", exact=True).click()
    page.get_by_label("Proof file").set_input_files(download.value.path())
    page.get_by_label("Verifier key of the ledger").fill(key_of(served))
    page.get_by_role("button", name="Verify", exact=True).click()
    expect(page.locator("#outcome")).to_contain_text("signed by a key you trust")
    expect(page.get_by_label("Verifier key of the ledger")).to_have_value(key_of(served))
    proof = Path(download.value.path()).read_text("utf-8")
    for text, outcome in ((proof, "the proof holds"), (proof.replace('"id":7', '"id":8'), "the proof does not hold")):
        page.locator("textarea[name=proof]").fill(text)
        page.get_by_role("button", name="Verify", exact=True).click()
        expect(page.locator("main")).to_contain_text(outcome)
    assert watched.complaints == []


def test_a_page_that_is_open_goes_on_after_the_server_was_restarted(
    copied: Callable[[], Path], watched: Watched
) -> None:
    folder = copied()
    with serving(folder) as first:
        page = watched.page(f"{first.url}/logs/weather")
        editor = watched.page(f"{first.url}/policies/local")
        editor.get_by_label("Another space").last.fill("typed before the restart")
        overview = watched.page(first.url)
        expect(overview.locator("#live-state")).to_have_text("live")
        address = first.address
    expect(overview.locator("#live-state")).to_contain_text("the server does not answer")
    with serving(folder, address=address):
        page.get_by_label("Body").fill("written before the restart")
        page.get_by_role("button", name="Publish").click()
        expect(page.get_by_role("status")).to_contain_text("Appended as message")
        expect(overview.locator("#live-state")).to_have_text("live")
        editor.get_by_role("button", name="Save", exact=True).click()
        expect(editor.get_by_role("status")).to_contain_text("Saved as version 2")
        expect(editor.get_by_label("a space that is never copied", exact=True).last).to_have_value(
            "typed before the restart"
        )
        overview.close()
        page.close()
