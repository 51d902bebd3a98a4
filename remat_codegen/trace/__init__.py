"""From a module and its inputs to a flat list of operations (rk-GB, appendix A.2), by torch.export in training mode.

    Trace     = variables, operations, outputs
    Variable  = parameter | buffer | constant | input | result
    Operation = target(args, kwargs) -> results, with the user's source line and module path

Arguments hold `Ref(variable)` where a tensor stands. Nothing here knows about memory or gradients.
"""

from remat_codegen.trace.autograd_functions import called, function_call
from remat_codegen.trace.ir import Like, Operation, Origin, Ref, Region, Source, Trace, Variable, refs, substitute
from remat_codegen.trace.refusals import location
from remat_codegen.trace.replay import BY_VALUES
from remat_codegen.trace.sdpa_kernel import chosen_kernels, without_kernels
from remat_codegen.trace.structures import know_dataclasses
from remat_codegen.trace.surroundings import Autocast, autocasting
from remat_codegen.trace.tracing import silent_logs, trace

__all__ = [
    "BY_VALUES",
    "Autocast",
    "Like",
    "Operation",
    "Origin",
    "Ref",
    "Region",
    "Source",
    "Trace",
    "Variable",
    "autocasting",
    "called",
    "chosen_kernels",
    "function_call",
    "know_dataclasses",
    "location",
    "refs",
    "silent_logs",
    "substitute",
    "trace",
    "without_kernels",
]
