"""Lets torchvision and timm import beside a build of PyTorch for which no torchvision build exists.

Its compiled operators (nms, roi_align) do not load and cannot be run; declaring them is enough for the import.
"""

import torch

_operators = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    _operators.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
_operators.define(
    "roi_align(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width,"
    " int sampling_ratio, bool aligned) -> Tensor"
)
