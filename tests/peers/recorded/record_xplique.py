"""Records what Xplique's Insertion and Deletion say of a small network, into xplique.npz beside this file.

    pip install tensorflow-cpu==2.20.0 tf-keras==2.20.1 tensorflow-probability==0.25.0 deprecated einops matplotlib \
        opencv-python-headless 'scipy<=1.15.3' 'scikit-learn<=1.7.2' 'scikit-image<=0.25.2'
    pip install --no-deps xplique==2.0.2        (with its dependencies it brings CUDA)
    python record_xplique.py

Maps have no ties: Xplique leaves them in an order that differs between processors.
"""

from importlib.metadata import version
from pathlib import Path

import numpy as np
import tensorflow as tf
from xplique.metrics import Deletion, Insertion

HEIGHT, WIDTH, HIDDEN, CLASSES, IMAGES = 13, 11, 8, 5, 3
STEPS = (10, 7, 143, 200)  # its default; no divisor of 143 pixels; each pixel; more steps than pixels

rng = np.random.default_rng(20181)
images = rng.standard_normal((IMAGES, HEIGHT, WIDTH, 3)).astype(np.float32)
maps = rng.standard_normal((IMAGES, HEIGHT, WIDTH)).astype(np.float32)
first = (rng.standard_normal((HEIGHT * WIDTH * 3, HIDDEN)) * 0.15).astype(np.float32)
second = (rng.standard_normal((HIDDEN, CLASSES)) * 1.5).astype(np.float32)
labels = np.array([0, 3, 4])
assert all(len(np.unique(values)) == values.size for values in maps)


def network(inputs: tf.Tensor) -> tf.Tensor:
    flat = tf.reshape(tf.cast(inputs, tf.float32), (-1, HEIGHT * WIDTH * 3))
    return tf.tanh(flat @ first) @ second


recorded = {"images": images, "maps": maps, "first": first, "second": second, "labels": labels, "steps": STEPS}
for kind in (Insertion, Deletion):
    name = kind.__name__.lower()
    for steps in STEPS:

        def metric(rows: slice, kind: type = kind, steps: int = steps) -> object:
            targets = np.eye(CLASSES, dtype=np.float32)[labels[rows]]
            return kind(network, images[rows], targets, steps=steps, activation="softmax")

        whole = metric(slice(None))
        recorded[f"{name}_{steps}_mean"] = float(whole(maps))
        curve = whole.detailed_evaluate(maps)
        recorded[f"{name}_{steps}_counts"] = np.array(list(curve))
        recorded[f"{name}_{steps}_values"] = np.array(list(curve.values()))
        alone = [float(metric(slice(i, i + 1))(maps[i : i + 1])) for i in range(IMAGES)]
        recorded[f"{name}_{steps}"] = np.array(alone)

recorded["made_with"] = f"xplique {version('xplique')}, tensorflow {tf.__version__}, numpy {np.__version__}"
np.savez_compressed(Path(__file__).with_name("xplique.npz"), **recorded)
