"""The picture in README: memory over a training step of the GPT-2 in generated/, and of the unmodified model.

    python benchmarks/memory_picture.py

Times are measured on this machine, so the picture differs a little from run to run; the bytes are the file's plan.
"""

from __future__ import annotations

from pathlib import Path

from remat_codegen.header import saved_plan
from remat_codegen.run import check_update
from remat_codegen.run.priced import measured_costs
from remat_codegen.run.traced import trace_target
from remat_codegen.schedule import without_recomputation
from remat_codegen.show import memory
from remat_codegen.show.results import Progress

ROOT = Path(__file__).parents[1]
FILE = ROOT / "generated" / "gpt2_remat.py"


def main() -> None:
    progress = Progress(None)
    header = check_update.read_header(FILE.read_text(), FILE)
    request, plan = check_update.located(header.request, FILE), header.plan
    assert plan is not None
    traced = trace_target(request, progress)
    costs = measured_costs(request, traced, progress)
    schedules = saved_plan.schedule_of(plan, traced.graph, FILE), without_recomputation(traced.graph)
    planned, plain = (memory.curve(traced.graph, costs, schedule) for schedule in schedules)
    (ROOT / "docs" / "memory.svg").write_text(memory.picture(planned, plain, plan.budget_bytes) + "\n")


if __name__ == "__main__":
    main()
