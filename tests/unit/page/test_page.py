"""The page about a generated file: its numbers are the simulator's, its texts cannot break it, and it stays small."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import asdict, replace
from html.parser import HTMLParser

import pytest
from click.testing import CliRunner
from conftest import EXAMPLE
from emitted import droppable, model_of, rebuilding
from nets import NET

from remat_codegen.ask.request import Request
from remat_codegen.ask.target import load_target
from remat_codegen.cli.main import cli
from remat_codegen.graph.ir import Kind
from remat_codegen.page.build import Given, build
from remat_codegen.page.curves import during
from remat_codegen.page.data import Page
from remat_codegen.page.lives import lives_of
from remat_codegen.page.render import HERE, render
from remat_codegen.profile.costs import Profile
from remat_codegen.run import explain, marked, pipeline, reporting, tradeoff
from remat_codegen.schedule import simulate, without_recomputation
from remat_codegen.show.results import Progress

QUIET = Progress(None)
HOSTILE = "# </script><script>document.title = 'taken'</script> <!-- & <b>bold</b> \u2028\n"
LARGEST = 5_000_000


@pytest.fixture(scope="module", params=[1, 2])
def made(request, tmp_path_factory):
    """A generated file of each edition, from a source that would like to break a page."""
    folder = tmp_path_factory.mktemp("shown")
    (folder / "net.py").write_text(HOSTILE + NET)
    asked = Request(f"{folder / 'net.py'}:Net", "55%", folder / "net_remat.py", edition=request.param)
    (pipeline if request.param == 1 else marked).generate(asked, QUIET)
    return folder / "net_remat.py"


@pytest.fixture(scope="module")
def case(made):
    """The file, what `explain` finds in it, the schedule that was followed, and the page."""
    explanation, followed = explain.follow(made, QUIET)
    assert followed is not None
    return made, explanation, followed, reporting.report(made, QUIET, measure=True)


# ---------------------------------------------------------------------------------------------- numbers


def test_figures_are_those_of_explain(case):
    _, explanation, _, page = case
    figures = page.figures
    assert figures.planned_peak_bytes == explanation.peak_bytes <= figures.budget_bytes == explanation.budget_bytes
    assert figures.unmodified_peak_bytes == explanation.unmodified_peak_bytes
    assert figures.overhead == pytest.approx(explanation.overhead)
    assert figures.bound is None or figures.bound <= figures.overhead
    assert figures.recomputed == sum(len(b.recomputed) for b in page.blocks) > 0


def test_curves_are_the_simulators(case):
    _, _, followed, page = case
    timeline = simulate(followed.case.traced.graph, followed.costs, followed.schedule)
    planned = page.planned
    assert planned.total_bytes == during(timeline, followed.schedule)
    assert max(planned.total_bytes) == page.figures.planned_peak_bytes
    assert planned.end_ns == timeline.time_ns == page.runs[-1].end_ns
    for curve in (page.planned, page.unmodified):
        parts = zip(curve.activations_bytes, curve.gradients_bytes, curve.workspace_bytes, strict=True)
        assert tuple(sum(p) for p in parts) == curve.total_bytes
    assert max(page.unmodified.total_bytes) == page.figures.unmodified_peak_bytes


def test_lives_make_up_the_curve(case):
    _, _, followed, page = case
    graph = followed.case.traced.graph
    lives = lives_of(graph, followed.schedule)
    for number, run in enumerate(page.runs):
        alive = [d for d in graph.data if any(a <= number <= b for a, b in lives[d.id])]
        older = [d for d in alive if any(a < number <= b for a, b in lives[d.id])]
        twice = [d for d in older if d.id in graph.nodes[run.node].writes and d.kind is not Kind.GRADIENT]
        beside = page.nodes[run.node].workspace_bytes + followed.schedule.beside_bytes.get(number, 0)
        held = sum(d.nbytes for d in alive) + sum(d.nbytes for d in twice) + beside
        assert held == page.planned.total_bytes[number]


def test_each_value_says_its_fate(case):
    _, _, followed, page = case
    graph = followed.case.traced.graph
    assert len(page.values) == len(graph.data) and sum(v.nbytes for v in page.values) == sum(d.nbytes for d in graph.data)
    fates = Counter(v.fate for v in page.values)
    assert fates["rebuilt"] and fates["kept"] and fates["gradient"] and fates["output"] == len(graph.outputs)
    for value in page.values:
        assert (len(value.lives) > 1) == (value.fate == "rebuilt") and value.why
        assert all(any(a <= r <= b for a, b in value.lives) for r in value.reads)
    over = [w for v in page.values if v.fate == "rebuilt" for w in v.why if "above the budget" in w]
    assert over, "no value is said to be rebuilt for the budget's sake"


def test_modules_add_up(case):
    _, _, _, page = case
    whole, *others = page.modules
    assert sum(whole.time_ns) == page.figures.step_ns
    assert max(whole.peak_bytes) == max(page.planned.total_bytes)
    for number, row in enumerate(page.modules):
        inside = [m for m in others if m.parent == number]
        assert all(m.depth == row.depth + 1 for m in inside)
        assert all(sum(m.time_ns[p] for m in inside) <= row.time_ns[p] for p in range(3))


def test_places_are_lines_of_the_texts(case):
    file, _, _, page = case
    assert [t.name for t in page.texts] == ["net_remat.py", "net.py"]
    assert "\n".join(page.texts[0].lines) + "\n" == file.read_text()
    first = page.nodes[0]
    assert (first.operation, first.also, first.module) == ("aten.softmax.int", ("aten.linear.default",), "steps.0")
    assert page.texts[first.place.text].lines[first.place.line - 1].strip() == "probs = F.softmax(scores, -1) * 0.5"
    lines = page.texts[0].lines
    for block in page.blocks:
        for name, line in block.functions:
            wanted = block.path if name == "PLAN" else f"def {name.rpartition('.')[2]}("
            among = re.sub(r"\d+", "{i}", wanted)  # equal rows of layers are one
            assert wanted in lines[line - 1] or among in lines[line - 1]
        assert block.functions and block.place is not None
    again = [r for r in page.runs if r.again]
    assert again and all(0 < r.line <= len(lines) for r in again)


def test_a_measured_step_is_what_was_planned(case):
    _, _, _, page = case
    measured = page.measured
    assert abs(measured.error) * page.figures.planned_peak_bytes < 64
    assert max(measured.held_bytes) == measured.peak_bytes
    assert list(measured.at_ns) == sorted(measured.at_ns) and measured.at_ns[-1] <= page.planned.end_ns


def test_more_memory_never_costs_more(case):
    _, _, followed, page = case
    points, own = page.tradeoff.points, page.figures
    found = [p.overhead for p in points if p.overhead is not None]
    assert found == sorted(found, reverse=True) and found[-1] == 0
    assert all(p.bound is None or p.overhead is None or p.bound <= p.overhead + 1e-6 for p in points)
    assert page.tradeoff.more.budget_bytes == own.budget_bytes * 11 // 10 and page.tradeoff.more.overhead <= own.overhead + 1e-6
    graph = followed.case.traced.graph
    assert page.tradeoff.least_bytes == tradeoff.least_bytes(graph, followed.profile) <= own.planned_peak_bytes


def test_what_no_budget_counts(case):
    outside = case[3].outside
    assert outside.parameters_bytes == outside.gradients_bytes == 4 * 4 * (32 * 128 + 128 + 128 * 32 + 32)
    assert outside.optimizer_bytes["Adam, AdamW"] == 2 * outside.gradients_bytes + 4 * 16
    assert outside.inputs_bytes == 64 * 32 * 4 and outside.buffers_bytes == 0


# ---------------------------------------------------------------------------------------------- the file


class _Elements(HTMLParser):
    """What a browser finds: elements with attributes, and what stands within those of scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict]] = []
        self.scripts: list[str] = []
        self.inside = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        self.inside = tag
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data):
        if self.inside == "script":
            self.scripts[-1] += data

    def handle_endtag(self, tag):
        self.inside = ""


