"""Every explainer's arrays become the same single maps, and a doubtful shape is asked about."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from auditkit.data.bundles import Bundle, open_bundle
from auditkit.errors import BadInput

RNG = np.random.default_rng(0)


def noise(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


class Tensor:
    """Behaves like a torch tensor that needs a gradient: numpy alone cannot read it."""

    def __init__(self, array: np.ndarray, detached: bool = False) -> None:
        self.array, self.detached = array, detached

    def __array__(self, *args: Any, **kwargs: Any) -> np.ndarray:
        raise RuntimeError("call detach first")

    def detach(self) -> "Tensor":
        return Tensor(self.array, detached=True)

    def cpu(self) -> "Tensor":
        return self

    def numpy(self) -> np.ndarray:
        assert self.detached
        return self.array


class Eager:
    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def numpy(self) -> np.ndarray:
        return self.array


class Exchanged:
    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self.array.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


class Explained:
    """SHAP's Explanation and OpenVINO-XAI's, by what they hold."""

    def __init__(self, **held: Any) -> None:
        self.__dict__.update(held)


@pytest.mark.parametrize("kind", [np.asarray, Tensor, Eager, Exchanged, np.ndarray.tolist, list])
def test_arrays_of_any_framework(tmp_path: Path, kind: Any) -> None:
    maps = noise(2, 5, 6)
    Bundle(tmp_path / "b").add(["a", "b"], Tensor(np.array([4, 2])), kind(maps))
    assert (open_bundle(tmp_path / "b").get("b", 2) == maps[1]).all()


def test_every_explainers_form(tmp_path: Path) -> None:
    """One known map for each of 2 images and 4 labels, in all the forms that explainers use."""
    maps = noise(2, 4, 3, 6, 7)  # N K C H W
    summed = maps.sum(axis=2)
    labels = [[10, 11, 12, 13], [20, 21, 22, 23]]
    captum = maps[:, 1]
    forms: dict[str, tuple[Any, Any, np.ndarray]] = {
        "NCHW": ([11, 21], captum, summed[:, 1]),
        "NHWC": ([11, 21], captum.transpose(0, 2, 3, 1), summed[:, 1]),
        "NHWCK": (labels, Explained(values=maps.transpose(0, 3, 4, 2, 1), base_values=0), summed),
        "NCHWK": (labels, maps.transpose(0, 2, 3, 4, 1), summed),
        "KNCHW": (labels, list(maps.transpose(1, 0, 2, 3, 4)), summed),
        "KNHWC": (labels, list(maps.transpose(1, 0, 3, 4, 2)), summed),
        "one row": (range(4), maps.transpose(0, 2, 3, 4, 1), summed),
        "NHW1": ([11, 21], captum[:, :1].transpose(0, 2, 3, 1), captum[:, 0]),
        "NHW": ([11, 21], captum[:, 0], captum[:, 0]),
        "NKHW": (labels, maps[:, :, 0], maps[:, :, 0]),
        "one label": (11, captum[:, 0], captum[:, 0]),
        "tuple": ([11, 21], (captum,), summed[:, 1]),
        "batches of one": ([11, 21], [captum[:1], captum[1:]], summed[:, 1]),
        "dicts": (
            None,
            [Explained(saliency_map=dict(zip(row, m[:, 0], strict=True))).saliency_map
             for row, m in zip(labels, maps, strict=True)],
            maps[:, :, 0],
        ),
    }  # fmt: skip
    for name, (said, array, expected) in forms.items():
        bundle = Bundle(tmp_path / name)
        added = bundle.add(["x", "y"], said, array)
        found = np.stack([m.values for m in open_bundle(tmp_path / name)])
        assert added == len(found), name
        np.testing.assert_allclose(found, expected.reshape(found.shape), rtol=1e-6, atol=1e-6, err_msg=name)


def test_one_image(tmp_path: Path) -> None:
    maps = noise(3, 6, 7)
    Bundle(tmp_path / "chw").add("x", 5, maps)
    Bundle(tmp_path / "khw").add("x", [5, 6, 7], maps)
    Bundle(tmp_path / "hw").add("x", 5, maps[0])
    Bundle(tmp_path / "dict").add("x", None, Explained(saliency_map={5: maps[0], 7: maps[2]}))
    np.testing.assert_allclose(open_bundle(tmp_path / "chw").get("x", 5), maps.sum(axis=0), rtol=1e-5, atol=1e-6)
    assert (open_bundle(tmp_path / "khw").get("x", 7) == maps[2]).all()
    assert (open_bundle(tmp_path / "hw").get("x", 5) == maps[0]).all()
    assert open_bundle(tmp_path / "dict").labels == {"x": (5, 7)}


@pytest.mark.parametrize(
    ("way", "expected"),
    [("sum", -1.0), ("mean", -1 / 3), ("abs-sum", 5.0), ("max-abs", 3.0), (None, -1.0)],
)
def test_channels_become_one_as_said(tmp_path: Path, way: "str | None", expected: float) -> None:
    array = np.broadcast_to(np.array([1, -3, 1], np.float32)[:, None, None], (3, 4, 4)).copy()
    array[0, 0, 0] += 1
    bundle = Bundle(tmp_path / "b")
    bundle.add("x", 0, array, channels=way)
    assert open_bundle(tmp_path / "b").get("x", 0)[1, 1] == pytest.approx(expected)
    assert bundle.header.channels == (way or "sum")
    assert any("'sum', the default" in note for note in bundle.header.notes) == (way is None)


def test_a_doubtful_shape_asks_for_the_layout(tmp_path: Path) -> None:
    bundle, cube = Bundle(tmp_path / "b"), noise(3, 3, 3, 3)
    with pytest.raises(BadInput, match=r"\[3, 3, 3, 3\] can be read as NCHW or NHWC; name one with layout="):
        bundle.add(["a", "b", "c"], [0, 1, 2], cube)
    assert not (tmp_path / "b").exists()
    bundle.add(["a", "b", "c"], [0, 1, 2], cube, layout="NHWC")
    np.testing.assert_allclose(open_bundle(tmp_path / "b").get("b", 1), cube[1].sum(axis=-1), rtol=1e-5, atol=1e-6)


def test_the_size_of_a_batch_does_not_change_its_layout(tmp_path: Path) -> None:
    """Three images with three labels must not read three colours as three labels."""
    for count in range(1, 6):
        bundle = Bundle(tmp_path / str(count))
        assert bundle.add(range(count), range(count), noise(count, 3, 9, 8)) == count
        assert bundle.header.layout == ("NCHW",)
