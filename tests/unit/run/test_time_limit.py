"""A limit on the time of a whole command: what is cut short, in which order, and that files stay what they have to be."""

from __future__ import annotations

import math
import re
import time
from dataclasses import replace

import graphs
import pytest
from click.testing import CliRunner
from nets import NET

import remat_codegen.profile.measure as measuring
from remat_codegen.ask.request import DEFAULT_PLANNER, LEAST_SHARE, Question, Request
from remat_codegen.cli.main import cli
from remat_codegen.errors import BudgetError
from remat_codegen.fit import choosing
from remat_codegen.fit.batching import largest_size
from remat_codegen.fit.choosing import smallest_good
from remat_codegen.fit.drafts import draft_of, least_bytes, measured
from remat_codegen.header.command import command_in
from remat_codegen.marked.choose import Chooser
from remat_codegen.planners.base import registry
from remat_codegen.planners.base.bound import bound
from remat_codegen.planners.base.deadline import stoppable
from remat_codegen.profile import clock
from remat_codegen.profile.cache import Cache
from remat_codegen.run import check_update, in_memory, marked, pipeline, tabling
from remat_codegen.run.planning import make_plan
from remat_codegen.run.priced import measured_costs
from remat_codegen.run.traced import trace_target
from remat_codegen.schedule import simulate, without_recomputation
from remat_codegen.show.results import Progress

PAST = 0.0  # of time.monotonic()
QUIET = Progress(None)


@pytest.fixture
def asked(tmp_path):
    """A request for a file, whose time was up long ago."""
    (tmp_path / "net.py").write_text(NET)
    limit = {"time_limit": 1.0, "asked_at": time.monotonic() - 100, "cache": False}
    return Request(f"{tmp_path / 'net.py'}:Net", "60%", tmp_path / "net_remat.py", verify=True, **limit)


def test_without_a_limit_there_is_no_end():
    request = Request("net.py:Net")
    assert request.seconds_left() is None and not request.time_is_up


def test_the_time_runs_from_the_request_on():
    request = Request("net.py:Net", time_limit=10.0, asked_at=time.monotonic() - 6)
    assert 3 < request.seconds_left() <= 4 and 1 < request.seconds_left(0.5) <= 2 and not request.time_is_up
    late = Request("net.py:Net", time_limit=10.0, asked_at=time.monotonic() - 11)
    assert late.seconds_left() == LEAST_SHARE * 10.0 and late.time_is_up


def test_a_request_is_the_same_whenever_it_was_made():
    assert Request("net.py:Net", asked_at=1.0) == Request("net.py:Net", asked_at=2.0)


def test_in_a_hurry_work_is_run_once_after_warming_up(monkeypatch):
    monkeypatch.setattr(clock, "MEASURED_SECONDS", 0.0)
    ran = []
    clock.clock_for("cpu", PAST).least_ns(lambda: ran.append(1))
    assert len(ran) == 2
    clock.clock_for("cpu", math.inf).least_ns(lambda: ran.append(1))
    assert len(ran) == 2 + 1 + clock.LONG_RUNS  # any run takes that long


def test_what_was_measured_in_a_hurry_is_not_remembered_and_needs_as_much_memory(asked, tmp_path):
    model = trace_target(asked, QUIET).model
    hurried, usual = Cache("cpu", tmp_path), Cache("cpu", tmp_path)
    found = measuring.Measured("cpu", hurried, hurry_at=PAST).of(model)
    expected = measuring.Measured("cpu", usual).of(model)
    assert not hurried.entries and hurried.hurried == len(usual.entries) > 0 == usual.hurried
    assert found.workspace_bytes == expected.workspace_bytes and min(found.time_ns) > 0


def test_a_bound_that_gets_no_time_is_the_step_without_recomputation():
    graph, profile = graphs.chain_graph([1, 2, 3, 1, 2])
    budget = simulate(graph, profile, without_recomputation(graph)).peak_bytes * 7 // 10
    assert bound(graph, profile, budget, seconds=0.0).time_ns == sum(profile.time_ns)
    assert bound(graph, profile, budget, seconds=60.0) == bound(graph, profile, budget)


def test_a_search_for_a_table_ends_where_it_starts(asked, monkeypatch):
    tried = {}

    def search(self, schedules, until=math.inf, before=(), bound_ns=0.0, *, own=Chooser.search):
        found = own(self, schedules, until, before, bound_ns)
        tried[until < math.inf] = self.tried
        return found

    monkeypatch.setattr(Chooser, "search", search)
    traced = trace_target(asked, QUIET)
    profile = measured_costs(asked, traced, QUIET)
    plain, found = without_recomputation(traced.graph), tabling.found_of(traced)
    limit = simulate(traced.graph, profile, plain).peak_bytes // 2
    for seconds in (None, 0.0):
        tabling.Search(traced, found, profile, limit).brought([plain], seconds)
    assert tried[True] < tried[False] // 4


def test_searches_for_numbers_end_after_the_first_that_they_need():
    four = ((0, False), (100, True), (50, False), (75, True))
    assert smallest_good(lambda n: n >= 70, 0, 100, 12, 1, lambda: True) == (75, four)
    assert largest_size(lambda n: n - 50.0, 4, 16, lambda: True) == (4, ((4, True),))


