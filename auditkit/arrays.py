"""The array type used everywhere in auditkit."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]  # any shape and dtype; docstrings say which
