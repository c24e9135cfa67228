"""Every saliency method by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from auditkit.data.ranks import map_seed
from auditkit.methods import blackbox, controls, fong, gradients, igos, masking_network
from auditkit.methods.differences import method as differences
from auditkit.methods.mask import method as mask
from auditkit.methods.request import MethodResult, Request
from auditkit.model.classifier import AnyClassifier
from auditkit.model.device import CPU, DeviceProfile


@dataclass(frozen=True)
class Method:
    """A way to compute maps."""

    about: str
    run: Callable[[Request, Any], MethodResult]
    options: type[Any] = gradients.Plain
    needs: Literal["gradient", "passes", "nothing"] = "gradient"
    images: int = 16  # per request, on a CPU
    uses_pool: bool = False
    learns: bool = False  # by descent on many masks at once: a GPU needs more images per request
    prepare: Callable[[AnyClassifier, Any], object] = gradients.prepare  # where a gradient is needed
    qualities: Mapping[str, mask.Quality] = field(default_factory=dict)  # by name; the first is the default

    @property
    def explains_each_image(self) -> bool:
        """Whether its maps come from the model and the image alone, so that none is that of another image.

        The maps of a control ignore the model, and those of a masking network are whatever its file makes.
        """
        return self.needs != "nothing" and self.options is not masking_network.MaskingNetwork

    def together(self, model: AnyClassifier) -> int:
        """Images per request for this model; methods that learn keep each image's maps as they finish."""
        if self.learns:
            return self.images * model.device.learning_factor
        return self._without_learning(model, model.device)

    def indivisible(self, model: AnyClassifier) -> int:
        """Images that no boundary between shards divides: those of a request on a CPU.

        It depends on neither the device nor the engine, so that shards of several machines fit together.
        """
        return self.images if self.learns else self._without_learning(model, CPU)

    def _without_learning(self, model: AnyClassifier, device: DeviceProfile) -> int:
        return 1 if model.signature.height * model.signature.width > device.slow_pixels else self.images


def _control(request: Request, _options: gradients.Plain, *, name: str) -> MethodResult:
    """The maps of a control, which depend on the image at most."""
    (draw, by_label), maps = controls.CONTROLS[name], request.empty_maps()
    for image, label in request.pairs():
        seed = map_seed(request.seed, request.ids[image], label if by_label else 0)
        maps[image][label] = draw(request.pixels[image], seed)
    return MethodResult(maps)


_CONTROLS = {
    "random": "noise", "centred-gaussian": "a Gaussian in the centre", "constant": "the same everywhere",
    "edges": "edges of the image", "blurred-edges": "blurred edges", "noisy-gaussian": "the Gaussian with noise",
    "noisy-edges": "blurred edges with noise",
}  # fmt: skip
METHODS: dict[str, Method] = {
    "mask": Method("a mask learned for each label (Gupta et al., 2022)", mask.mask, mask.MaskOptions,
                   prepare=mask.prepare, images=4, uses_pool=True, learns=True, qualities=mask.QUALITIES),
    "differences": Method("regression on random masks; needs no gradient", differences.differences,
                          differences.Differences, "passes", images=4, uses_pool=True),
    "gradient": Method("strongest gradient over the colours", gradients.gradient),
    "gradient-input": Method("gradient times input", gradients.gradient_input),
    "smoothgrad": Method("mean gradient over noisy copies", gradients.smoothgrad, gradients.Smooth),
    "integrated-gradients": Method("mean gradient on the path from gray", gradients.integrated_gradients,
                                   gradients.Integrated),
    "grad-cam": Method("channels of the last spatial layer, weighted by their gradient", gradients.grad_cam,
                       gradients.Cam, prepare=gradients.prepare_cam),
    "fong": Method("the smallest smooth region whose blur loses the label", fong.fong, fong.FongOptions,
                   prepare=fong.prepare, images=4, learns=True),
    "igos++": Method("masks for deletion and insertion on the path from a blur", igos.igos, igos.IgosOptions,
                     prepare=igos.prepare, images=4, learns=True),
    "occlusion": Method("drop under a sliding gray square", blackbox.occlusion, blackbox.Occlusion, "passes", 4),
    "rise": Method("mean of random masks, weighted by the probability", blackbox.rise, blackbox.Rise, "passes", 4),
    "masker": Method("an exported masking network, path=FILE", masking_network.masker,
                     masking_network.MaskingNetwork, "passes"),
    **{name: Method(f"{about}, a control", partial(_control, name=name), needs="nothing")
       for name, about in _CONTROLS.items()},
}  # fmt: skip