def test_sources_cannot_break_the_page(case):
    page = case[3]
    text = render(replace(page, title="<i>Net</i>", notes=("</script><b>",), problems=((3, "</main>"),)))
    elements = _Elements(text)
    assert len(elements.scripts) == 3 and not [t for t, _ in elements.found if t in ("i b".split())[1:]]
    data = json.loads(elements.scripts[0])
    assert data["texts"][1]["lines"][0] + "\n" == HOSTILE and data["title"] == "<i>Net</i>"
    assert "</i>Net" not in text and "<i>Net" not in text and text.count("</main>") == 1
    assert not set("<>&\u2028") & set(elements.scripts[0])


def test_the_page_has_all_that_json_has(case):
    page = case[3]
    assert json.loads(_Elements(render(page)).scripts[0]) == json.loads(json.dumps(page.to_json()))
    assert page.to_json()["figures"] == asdict(page.figures)


def test_nothing_is_fetched(case):
    for tag, attributes in _Elements(render(case[3])).found:
        assert "src" not in attributes
        assert attributes.get("href", "#").startswith(("#", "data:")), (tag, attributes)
    assert "default-src 'none'" in render(case[3])


def test_the_library_is_whole_and_licensed():
    vendor = HERE / "vendor"
    script = (vendor / "uPlot.iife.min.js").read_text()
    assert "</script" not in script and "sourceMappingURL" not in script and script.startswith("/*! https://github.com")
    assert "MIT" in (vendor / "LICENSE").read_text()


