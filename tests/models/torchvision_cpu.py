"""Lets torchvision and timm import beside a build of PyTorch for which no torchvision build exists.

Its compiled operators (nms, roi_align) do not load there and cannot be run; declaring them is enough for the import.
"""

import contextlib
import importlib.util
from pathlib import Path

import torch


def _load() -> bool:
    """Loads the compiled operators, where they are for this build."""
    found = importlib.util.find_spec("torchvision")
    folders = [] if found is None else [Path(p) for p in found.submodule_search_locations or ()]
    for library in (file for folder in folders for file in folder.glob("_C*.so")):
        with contextlib.suppress(OSError):
            torch.ops.load_library(str(library))
            return True
    return False


if not _load():
    _operators = torch.library.Library("torchvision", "DEF")
    for _name in ("nms", "qnms"):
        _operators.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _operators.define(
        "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width,"
        " int sampling_ratio, bool aligned) -> Tensor"
    )
