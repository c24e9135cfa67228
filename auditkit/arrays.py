"""The array types used everywhere in auditkit."""

from collections.abc import Mapping
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]  # any shape and dtype; docstrings say which
Weights = Mapping[str, Array]  # by the tensor's name
