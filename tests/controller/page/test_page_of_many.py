"""The page of a run on many servers, and on few: both are readable, also narrow and printed."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from placewire.controller.page.page import report_page
from placewire.controller.records.nic_use import NicUse, NicUseRow
from placewire.controller.records.of_traffic import TrafficRow
from placewire.controller.records.report import RunReport
from tests.chromium import A4, LETTER, Paper, ShownPage, chromium
from tests.controller.page.elements import Elements
from tests.controller.page.printed import Printed
from tests.controller.page.reports import link, placed

RAILS, SAMPLES = "ab", 60
# Smaller letters nobody reads; a smaller cell nobody points at.
LEAST_LETTERS_PIXELS, LEAST_CELL_PIXELS = 9, 8


def a_run(folder: Path, servers: int) -> RunReport:
    """Of so many servers, each of which sends to all others; one rate in a hundred was not kept."""
    report, _ = placed(folder, traced=True, devices=servers)
    names = [f"s{k + 1}" for k in range(servers)]
    pairs = [(one, other) for one in names for other in names if one != other]
    triples = [(*pair, rail) for pair in pairs for rail in RAILS]
    links = [
        link(one, other, 40e6 if k % 100 == 0 else 98e6 + k % 7 * 5e5, rail=rail)
        for k, (one, other, rail) in enumerate(triples)
    ]
    traffic = [
        TrafficRow(
            source=f"{one}/0", destination=f"{other}/0", rail=rail, planned_bytes=1000.0 * (k + 1),
            sent_bytes=1000.0 * (k + 1),
        )
        for k, (one, other, rail) in enumerate(triples)
    ]  # fmt: skip
    counted = [
        tuple(int(1e6 * (t + math.sin(t / 3 + number))) for t in range(SAMPLES))
        for number in range(servers)
    ]
    nics = [
        NicUseRow(
            server=name, rail=rail, nic=f"nic{rail}", rate_bits_per_second=12e6,
            sent_bytes=counts, received_bytes=counts[::-1] if rail == "b" else counts,
        )
        for name, counts in zip(names, counted, strict=True)
        for rail in RAILS
    ]  # fmt: skip
    seconds = tuple(float(t) for t in range(SAMPLES))
    return report.model_copy(
        update={
            "links": tuple(links), "traffic": tuple(traffic),
            "nic_use": NicUse(seconds=seconds, step_end_seconds=(20.0, 40.0), nics=tuple(nics)),
            "changes": dict.fromkeys(names, 200), "generations": dict.fromkeys(names, 3),
            "changed": {name: {"add queues": 150, "add flows": 50} for name in names},
            "peak_memory_bytes": {f"{name}/0": (400 + k) << 20 for k, name in enumerate(names)},
        }
    )  # fmt: skip


def test_what_few_servers_show_one_by_one_many_show_together(tmp_path: Path) -> None:
    few = Elements(report_page(a_run(tmp_path, 4)))
    many = Elements(report_page(a_run(tmp_path, 32)))
    assert len(few.of("table", "tiny")) == 0 and len(many.of("table", "tiny")) == 3
    # A strip for each NIC in place of a picture for each server.
    panels = [f"what the NICs of s{k} carried over time" for k in range(1, 33)]
    assert [words for words in panels if words in str(few.of("svg"))] == panels[:4]
    assert not [words for words in panels if words in str(many.of("svg"))]
    strips = {name for a, _ in many.of("svg") if "of its rate" in (name := str(a["aria-label"]))}
    assert len(strips) == 32 * len(RAILS)
    assert any("200 each" in text for _, text in many.of("td"))
    memory = [text for _, text in many.of("p") if "the median" in text]
    assert memory == [
        "32 of them: from 400.0 MiB (s1/0) to 431.0 MiB (s32/0), the median 416.0 MiB; run.json "
        "has each."
    ]


def test_rates_that_were_not_kept_are_named_where_cells_have_no_words(tmp_path: Path) -> None:
    page = report_page(a_run(tmp_path, 32))
    elements = Elements(page)
    assert "1964 of 1984 promised rates were kept" in page
    assert "the worst 10 of 20" in page
    named = [text for _, text in elements.of("li") if "measured 40 Mbit/s (-60.0%)" in text]
    assert len(named) == 10 and named[0].startswith("s1 to s2 on nic0: promised 100 Mbit/s")
    assert not [text for _, text in Elements(report_page(a_run(tmp_path, 4))).of("li")]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShownPage]:
    with chromium(tmp_path_factory.mktemp("chromium")) as shown:
        yield shown


# What is wrong with the page as it is laid out; the page itself has no script.
LAID_OUT = f"""(() => {{
  const wrong = [], box = e => e.getBoundingClientRect();
  const text = e => [...e.childNodes].some(n => n.nodeType == 3 && n.textContent.trim());
  if (document.documentElement.scrollWidth > innerWidth) wrong.push("the page scrolls sideways");
  for (const e of document.body.querySelectorAll("*")) {{
    const size = parseFloat(getComputedStyle(e).fontSize);
    if (text(e) && e.checkVisibility() && size > 0 && size < {LEAST_LETTERS_PIXELS})
      wrong.push(`letters of ${{size}} px: ${{e.outerHTML.slice(0, 80)}}`);
  }}
  for (const e of document.querySelectorAll(".matrix td, .lanes svg")) {{
    const {{width, height}} = box(e);
    if (Math.min(width, height) < {LEAST_CELL_PIXELS})
      wrong.push(`a cell of ${{width}} x ${{height}} px: ${{e.outerHTML.slice(0, 80)}}`);
  }}
  const colours = kind => new Set([...document.querySelectorAll(kind)].map(
    e => getComputedStyle(e).backgroundColor));
  const [kept, broken, none] = [".kept", ".broken", ".matrix td:not([class])"].map(colours);
  if (new Set([...kept, ...broken, ...none]).size < kept.size + broken.size + none.size)
    wrong.push("cells that are kept, broken and empty look alike");
  for (const table of document.querySelectorAll(".matrix")) {{
    if (table.scrollWidth > table.parentElement.clientWidth + 1) wrong.push("a matrix is cut");
    for (const name of table.querySelectorAll("th span"))
      if (name.scrollWidth > name.clientWidth + 1 && name.clientWidth)
        wrong.push(`a name is cut: ${{name.textContent}}`);
  }}
  for (const lanes of document.querySelectorAll(".lanes")) {{
    const names = [...lanes.children].filter(e => e.tagName == "DIV" && text(e));
    names.slice(1).forEach((e, k) => {{
      if (box(e).top < box(names[k]).bottom - 1) wrong.push(`names overlap: ${{e.textContent}}`);
    }});
  }}
  return wrong.slice(0, 5);
}})()"""


@pytest.mark.parametrize("servers", [4, 32])
@pytest.mark.parametrize("width", [1280, 420])
def test_a_browser_shows_it_readably_and_asks_nobody_for_anything(
    browser: ShownPage, tmp_path: Path, servers: int, width: int
) -> None:
    file = tmp_path / "page.html"
    file.write_text(report_page(a_run(tmp_path, servers)))
    browser.open(file, width)
    assert browser.requested == [file.as_uri()]
    assert browser.value(LAID_OUT) == []
    cells = browser.value("document.querySelectorAll('.matrix td.kept, .matrix td.broken').length")
    promised = len(RAILS) * servers * (servers - 1)
    assert cells == promised + (servers * (servers - 1) if servers == 32 else 0)
    # Eight times the servers take at most so much more room.
    assert browser.value("document.documentElement.scrollHeight") < (
        6_000 if width > 1000 else 9_000
    )
    if folder := os.environ.get("PLACEWIRE_PICTURES"):
        browser.picture(Path(folder) / f"page-{servers}-{width}.png")


# On paper a figure ends where its box does, and what stands out is on the page before.
STANDS_OUT = """[...document.querySelectorAll("figure span")].filter(
  e => e.getBoundingClientRect().top < e.closest("figure").getBoundingClientRect().top
).map(e => e.outerHTML)"""
COLOURS = """Object.fromEntries([".bar.bound", ".broken"].map(
  kind => [kind, getComputedStyle(document.querySelector(kind)).backgroundColor]))"""


@pytest.mark.parametrize("servers", [4, 32])
@pytest.mark.parametrize("paper", [A4, LETTER], ids=["A4", "letter"])
def test_paper_shows_all_that_a_screen_does(
    browser: ShownPage, tmp_path: Path, servers: int, paper: Paper
) -> None:
    file = tmp_path / "page.html"
    file.write_text(report_page(a_run(tmp_path, servers)))
    browser.open(file, 1280)
    tables, rows = (
        browser.value(f"document.querySelectorAll('{kind}').length") for kind in ("table", "tr")
    )
    pdf = browser.printed(paper)
    browser.as_printed(paper)
    # It does not scroll sideways: nothing is cut at the edge, nor is the whole made smaller for it.
    assert browser.value(LAID_OUT) == [] and browser.value(STANDS_OUT) == []
    small, usual = (
        browser.value(f"parseFloat(getComputedStyle(document.querySelector('{kind}')).fontSize)")
        for kind in ("p.small", "body")
    )
    assert small < usual, "what is less important has smaller letters"
    printed = Printed(pdf)
    assert 3 <= len(printed.sizes) <= 9
    assert printed.sizes == [pytest.approx(tuple(paper), abs=0.01)] * len(printed.sizes)
    assert len(printed.pages_of("TR")) == rows
    pages = printed.pages_of("Table")
    assert len(pages) == tables and all(pages)
    # A row of servers says nothing without the names of its columns. Of four servers the list of
    # what each pair sent goes on to the next page.
    assert sum(len(some) > 1 for some in pages) <= (1 if servers == 4 else 0)
    # As readers print who do not ask for backgrounds.
    for colour in browser.value(COLOURS).values():
        assert printed.fills_with(colour), colour
    if folder := os.environ.get("PLACEWIRE_PICTURES"):
        (Path(folder) / f"page-{servers}-{paper.paperWidth}.pdf").write_bytes(pdf)
