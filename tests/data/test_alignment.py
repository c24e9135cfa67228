"""Maps brought to the model's resolution: against bilinear weights worked out by hand, and beside the photograph."""

import numpy as np
import pytest
from PIL import Image

from auditkit.data.alignment import Frame, check_size, to_model_input
from auditkit.errors import BadInput
from auditkit.model.card import Card
from auditkit.model.preprocessing import pixels


def _card(size: tuple[int, int], resize: "int | tuple[int, int] | None" = None, crop: str = "center") -> Card:
    zeros, ones = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    return Card(size, resize, crop, "bilinear", "RGB", 1.0, zeros, ones, zeros)


def _bilinear(values: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Half-pixel centres, edges repeated."""
    weights = []
    for old, new in zip(values.shape, size, strict=True):
        where = np.clip((np.arange(new) + 0.5) * old / new - 0.5, 0, old - 1)
        low = np.minimum(where.astype(int), old - 2)
        table = np.zeros((new, old))
        table[np.arange(new), low] = 1 - (where - low)
        table[np.arange(new), low + 1] += where - low
        weights.append(table)
    return weights[0] @ values @ weights[1].T


def test_a_coarse_map_is_stretched_bilinearly() -> None:
    coarse = np.random.default_rng(0).standard_normal((7, 7)).astype(np.float32)
    fine = to_model_input(coarse, "model-input", _card((224, 224)))
    assert (fine.dtype, fine.shape) == (np.float32, (224, 224))
    np.testing.assert_allclose(fine, _bilinear(coarse, (224, 224)), atol=1e-6)


def test_a_map_of_the_right_size_stays_as_it_is() -> None:
    values = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)
    assert (to_model_input(values, "model-input", _card((8, 8))) == values).all()


def test_a_larger_map_is_averaged_down_and_a_flat_one_stays_flat() -> None:
    flat = to_model_input(np.full((64, 64), 0.1, np.float32), "model-input", _card((32, 32)))
    assert (flat == np.float32(0.1)).all()


def test_a_map_over_the_photograph_goes_the_photographs_way() -> None:
    """A map equal to a grey photograph must come out as the photograph that the network sees."""
    grey = np.random.default_rng(0).integers(0, 256, (50, 90)).astype(np.uint8)
    card = _card((24, 24), resize=32)
    seen = pixels(card, Image.fromarray(grey))[..., 0]
    fitted = to_model_input(grey.astype(np.float32), "original-image", card, (50, 90))
    assert fitted.shape == (24, 24)
    assert np.abs(fitted - seen).max() <= 1.01  # two passes, each rounded to whole shades, on the picture's side


def test_a_bright_pixel_lands_where_the_crop_puts_it() -> None:
    values = np.zeros((40, 60), np.float32)
    values[5, 12] = 1
    fitted = to_model_input(values, "original-image", _card((40, 40), resize=40), (40, 60))
    assert np.argwhere(fitted).tolist() == [[5, 2]]


@pytest.mark.parametrize(
    ("shape", "frame", "picture", "words"),
    [
        ((14, 7), "model-input", None, "14x7.*224x224.*aspect ratios differ"),
        ((224, 223), "model-input", None, "224x223.*224x224"),
        ((300, 400), "original-image", (400, 300), "300x400.*400x300"),
        ((300, 400), "original-image", None, "needs that image"),
    ],
)
def test_wrong_sizes_are_told_with_both_values(
    shape: tuple[int, int], frame: Frame, picture: "tuple[int, int] | None", words: str
) -> None:
    with pytest.raises(BadInput, match=words):
        to_model_input(np.zeros(shape, np.float32), frame, _card((224, 224), resize=256), picture)


def test_a_grid_rounded_by_the_networks_stride_is_in_proportion() -> None:
    check_size((8, 10), "model-input", _card((240, 320)))


def test_a_photograph_too_small_for_the_card_is_told() -> None:
    with pytest.raises(BadInput, match="20x30 pixels after the resize"):
        check_size((20, 30), "original-image", _card((24, 24)), (20, 30))
