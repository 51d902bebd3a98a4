"""The page in a browser: no errors, nothing fetched, the numbers of the plan, on a phone and in the dark. Without Chromium, or
without playwright, there is nothing to test with."""

from __future__ import annotations

import shutil

import pytest
from nets import NET

from remat_codegen.ask.budget import format_bytes
from remat_codegen.ask.request import Request
from remat_codegen.page.render import render
from remat_codegen.run import pipeline, reporting
from remat_codegen.show.results import Progress, percent

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = next((p for name in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(name))), None)
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")]

QUIET = Progress(None)
PHONE, DESK = {"width": 390, "height": 844}, {"width": 1280, "height": 900}
READY = "html[data-ready=yes]"
CONTRAST = 4.5  # that text is asked to have
# What of the page reaches beyond the window, but for what scrolls by itself.
TOO_WIDE = "document.documentElement.scrollWidth - innerWidth"
COLOURS = """() => [...document.querySelectorAll('p, dt, dd, th, td, h1, h2, label, a, code')].flatMap(e => {
    if (!e.offsetParent) return [];
    let behind = e;
    while (behind && getComputedStyle(behind).backgroundColor === 'rgba(0, 0, 0, 0)') behind = behind.parentElement;
    return [[getComputedStyle(e).color, behind ? getComputedStyle(behind).backgroundColor : 'none']];
})"""


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """A page, and where it lies."""
    folder = tmp_path_factory.mktemp("browsed")
    (folder / "net.py").write_text("# </script><script>document.title = 'taken'</script>\n" + NET)
    file = folder / "net_remat.py"
    pipeline.generate(Request(f"{folder / 'net.py'}:Net", "55%", file), QUIET)
    page = reporting.report(file, QUIET, measure=True)
    (folder / "page.html").write_text(render(page))
    return page, (folder / "page.html").as_uri()


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(params=["light", "dark"])
def visit(request, browser, shown):
    """Opens the page in a window of some size; at the end, nothing went wrong in it and nothing was asked of the network."""
    wrong, asked, contexts = [], [], []

    def opened(size=DESK):
        contexts.append(browser.new_context(viewport=size, color_scheme=request.param))
        view = contexts[-1].new_page()
        view.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
        view.on("pageerror", lambda error: wrong.append(str(error)))
        view.on("request", lambda found: asked.append(found.url))
        view.goto(shown[1])
        view.wait_for_selector(READY)
        return view

    yield opened
    for context in contexts:
        context.close()
    assert wrong == []
    assert set(asked) == {shown[1]}


def test_the_numbers_are_the_plans(visit, shown):
    view, page = visit(), shown[0]
    figures = page.figures
    assert view.title() == "Net · net_remat.py"
    assert view.inner_text("#planned-peak") == format_bytes(figures.planned_peak_bytes)
    assert view.inner_text("#unmodified-peak") == format_bytes(figures.unmodified_peak_bytes)
    assert view.inner_text("#budget-bytes") == format_bytes(figures.budget_bytes)
    assert view.inner_text("#measured-peak") == format_bytes(page.measured.peak_bytes)
    assert view.inner_text("#overhead") == percent(figures.overhead)
    assert view.locator("#blocks tbody tr").count() == len(page.blocks)
    assert percent(page.tradeoff.more.overhead) in view.inner_text("#more")


