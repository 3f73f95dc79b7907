"""The HTML page in a real browser: filters, keyboard, dark scheme, phone, print, and no request (design section 12)."""

import base64
import http.server
import importlib.util
import itertools
import re
import shlex
import threading
from pathlib import Path

import pytest
from unigrad_conformance.page import html_page
from unigrad_conformance.report import command


def load(name):
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


made_up, driver = load("made_up"), load("browser")


def elements(selector, part):
    """An expression for a part of each element that is seen."""
    return (
        f"[...document.querySelectorAll({selector!r})].filter((one) => one.checkVisibility()).map((one) => one{part})"
    )


SHOWN = elements("#matrix tr[data-clause]", ".dataset.clause")
COLUMNS = elements("#matrix thead th", ".textContent")
ACTIVE = "(() => { const one = document.activeElement; return one.textContent.trim().replace(/\\s+/g, ' ').slice(0, 60); })()"
# Every text that is seen, with the contrast to the first opaque background behind it, by the formula of WCAG 2.
CONTRAST = """(() => {
  const channels = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const light = (rgb) => rgb.slice(0, 3).map((c) => c / 255).map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (one) => {
    for (; one; one = one.parentElement) {
      const colour = channels(getComputedStyle(one).backgroundColor);
      if (colour.length === 3 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const one = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || one.matches("script, style, title")) continue;
    if (!one.checkVisibility({visibilityProperty: true})) continue;
    const style = getComputedStyle(one);
    const [a, b] = [light(channels(one.closest("svg") ? style.fill : style.color)), light(behind(one))];
    found.push([(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), walker.currentNode.data.trim().slice(0, 40), one.className.toString()]);
  }
  return found.sort((a, b) => a[0] - b[0]);
})()"""