@stoppable
def for_ever(graph, profile, budget_bytes, *, effort):
    """A planner that finds nothing as long as it is given time."""
    while True:
        effort.tell("", 0, 1)


@pytest.fixture
def endless(asked, monkeypatch):
    """The same request, with a planner that its time is too short for."""
    monkeypatch.setitem(registry.PLANNERS, DEFAULT_PLANNER, for_ever)
    return replace(asked, verify=False, time_limit=0.1)


def largest(request, budget):
    """The report on the file with the largest batch, and what was noted."""
    progress = Progress(None)
    report = choosing.generate(replace(request, budget=budget), Question(largest_batch=""), progress)
    return report, progress.noted


def test_time_that_is_up_says_nothing_of_the_smallest_plan(endless):
    found = measured(endless, QUIET)
    least = least_bytes(found, QUIET)
    assert not least.sure and 0 < least.nbytes < found.plain_bytes
    assert draft_of(found, least.nbytes, QUIET).made.planned_peak_bytes <= least.nbytes  # a quick planner's
    with pytest.raises(BudgetError, match=r"no plan under .* was found in 0.1 s; raise --time-limit") as raised:
        draft_of(found, least.nbytes // 2, QUIET)
    assert raised.value.out_of_time


@pytest.mark.slow
def test_the_largest_batch_that_was_found_in_time(endless):
    report, noted = largest(endless, str(least_bytes(measured(endless, QUIET), QUIET).nbytes))
    assert report.planned_peak_bytes <= report.budget_bytes < report.unmodified_peak_bytes
    assert report.answer == f"with which {report.chosen.batch} is the largest batch that was found to fit"
    assert "batch 64: fits" in noted and not any("does not fit" in note or "needs" in note for note in noted)
    assert "note: the search for a batch was cut short after 0.1 s; raise --time-limit for a better answer" in noted


def test_no_batch_in_time_is_not_said_of_the_model(endless):
    what = r"no batch was found in 0.1 s that fits; tried 64; raise --time-limit, or allow more memory"
    with pytest.raises(BudgetError, match=what):
        largest(endless, "5KiB")


@pytest.mark.slow
def test_a_search_for_a_budget_that_was_cut_short_finds_more_than_the_whole_step(endless, monkeypatch):
    monkeypatch.setattr(tabling, "PART_NS", 0)  # which such a small model would feel, the more the quicker the machine is
    progress = Progress(None)
    report = choosing.generate(replace(endless, budget=None), Question(max_overhead="20%"), progress)
    assert 0 < report.overhead <= 0.2 and report.budget_bytes < report.unmodified_peak_bytes
    assert "note: the search for a budget was cut short after 0.1 s; raise --time-limit for a better answer" in progress.noted
    assert re.match(r"the smallest of \d that were planned for with at most 20% more time", report.answer)


@pytest.mark.slow
def test_what_was_cut_short_says_what_to_do(endless):
    report = marked.generate(endless, QUIET)
    assert "stopped after 0.01 s, the best plan so far; raise --time-limit for a better one" in report.notes


@pytest.mark.parametrize(("hurried", "said"), [(1, "1 kind of"), (2, "2 kinds of")])
def test_notes_of_a_plan_in_python_do_not_say_twice_that_they_are_notes(asked, monkeypatch, hurried, said):
    monkeypatch.setattr(Cache, "hurried", property(lambda self: hurried, lambda self, value: None), raising=False)
    progress, traced = Progress(None), trace_target(asked, QUIET)
    report = in_memory._report(make_plan(replace(asked, budget="100%"), traced, progress), traced, progress)
    note = f"{said} operations could not be measured as often as usual, within 1 s"
    assert report.notes[0] == note and progress.noted == [f"note: {note}"]


def test_a_file_made_when_the_time_was_up_is_exact_and_within_its_budget(asked):
    report = marked.generate(asked, QUIET)
    assert report.verify.ok, report.verify.failures()
    assert report.verify.measured_peak_bytes <= report.budget_bytes


@pytest.mark.parametrize("edition", [1, 2])
def test_an_update_keeps_to_its_limit_and_writes_none_of_it(asked, monkeypatch, edition):
    made = replace(asked, time_limit=None, verify=False, edition=edition)
    (pipeline if edition == 1 else marked).generate(made, QUIET)
    file = made.output
    file.write_text(file.read_text().replace("--budget 60%", "--budget 70%", 1))
    planned = []

    def make_plan(request, *given, own=check_update.make_plan, **options):
        planned.append(request)
        return own(request, *given, **options)

    monkeypatch.setattr(check_update, "make_plan", make_plan)
    before = time.monotonic()
    done = CliRunner().invoke(cli, ["update", str(file), "--time-limit", "3", "--no-cache"], standalone_mode=False)
    assert done.exit_code == 0 and "planned again" in done.output
    assert [request.time_limit for request in planned] == [3.0] and planned[0].asked_at >= before
    header = check_update.read_header(file.read_text(), file)
    assert header.request.budget == "70%" and "--time-limit" not in command_in(file.read_text())
    assert not check_update.update(file, QUIET).changed
