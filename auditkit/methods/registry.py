"""Every saliency method by name."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from auditkit.data.ranks import map_seed
from auditkit.methods import blackbox, cam, controls, fong, gradients, igos, masking_network
from auditkit.methods.differences import method as differences
from auditkit.methods.mask import method as mask
from auditkit.methods.request import Found, Request
from auditkit.model.classifier import AnyClassifier


@dataclass(frozen=True)
class Method:
    """A way to make maps."""

    about: str
    run: Callable[[Request, Any], Found]
    options: type[Any] = gradients.Plain
    needs: Literal["gradient", "passes", "nothing"] = "gradient"
    images: int = 16  # explained together; what is lost at most when a run is cut
    uses_pool: bool = False
    learns: bool = False  # step by step, many masks at once: it takes more of them to fill a GPU

    def together(self, model: AnyClassifier) -> int:
        """How many images of this model are explained together."""
        return self.images * model.device.learning_factor if self.learns else self.images


def _control(name: str) -> Callable[[Request, Any], Found]:
    """A control as a method: it looks at the picture at most."""
    draw, own = controls.CONTROLS[name]

    def run(request: Request, _options: gradients.Plain) -> Found:
        return Found(tuple(
            {label: draw(pixels, map_seed(request.seed, image, label if own else 0)) for label in labels}
            for image, pixels, labels in zip(request.ids, request.pixels, request.labels, strict=True)
        ))  # fmt: skip

    return run


METHODS: dict[str, Method] = {
    "mask": Method("a mask learned for each label, the paper's method", mask.mask, mask.MaskOptions, images=4,
                   uses_pool=True, learns=True),
    "differences": Method("regression on random masks; needs no gradient", differences.differences,
                          differences.Differences, "passes", images=4, uses_pool=True),
    "gradient": Method("strongest gradient over the colours", gradients.gradient),
    "gradient-input": Method("gradient times input", gradients.gradient_input),
    "smoothgrad": Method("mean gradient over noisy copies", gradients.smoothgrad, gradients.Smooth),
    "integrated-gradients": Method("gradient along the way from gray", gradients.integrated_gradients,
                                   gradients.Integrated),
    "grad-cam": Method("channels of the last layer with a height and a width", cam.grad_cam, cam.Cam),
    "fong": Method("the smallest smooth part that, blurred, loses the label", fong.fong, fong.FongOptions, images=4,
                   learns=True),
    "igos++": Method("masks for deletion and insertion along the way from a blur", igos.igos, igos.IgosOptions,
                     images=4, learns=True),
    "occlusion": Method("drop behind a sliding gray square", blackbox.occlusion, blackbox.Occlusion, "passes", 4),
    "rise": Method("mean of random masks by what they show", blackbox.rise, blackbox.Rise, "passes", 4),
    "masker": Method("an exported masking network, path=FILE", masking_network.masker,
                     masking_network.MaskingNetwork, "passes"),
    "random": Method("noise, a control", _control("random"), needs="nothing"),
    "centred-gaussian": Method("a bump in the middle, a control", _control("centred-gaussian"), needs="nothing"),
    "constant": Method("the same everywhere, a control", _control("constant"), needs="nothing"),
    "edges": Method("edges of the picture, a control", _control("edges"), needs="nothing"),
    "blurred-edges": Method("the same, blurred; a control", _control("blurred-edges"), needs="nothing"),
    "noisy-gaussian": Method("the bump with noise, a control", _control("noisy-gaussian"), needs="nothing"),
    "noisy-edges": Method("blurred edges with noise, a control", _control("noisy-edges"), needs="nothing"),
}  # fmt: skip
