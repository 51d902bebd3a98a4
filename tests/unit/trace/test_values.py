"""What forward decides by values that are the same in every call, or by whether it is being traced."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo
from emitted import droppable, emit, load, model_of, rebuilding
from torch import nn
from torch.compiler import is_compiling

from remat_codegen.trace import trace
from remat_codegen.verify.beside import compare


def exact(module, *args) -> bool:
    model = model_of(module, args, {})
    schedule = rebuilding(model.graph, set(droppable(model.graph)))
    folder = exact.folder
    generated = load(emit(module, args, {}, model, schedule, None), folder, type(module).__name__.lower())
    return compare(module, generated.rematerialize, args, {}).identical


@pytest.fixture(autouse=True)
def _folder(tmp_path):
    exact.folder = tmp_path


class Deciding(nn.Linear):
    """Skips what it computes to be of no effect, and takes numbers from a table that it makes."""

    def forward(self, x):
        positions = torch.arange(x.shape[0])
        if (positions.diff() == 1).all():
            x = super().forward(x)
        steps = torch.linspace(0, 1, 4).tolist()
        shift, length = int(positions[-1]), positions.max().item()
        return (x * steps[1] + shift).tanh() * float(positions.sum()) / length


class Counting(nn.Linear):
    """What it decides by was changed in place."""

    def forward(self, x):
        mask = torch.ones(4)
        mask[2:] = 0
        return super().forward(x) if mask.all() else x


class ByInput(nn.Linear):
    def forward(self, x):
        return super().forward(x) if (x > 0).all() else x


class ByChance(nn.Linear):
    def forward(self, x):
        return super().forward(x) if torch.rand(()) > 0.5 else x


class ByWeight(nn.Linear):
    def forward(self, x):
        return super().forward(x) if self.weight.sum() > 0 else x


class Aware(nn.Linear):
    """Computes something else where it is traced."""

    def forward(self, x):
        if torch.compiler.is_compiling() or torch.compiler.is_exporting():
            return super().forward(x) + 1
        return super().forward(x).tanh()


class AwareByName(nn.Linear):
    """Asks under names of its own."""

    def forward(self, x):
        return super().forward(x) + 1 if is_compiling() or torch._dynamo.is_compiling() else super().forward(x).tanh()


class Cautious(nn.Linear):
    """Looks at values, but not where it is traced."""

    def forward(self, x):
        if not torch.compiler.is_exporting() and (x != x).any():
            raise ValueError("not a number")
        return super().forward(x).tanh()


def test_constant_values_are_computed():
    assert exact(Deciding(8, 8), torch.randn(6, 8))


@pytest.mark.parametrize("kind", [Counting, ByInput, ByChance, ByWeight])
def test_by_other_values_one_run_is_recorded(kind):
    found = trace(kind(8, 8), (torch.randn(6, 8),), {})
    assert found.run is not None and found.run.lines[0].startswith("test_values.py:")


@pytest.mark.parametrize("kind", [Aware, AwareByName, Cautious])
def test_models_that_ask_whether_they_are_traced_train_as_they_run(kind):
    assert exact(kind(8, 8), torch.randn(6, 8))


def test_everything_is_as_before_afterwards():
    def own():
        asking = torch.compiler.is_exporting.__code__, "__bool__" in vars(torch.Tensor), {*vars(torch.compiler)}
        return torch.Tensor.__bool__, torch.Tensor.item, *asking

    before = own()
    model_of(Aware(8, 8), (torch.randn(6, 8),), {})
    assert before == own()


class Both(nn.Linear):
    """Has to be traced as such at one place, and would compute something else then at another."""

    def forward(self, x):
        if not torch.compiler.is_exporting():
            self.check(x)
        h = super().forward(x)
        return h.tanh() if torch.compiler.is_exporting() else h.sin()

    def check(self, x):
        if (x != x).any():
            raise ValueError("not a number")


class Caching(nn.Linear):
    """Has to be traced as such, which shows only after it has made a table."""

    table = None

    def forward(self, x):
        if self.table is None:
            self.table = torch.arange(8.0) + 1
        if not torch.compiler.is_exporting() and (x != x).any():
            raise ValueError("not a number")
        return super().forward(x).tanh() * self.table


def test_a_trace_that_failed_leaves_nothing_behind_for_the_next():
    module = Caching(8, 8)
    assert exact(module, torch.randn(6, 8))
    assert "table" not in vars(module)


def test_only_those_are_told_of_the_trace_who_would_look_at_values():
    assert exact(Both(8, 8), torch.randn(6, 8))


class Last(nn.Embedding):
    """Takes what stands at the last place that is not padding."""

    def forward(self, idx):
        last = idx.gather(1, idx.ne(1).sum(1, keepdim=True) - 1)
        return super().forward(last).sin()


def test_places_that_are_counted_are_measured():
    assert exact(Last(10, 8), torch.randint(2, 10, (4, 6), generator=torch.Generator().manual_seed(0)))