def test_the_curve_says_what_is_held(visit, shown):
    view, page = visit(), shown[0]
    planned, over = page.planned, view.locator("#curve .u-over")
    box = over.bounding_box()
    middles = [(a + b) / 2 for a, b in zip(planned.start_ns, (*planned.start_ns[1:], planned.end_ns), strict=True)]
    widths = [b - a for a, b in zip(planned.start_ns, (*planned.start_ns[1:], planned.end_ns), strict=True)]
    widest = max(range(len(widths)), key=widths.__getitem__)
    over.hover(position={"x": box["width"] * middles[widest] / planned.end_ns, "y": 40})
    view.wait_for_function("document.getElementById('curve-readout').textContent.includes('planned')")
    said = view.inner_text("#curve-readout")
    assert page.nodes[planned.nodes[widest]].name in said and format_bytes(planned.total_bytes[widest]) in said
    view.check("text=By category")
    over = view.locator("#curve .u-over")
    over.hover(position={"x": box["width"] * middles[widest] / planned.end_ns, "y": 60})
    view.wait_for_function("document.getElementById('curve-readout').textContent.includes('activations')")
    assert f"activations {format_bytes(planned.activations_bytes[widest])}" in view.inner_text("#curve-readout")
    view.check("#outside input")
    view.select_option("#optimizer select", "Adam, AdamW")
    assert "optimizer state" in view.inner_text("#curve-legend")


def test_a_click_says_all_of_a_value(visit, shown):
    view, page = visit(), shown[0]
    value = next(v for v in page.values if v.fate == "rebuilt" and v.tensors)
    view.select_option("#fate", "rebuilt")
    view.fill("#find", value.name)
    view.locator("#lives .u-over").click(position={"x": 80, "y": 6})
    said = view.inner_text("#detail")
    node, shape = page.nodes[value.node], ", ".join(map(str, value.tensors[0].shape))
    place = f"{page.texts[node.place.text].name}:{node.place.line}"
    for words in (value.name, format_bytes(value.nbytes), f"[{shape}]", node.operation, place, *value.why):
        assert words in said
    view.click(f"#detail >> text={place}")
    marked = [view.inner_text(f"{box} .on").strip() for box in ("#own", "#theirs")]
    assert marked[1] == page.texts[node.place.text].lines[node.place.line - 1].strip()
    assert marked[0] == page.texts[0].lines[page.runs[value.lives[0][0]].line - 1].strip()


def test_keys_choose_a_value(visit, shown):
    view, page = visit(), shown[0]
    view.focus("#lives-scroll")
    view.keyboard.press("ArrowDown")
    view.keyboard.press("ArrowDown")
    assert view.inner_text("#detail h3") == page.values[1].name


def test_a_block_is_shown_beside_its_source(visit, shown):
    view, page = visit(), shown[0]
    block = next(b for b in page.blocks if b.functions)
    view.click(f"#blocks tbody tr:nth-child({block.block + 1}) td.files a")
    assert view.inner_text("#own .on").startswith(f"def {block.functions[0][0]}(")
    assert view.inner_text("#theirs .on").strip() == page.texts[block.place.text].lines[block.place.line - 1].strip()


def test_modules_open_and_change_what_they_show(visit):
    view = visit()
    rows = view.locator(".tree tbody tr:visible")
    before = rows.count()
    view.click(".tree tbody tr:first-child button")
    assert rows.count() == 1
    view.click(".tree tbody tr:first-child button")
    assert 1 < rows.count() <= before
    view.check("text=Peak memory meanwhile")
    assert "iB" in view.inner_text(".tree tbody tr:first-child td:nth-child(2)")


@pytest.mark.parametrize("size", [PHONE, DESK])
def test_it_is_readable(visit, size):
    view = visit(size)
    view.check("text=By category")
    view.locator("#lives .u-over").click(position={"x": 40, "y": 20})
    assert view.evaluate(TOO_WIDE) <= 0
    faint = {(text, behind) for text, behind in view.evaluate(COLOURS) if contrast(text, behind) < CONTRAST}
    assert not faint
    assert (
        view.evaluate(
            "Math.min(...[...document.querySelectorAll('p, dd, td, th')].map(e => parseFloat(getComputedStyle(e).fontSize)))"
        )
        >= 12
    )


def contrast(one: str, other: str) -> float:
    """The contrast of two colours, as WCAG has it."""

    def light(colour: str) -> float:
        parts = [int(p) / 255 for p in colour[colour.index("(") + 1 : -1].split(",")[:3]]
        red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    less, more = sorted((light(one), light(other)))
    return (more + 0.05) / (less + 0.05)
