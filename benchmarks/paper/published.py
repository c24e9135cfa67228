"""What the paper reports, to stand beside what is measured here: its own models and images, so only trends compare."""

from collections.abc import Mapping
from typing import Any

Published = Mapping[Any, tuple[float, ...]]
TV = (0.0, 0.001, 0.01, 0.1)  # weights of the penalty on a mask's variation

# CIFAR-10, ResNet-164, 1,600 images: the worse of the two likeliest labels, by weight of the penalty.
TOP_TWO: Published = {
    ("gray", "worst_completeness"): (0.92, 0.91, 0.83, 0.77),
    ("gray", "worst_soundness"): (0.17, 0.18, 0.39, 0.57),
    ("random", "worst_completeness"): (0.86, 0.85, 0.77, 0.70),
    ("random", "worst_soundness"): (0.20, 0.21, 0.44, 0.62),
}
# The same over all labels, areas over 0.2 to 0.6 of the pixels, eps 0.01 and 0.1, gray.
PARTIAL: Published = {
    ("gray", "worst_completeness"): (0.99, 0.99, 0.89, 0.80),
    ("gray", "worst_soundness"): (0.10, 0.10, 0.11, 0.19),
}
# Metrics of the predicted label alone: deletion, insertion over a blur and over gray, saliency metric.
INTRINSIC: Published = {
    "gradient-input": (0.32, 0.60, 0.51, 0.22),
    "ours TV 0.01": (0.37, 0.88, 0.83, 0.22),
    "ours TV 0": (0.59, 0.94, 0.92, 0.22),
    "smoothgrad": (0.31, 0.66, 0.55, 0.23),
    "random": (0.26, 0.36, 0.26, 0.22),
}
# Imagenette: deletion, insertion over gray, saliency metric, worst completeness, worst soundness.
PHOTOGRAPHS: Published = {
    "gradient-input": (0.42, 0.56, -0.35, 0.56, 0.80),
    "igos++": (0.37, 0.68, -0.36, 0.61, 0.71),
    "fong": (0.58, 0.59, -0.40, 0.57, 0.60),
    "ours": (0.50, 0.74, -0.90, 0.84, 0.84),
    "ours s=1": (0.49, 0.77, -1.18, 0.86, 0.58),
    "ours TV 0.001": (0.45, 0.80, -1.01, 0.87, 0.65),
    "ours gray": (0.46, 0.65, -0.35, 0.64, 0.76),
    "random": (0.45, 0.45, -0.35, 0.38, 0.69),
    "centred-gaussian": (0.66, 0.74, -0.97, 0.64, 0.71),
}
# The same columns of the two methods that ship a trained network: asked for a label, and for the image alone.
NETWORKS: Published = {"by-label": (0.48, 0.66, -0.85, 0.58, 0.82), "by-image": (0.41, 0.75, -0.27, 0.71, 0.84)}
# Imagenette-Corner, the same columns.
CORNERS: Published = {
    "gradient-input": (0.13, 0.34, -0.25, 0.50, 0.78),
    "fong": (0.15, 0.53, -0.25, 0.53, 0.48),
    "ours": (0.36, 0.64, -0.25, 0.76, 0.84),
    "random": (0.35, 0.35, -0.24, 0.36, 0.64),
    "centred-gaussian": (0.62, 0.62, 0.458, 0.50, 0.54),
}