def test_pages_are_pure(case):
    assert render(case[3]) == render(case[3]) and str(case[0].parent) not in render(case[3])


@pytest.mark.slow
def test_48_layers_stay_small():
    page = _of_layers(48)
    size = len(render(page).encode())
    assert len(page.blocks) >= 96 and len(page.values) > 1000 and size < LARGEST, size


def _of_layers(count: int) -> Page:
    """The page of a GPT-2 of narrow layers, in which every second value is rebuilt."""
    init = f"layers={count}, width=16, heads=2, vocabulary=64, context=8, dropout=0.1"
    target = load_target(f"{EXAMPLE}:GPT2", init=init, inputs="int64[2,8]<64")
    model = model_of(target.module, target.args, target.kwargs)
    nodes = len(model.graph.nodes)
    costs = Profile((1000,) * nodes, (0,) * nodes)
    given = Given(
        title="GPT2",
        file="gpt2_remat.py",
        text=EXAMPLE.read_text(),
        command="remat-codegen gpt2.py:GPT2 --budget 50%",
        planner="none",
        device="cpu",
        edition=1,
        generator="0",
        model=model,
        schedule=rebuilding(model.graph, set(droppable(model.graph)[::2])),
        unmodified=without_recomputation(model.graph),
        profile=costs,
        costs=costs,
        budget_bytes=None,
        outside=reporting.outside(target.module, (target.args, target.kwargs)),
    )
    return build(given)


# ---------------------------------------------------------------------------------------------- the verb


def run(*words):
    return CliRunner().invoke(cli, [str(w) for w in ("report", *words)], standalone_mode=False)


def test_the_verb_writes_a_page(made, tmp_path):
    output = tmp_path / "page.html"
    done = run(made, "-o", output, "--planners", "none")
    assert done.exit_code == 0 and "planned peak" in done.output and output.read_text().startswith("<!doctype html>")
    done = run(made, "--json", "--planners", "chen")
    found = json.loads(done.stdout)
    assert found["format"] == "remat-codegen report" and found["tradeoff"]["planners"] == ["chen"]
    assert not made.with_suffix(".html").exists(), "with --json alone, nothing is written"


def test_a_file_that_was_edited_is_shown_as_it_is(made, tmp_path):
    edits = re.compile(r'^ +(\w+ = )?kept\.forget\("\w+"\)\n|(?<=^PLAN = \{\n)    .*\n', re.MULTILINE)
    text, edited = edits.subn("", made.read_text(), count=1)
    assert edited
    (tmp_path / "net.py").write_text((made.parent / "net.py").read_text())
    (tmp_path / "net_remat.py").write_text(text)
    page = reporting.report(tmp_path / "net_remat.py", QUIET, planners=("chen",))
    assert page.problems and all(line > 0 for line, _ in page.problems)
    own = page.tradeoff.own
    assert own.budget_bytes == max(page.figures.planned_peak_bytes, page.figures.budget_bytes)
    assert own.overhead == pytest.approx(page.figures.overhead, abs=1e-6)
    assert "does not do what it was generated to do" in render(page)


@pytest.mark.parametrize("edit", ["unreadable", "edited", "none of ours"])
def test_what_cannot_be_shown_leaves_the_page_as_it_is(made, tmp_path, capsys, edit):
    text = made.read_text()
    (tmp_path / "net.py").write_text((made.parent / "net.py").read_text())
    file, page = tmp_path / "net_remat.py", tmp_path / "page.html"
    page.write_text("old")
    file.write_text({"unreadable": text + "\n)", "edited": text[: text.rindex("def ") + 6], "none of ours": "x = 1\n"}[edit])
    with pytest.raises(SystemExit) as caught:
        cli.main(["report", str(file), "-o", str(page), "-q"])
    said = capsys.readouterr().err.strip()
    assert caught.value.code == 2 and said.count("\n") == 0 and str(file) in said
    assert page.read_text() == "old"


@pytest.mark.parametrize(
    "words, said",
    [
        (["missing.py"], "missing.py"),
        (["{file}", "-o", "{file}"], "is the file that the page is about"),
        (["{file}", "-o", "{folder}/none/page.html"], "does not exist"),
        (["{file}", "--planners", "nobody"], "'nobody' is no planner"),
    ],
)
def test_wrong_words_are_told_in_one_line(made, capsys, words, said):
    before = made.read_text()
    with pytest.raises(SystemExit) as caught:
        cli.main(["report", *(w.format(file=made, folder=made.parent) for w in words), "-q"])
    error = capsys.readouterr().err.strip()
    assert caught.value.code == 2 and said in error and error.count("\n") == 0
    assert made.read_text() == before