@pytest.fixture(scope="module")
def browser():
    with driver.Browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Address of each page."""
    folder = tmp_path_factory.mktemp("pages")
    for name in ("green", "troubled", "wide"):
        (folder / f"{name}.html").write_text(html_page(getattr(made_up, name)()), encoding="utf-8")
    return {path.stem: path.as_uri() for path in folder.iterdir()}


def visible(browser, selector):
    return browser.run(f"document.querySelector({selector!r}).checkVisibility()")


def set_filter(browser, name, value):
    browser.click(f"#filters input[name={name}][value='{value}']")


@pytest.mark.parametrize("name", ["green", "troubled"])
def test_it_asks_for_nothing_and_the_browser_complains_of_nothing(browser, pages, name):
    browser.open(pages[name])
    browser.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert browser.requests() == [pages[name]]
    assert browser.complaints() == []
    assert browser.run("document.title").startswith(("Kept", "Failed"))


def test_its_policy_keeps_what_is_put_in_later_from_loading(browser, pages, tmp_path):
    """With the page as it is nothing arrives; the same page without its policy is the control."""
    arrived = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            arrived.append(self.path)
            self.send_error(404)

        def log_message(self, *arguments):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    image = (
        f"new Promise((done) => {{ const one = new Image(); one.onload = one.onerror = () => done(1);"
        f"one.src = 'http://127.0.0.1:{server.server_port}/image'; }})"
    )
    try:
        browser.open(pages["green"])
        browser.run(image)
        assert arrived == []
        assert "Content Security Policy" in browser.complaints()[0]
        bare = tmp_path / "bare.html"
        bare.write_text(re.sub(r"<meta http-equiv[^>]*>", "", html_page(made_up.green())), encoding="utf-8")
        browser.open(bare.as_uri())
        browser.run(image)
        assert arrived == ["/image"]
    finally:
        server.shutdown()
        server.server_close()


def test_without_scripts_everything_is_there_and_places_open_by_themselves(browser, pages):
    browser.open(f"{pages['green']}#C1.numpy", scripts=False)
    assert not visible(browser, "#filters")
    assert not visible(browser, "button.copy")
    assert browser.run("[...document.querySelectorAll('#matrix tr')].every((one) => one.checkVisibility())")
    assert visible(browser, "[id='C1.numpy'] table"), "the browser opens the details around the place"
    browser.open(pages["green"], scripts=False)
    assert not visible(browser, "[id='C1.numpy'] table")
    browser.click("#cells details[data-clause=C1] > summary")
    browser.click("#cells details[data-clause=C1] details.cell > summary")
    assert visible(browser, "[id='C1.numpy'] table")


def test_backends_can_be_chosen(browser, pages):
    browser.open(pages["troubled"])
    assert browser.run(COLUMNS) == ["Clause", "numpy", "failing", "died", "hostile", "absent"]
    set_filter(browser, "backend", "failing")
    assert browser.run(COLUMNS) == ["Clause", "failing"]
    set_filter(browser, "backend", "died")
    assert browser.run(COLUMNS) == ["Clause", "failing", "died"]
    seen = f"[...new Set({elements('[data-backend]', '.dataset.backend')})]"
    assert browser.run(seen) == ["failing", "died"]
    set_filter(browser, "backend", "died")
    set_filter(browser, "backend", "failing")
    assert browser.run(COLUMNS)[1:] == ["numpy", "failing", "died", "hostile", "absent"]


def test_states_can_be_chosen(browser, pages):
    browser.open(pages["green"])
    set_filter(browser, "state", "known")
    assert browser.run(SHOWN) == ["G17"]
    set_filter(browser, "state", "nosample")
    assert browser.run(SHOWN) == ["G14", "G17"]
    rows = elements("#reasons tbody tr", ".dataset.state")
    assert sorted(browser.run(rows)) == ["known", "nosample"]
    set_filter(browser, "backend", "other")
    assert browser.run(SHOWN) == ["G17"], "a state counts for the backends that are chosen"
    assert browser.run("document.getElementById('shown').textContent").startswith("1 of ")


@pytest.mark.parametrize(
    ("text", "clauses"),
    [
        ("g1", ["G1"]),
        ("G1, c1", ["G1", "C1"]),
        ("test_many", ["C1"]),
        ("snapshot restore", ["D3"]),
        ("no such text", []),
    ],
)
def test_clauses_are_found_by_name_title_and_test(browser, pages, text, clauses):
    browser.open(pages["green"])
    browser.press("/", *text)
    assert browser.run(SHOWN) == clauses
    assert visible(browser, "#clauses .nothing") == (not clauses)
    parts = "[...document.querySelectorAll('#matrix tbody')].filter((one) => one.checkVisibility()).length"
    assert browser.run(parts) == len({name[0] for name in clauses}), "no heading stands over nothing"


def test_failures_are_filtered_too_and_those_folded_away_come_out(browser, pages):
    browser.open(pages["troubled"])
    entries = elements("#failures .entry", ".querySelector('.name').textContent")
    assert "test_a.py::test_f[29]" not in browser.run(entries)
    browser.press("/", *"test_f[29]")
    assert browser.run(entries) == ["test_a.py::test_f[29]"]


def test_the_filters_stand_in_the_address_and_come_back_from_it(browser, pages):
    browser.open(pages["troubled"])
    set_filter(browser, "backend", "failing")
    set_filter(browser, "state", "failed")
    browser.press("/", *"a & b=c#")
    address = browser.run("location.href")
    assert address.endswith("#backend=failing&state=failed&text=a%20%26%20b%3Dc%23")
    browser.open(address)
    assert browser.run("document.getElementById('text').value") == "a & b=c#"
    assert browser.run(COLUMNS) == ["Clause", "failing"]
    assert browser.run(SHOWN) == []
    browser.click("#clear")
    assert "#" not in browser.run("location.href")
    assert len(browser.run(COLUMNS)) == 6
    assert browser.run("document.activeElement.id") == "text"


@pytest.mark.parametrize(
    "place", ["#%", "#backend=%zz&text=", "#constructor", "#backend=__proto__&state=x&at=y", "#<b>"]
)
def test_any_address_is_survived(browser, pages, place):
    browser.open(pages["green"] + place)
    assert not [text for text in browser.complaints() if "exception" in text.lower()]
    assert len(browser.run(SHOWN)) > 50


def test_a_cell_leads_to_what_it_did_with_the_filters_kept_and_back_again(browser, pages):
    browser.open(pages["green"])
    set_filter(browser, "backend", "numpy")
    browser.click("#matrix a[href='#C1.numpy']")
    assert visible(browser, "[id='C1.numpy'] table")
    assert browser.run(ACTIVE).startswith("numpy kept 6 tests")
    assert browser.run("location.hash") == "#backend=numpy&at=C1.numpy"
    browser.open(browser.run("location.href"))
    assert visible(browser, "[id='C1.numpy'] table")
    assert browser.run(COLUMNS) == ["Clause", "numpy"]


def test_it_is_used_with_the_keyboard_alone(browser, pages):
    browser.open(pages["green"])
    browser.press("Tab")
    assert browser.run(ACTIVE) == "Skip to the results"
    assert browser.run("document.activeElement.getBoundingClientRect().left") >= 0
    browser.press("/")
    assert browser.run("document.activeElement.id") == "text"
    browser.press("C", "1", "/")
    assert browser.run("document.getElementById('text').value") == "C1/", "in the field the key is a letter"
    browser.press("Escape")
    assert browser.run("[document.getElementById('text').value, location.hash]") == ["", ""]
    browser.press("Tab", " ")
    assert browser.run("document.activeElement.value") == "numpy"
    assert browser.run(COLUMNS) == ["Clause", "numpy"]
    browser.press(" ")
    browser.run("document.querySelector('#matrix a[href=\"#C1.numpy\"]').focus()")
    browser.press("Enter")
    assert browser.run(ACTIVE).startswith("numpy kept 6 tests")
    browser.press(" ")
    assert not visible(browser, "[id='C1.numpy'] table")
    browser.press("Enter")
    assert visible(browser, "[id='C1.numpy'] table")


def test_arrows_move_between_the_cells_that_are_shown(browser, pages):
    browser.open(pages["green"])
    browser.run("document.querySelector('#matrix a[href=\"#G1.numpy\"]').focus()")
    place = "document.activeElement.getAttribute('href')"
    for key, expected in (("ArrowRight", "#G1.other"), ("ArrowDown", "#G2.other"), ("ArrowLeft", "#G2.numpy")):
        browser.press(key)
        assert browser.run(place) == expected
    browser.press("ArrowUp", "ArrowLeft", "ArrowLeft")
    assert browser.run(place) == "#G1"
    set_filter(browser, "backend", "other")
    browser.run("document.querySelector('#matrix a[href=\"#G1\"]').focus()")
    browser.press("ArrowRight")
    assert browser.run(place) == "#G1.other"


@pytest.mark.parametrize("dark", [False, True])
def test_the_focus_is_seen_wherever_the_keyboard_goes(browser, pages, dark):
    browser.open(pages["green"], dark=dark)
    outline = (
        "(() => { const one = document.activeElement; const shown = one.matches('.chip input') ? one.nextElementSibling : one;"
        "const style = getComputedStyle(shown); return [style.outlineStyle, parseFloat(style.outlineWidth), one.tagName]; })()"
    )
    tags = set()
    for _ in range(30):
        browser.press("Tab")
        style, width, tag = browser.run(outline)
        assert style == "solid"
        assert width >= 2
        tags.add(tag)
    assert tags >= {"A", "INPUT", "BUTTON"}


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("name", ["green", "troubled"])
def test_every_text_has_the_contrast_of_wcag_aa(browser, pages, name, dark):
    browser.open(pages[name], dark=dark)
    browser.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    found = browser.run(CONTRAST)
    assert len(found) > 200
    assert [one for one in found if one[0] < 4.5] == []
    set_filter(browser, "state", "kept")
    assert [one for one in browser.run(CONTRAST) if one[0] < 4.5] == []


def test_the_check_of_contrast_can_fail(browser, pages):
    browser.open(pages["green"])
    browser.run("document.querySelector('h1').style.setProperty('color', '#c8c8c8')")
    assert browser.run(CONTRAST)[0][0] < 2


def test_it_is_dark_in_the_dark(browser, pages):
    colours = []
    for dark in (False, True):
        browser.open(pages["green"], dark=dark)
        colours.append(browser.run("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)"))
    assert min(colours[0]) > 230
    assert max(colours[1]) < 40


@pytest.mark.parametrize("name", ["green", "troubled", "wide"])
@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_nothing_makes_the_page_wider_than_the_screen(browser, pages, name, width):
    browser.open(pages[name], width=width, height=844)
    browser.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert browser.run("document.documentElement.scrollWidth") <= width
    outside = f"""[...document.querySelectorAll('body *')].filter((one) => one.checkVisibility() && !one.closest('.box, pre, .skip, svg')
      && one.getBoundingClientRect().right > {width} + 1).map((one) => one.outerHTML.slice(0, 80))"""
    assert browser.run(outside) == []


def test_on_a_phone_every_cell_is_reached_by_scrolling_its_box(browser, pages):
    browser.open(pages["troubled"], width=390, height=844)
    box = "document.querySelector('#clauses .box')"
    assert browser.run(f"{box}.scrollWidth > {box}.clientWidth")
    browser.run(f"{box}.scrollLeft = 10000")
    last = "document.querySelector('#matrix tr[data-clause=G1] td:last-child').getBoundingClientRect().right"
    head = "document.querySelector('#matrix tr[data-clause=G1] th').getBoundingClientRect().left"
    assert browser.run(last) <= 390
    assert browser.run(head) >= 0, "the name of the clause stays in sight"
    assert browser.run("document.documentElement.scrollLeft") == 0
    assert browser.run("document.querySelector('meta[name=viewport]').content") == "width=device-width, initial-scale=1"


def test_boxes_that_scroll_are_reached_with_the_keyboard(browser, pages):
    browser.open(pages["troubled"], width=390, height=844)
    browser.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    stuck = """[...document.querySelectorAll('.box, pre')].filter((one) => one.checkVisibility() && one.scrollWidth > one.clientWidth
      && one.tabIndex < 0 && !one.querySelector('a, button, summary')).length"""
    assert browser.run(stuck) == 0


def test_commands_are_copied_or_selected_whole(browser, pages):
    browser.open(pages["troubled"])
    browser.run(
        "window.copied = []; Object.defineProperty(navigator, 'clipboard', {value: {writeText: async (text) => { copied.push(text); }}})"
    )
    died = next(session for session in made_up.troubled() if session.backend == "died")
    wanted = command(died, next(result for result in died.bad if result.ending))
    number = f"[...document.querySelectorAll('.command code')].findIndex((one) => one.textContent === {wanted!r})"
    browser.run(f"document.querySelectorAll('.copy')[{number}].click()")
    assert browser.run("copied") == [wanted]
    assert shlex.split(wanted)[-1] == "test_a.py::test_crash"
    browser.run("navigator.clipboard.writeText = async () => { throw new Error('not allowed'); }")
    browser.run(f"document.querySelectorAll('.copy')[{number}].click()")
    assert browser.run("new Promise((done) => setTimeout(() => done(getSelection().toString()), 20))") == wanted


def test_open_all_opens_what_is_shown(browser, pages):
    browser.open(pages["green"])
    browser.press("/", *"G1")
    browser.click("[data-open=cells]")
    opened = (
        "[...document.querySelectorAll('#cells details[open]')].map((one) => one.dataset.clause || one.dataset.backend)"
    )
    assert browser.run(opened) == ["G1", "numpy", "other"]
    browser.click("[data-close=cells]")
    assert browser.run(opened) == []


def test_assistive_technology_finds_landmarks_headings_tables_and_names(browser, pages):
    browser.open(pages["troubled"])
    nodes = [node for node in browser("Accessibility.getFullAXTree")["nodes"] if not node.get("ignored")]

    def names(role):
        return [node.get("name", {}).get("value", "") for node in nodes if node["role"]["value"] == role]

    for role in ("banner", "main", "contentinfo", "navigation", "search", "status"):
        assert len(names(role)) == 1, role
    for role in ("link", "button", "checkbox", "searchbox", "image", "heading", "columnheader", "rowheader"):
        assert names(role), role
    for role in ("link", "button", "checkbox", "searchbox", "image", "heading", "rowheader"):
        assert all(names(role)), f"a {role} without a name"
    levels = browser.run("[...document.querySelectorAll('h1, h2, h3')].map((one) => Number(one.tagName[1]))")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    assert browser.run("document.querySelectorAll('th:not([scope])').length") == 0
    assert browser.run("document.documentElement.lang") == "en"


def test_it_prints_with_the_failures_open_and_without_the_filters(browser, pages):
    browser.open(pages["troubled"], media="print")
    assert not visible(browser, "#filters")
    assert not visible(browser, "nav")
    assert browser.run(
        "[...document.querySelectorAll('#failures .entry .command')].every((one) => one.checkVisibility())"
    )
    browser.open(pages["troubled"])
    printed = base64.b64decode(browser("Page.printToPDF", preferCSSPageSize=True, generateTaggedPDF=False)["data"])
    assert printed.startswith(b"%PDF-")
    assert printed.count(b"/Type /Page\n") >= 2


def test_a_browser_that_is_missing_is_named(monkeypatch):
    monkeypatch.setattr(driver, "_NAMES", ("no-such-browser",))
    with pytest.raises(driver.BrowserError, match="Debian's package 'chromium'"):
        driver.Browser()
