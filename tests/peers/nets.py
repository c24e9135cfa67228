"""Small torch networks, one for each family of classifiers: every kind of layer that the large ones have."""

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as all the world calls it

CLASSES, SIZE = 5, 32


class Around(nn.Module):
    """x + body(x), or the two joined."""

    def __init__(self, *body: nn.Module, join: bool = False) -> None:
        super().__init__()
        self.body, self.join = nn.Sequential(*body), join

    def forward(self, x: Any) -> Any:
        return torch.cat([x, self.body(x)], dim=1) if self.join else x + self.body(x)


class Gated(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, width: int, inner: nn.Module, gate: nn.Module) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, 4, 1), inner, nn.Conv2d(4, width, 1), gate)

    def forward(self, x: Any) -> Any:
        return x * self.body(x)


class Branches(nn.Module):
    """Several paths joined."""

    def __init__(self, *paths: nn.Module) -> None:
        super().__init__()
        self.paths = nn.ModuleList(paths)

    def forward(self, x: Any) -> Any:
        return torch.cat([path(x) for path in self.paths], dim=1)


class Shuffled(nn.Module):
    """Half of the channels through a body, then channels shuffled."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = unit(width // 2, width // 2, 3, groups=width // 2)

    def forward(self, x: Any) -> Any:
        left, right = x.chunk(2, dim=1)
        joined = torch.cat([left, self.body(right)], dim=1)
        n, c, h, w = joined.shape
        return joined.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


class ChannelsLast(nn.Module):
    """A ConvNeXt block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.5))

    def forward(self, x: Any) -> Any:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + (self.scale * self.narrow(F.gelu(self.wide(y)))).permute(0, 3, 1, 2)


class Transformer(nn.Module):
    """A ViT: patches, a class token, positions, attention."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, stride=8)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.place = nn.Parameter(torch.randn(1, 17, width))
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(5)])
        self.attentions = nn.ModuleList([nn.MultiheadAttention(width, 3, batch_first=True) for _ in range(2)])
        self.mlps = nn.ModuleList(
            [nn.Sequential(nn.Linear(width, 48), nn.GELU(), nn.Linear(48, width)) for _ in range(2)]
        )
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Any) -> Any:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1) + self.place
        for i in range(2):
            y = self.norms[2 * i](x)
            x = x + self.attentions[i](y, y, y, need_weights=False)[0]
            x = x + self.mlps[i](self.norms[2 * i + 1](x))
        return self.head(self.norms[4](x)[:, 0])


class Windows(nn.Module):
    """A Swin block: attention in shifted windows with a table of relative positions, then patches merged."""

    def __init__(self, width: int = 12, window: int = 4, shift: int = 2) -> None:
        super().__init__()
        self.window, self.shift, self.heads = window, shift, 2
        self.stem = nn.Conv2d(3, width, 4, stride=4)
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.table = nn.Parameter(torch.randn((2 * window - 1) ** 2, self.heads))
        rows, columns = torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")
        flat = torch.stack([rows.flatten(), columns.flatten()])
        apart = flat[:, :, None] - flat[:, None, :] + window - 1
        self.register_buffer("index", apart[0] * (2 * window - 1) + apart[1])
        self.merge, self.head = nn.Linear(4 * width, 16), nn.Linear(16, CLASSES)

    def forward(self, x: Any) -> Any:
        x = self.stem(x).permute(0, 2, 3, 1)
        n, h, w, c = x.shape
        k = self.window
        y = torch.roll(self.norm(x), (-self.shift, -self.shift), (1, 2))
        y = y.view(n, h // k, k, w // k, k, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, k * k, c)
        q, key, v = self.qkv(y).view(-1, k * k, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        bias = self.table[self.index.view(-1)].view(k * k, k * k, -1).permute(2, 0, 1)
        weights = torch.softmax(q @ key.transpose(-2, -1) * (c // self.heads) ** -0.5 + bias, dim=-1)
        y = self.out((weights @ v).transpose(1, 2).reshape(-1, k * k, c))
        y = y.view(n, h // k, w // k, k, k, c).permute(0, 1, 3, 2, 4, 5).reshape(n, h, w, c)
        x = x + torch.roll(y, (self.shift, self.shift), (1, 2))
        x = torch.cat([x[:, i::2, j::2] for i in (0, 1) for j in (0, 1)], dim=-1)
        return self.head(F.gelu(self.merge(x), approximate="tanh").mean(dim=(1, 2)))


class Mixer(nn.Module):
    """Products over places and over channels in turn, by einsum."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 8, stride=8)
        self.norm = nn.LayerNorm(width)
        self.places, self.channels = nn.Parameter(torch.randn(16, 16) / 4), nn.Parameter(torch.randn(width, width) / 4)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Any) -> Any:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = x + torch.einsum("npc,pq->nqc", F.mish(self.norm(x)), self.places)
        x = x + torch.tanh(torch.einsum("npc,cd->npd", x, self.channels))
        return self.head(F.normalize(x.cumsum(dim=1).mean(dim=1), dim=-1))


class Hourglass(nn.Module):
    """Down, up again by a transposed convolution and by interpolation, and joined, with group normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.GroupNorm(4, 8), nn.ELU())
        self.low = nn.Sequential(
            nn.Conv2d(8, 12, 3, stride=2, padding=1), nn.InstanceNorm2d(12, affine=True), nn.SiLU()
        )
        self.up = nn.ConvTranspose2d(12, 8, 3, stride=2, padding=1, output_padding=1)
        self.head = nn.Linear(28, CLASSES)

    def forward(self, x: Any) -> Any:
        high = self.down(x)
        low = self.low(F.pad(high, (1, 1, 1, 1), mode="reflect"))[:, :, :8, :8]
        wide = F.interpolate(low, scale_factor=2, mode="bilinear", align_corners=False)
        joined = torch.cat([high, self.up(low), wide], dim=1)
        return self.head(F.softplus(joined).pow(3).mean(dim=(2, 3)).pow(1 / 3))


def unit(inputs: int, outputs: int, size: Any, act: nn.Module | None = None, **how: Any) -> nn.Module:
    """Convolution, normalisation, activation."""
    how.setdefault("padding", "same" if isinstance(size, tuple) else size // 2)
    conv = nn.Conv2d(inputs, outputs, size, bias=False, **how)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), act or nn.ReLU())


def head(width: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(), nn.Linear(width, CLASSES)]


def families() -> dict[str, nn.Module]:
    """The networks, by name."""
    swish, hard = nn.SiLU(), nn.Hardswish()
    stem = lambda act=None: unit(3, 8, 3, act, stride=2)  # noqa: E731
    found = {
        "alexnet": nn.Sequential(
            nn.Conv2d(3, 12, 5, stride=2, padding=2), nn.ReLU(), nn.LocalResponseNorm(5, 0.1), nn.MaxPool2d(3, 2),
            nn.Conv2d(12, 8, 3, padding=1, groups=2), nn.LeakyReLU(0.1), nn.AdaptiveMaxPool2d(1), nn.Flatten(),
            nn.Linear(8, CLASSES), nn.LogSoftmax(dim=1)),
        "vgg": nn.Sequential(
            unit(3, 8, 3), nn.MaxPool2d(2), unit(8, 12, 3, nn.PReLU(12)), nn.MaxPool2d(2, ceil_mode=True),
            nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(48, 16), nn.ReLU(), nn.Linear(16, CLASSES)),
        "resnet": nn.Sequential(
            unit(3, 8, 7, stride=2), nn.MaxPool2d(3, 2, 1),
            Around(unit(8, 4, 1), unit(4, 4, 3), unit(4, 8, 1, nn.Identity())), nn.ReLU(), unit(8, 12, 1, stride=2),
            Around(unit(12, 12, 3)), *head(12)),
        "resnext": nn.Sequential(
            stem(), Around(unit(8, 16, 1), unit(16, 16, 3, groups=4), unit(16, 8, 1)),
            Gated(8, nn.ReLU(), nn.Sigmoid()), unit(8, 16, 3, groups=4, stride=2), *head(16)),
        "mobilenet_v2": nn.Sequential(
            stem(nn.ReLU6()), Around(unit(8, 24, 1, nn.ReLU6()), unit(24, 24, 3, nn.ReLU6(), groups=24),
                                     unit(24, 8, 1, nn.Identity())),
            unit(8, 8, 3, nn.ReLU6(), groups=8, stride=2), *head(8)),
        "mobilenet_v3": nn.Sequential(
            stem(hard), unit(8, 24, 1, hard), unit(24, 24, 5, hard, groups=24, stride=2),
            Gated(24, nn.ReLU(), nn.Hardsigmoid()), unit(24, 12, 1, nn.Identity()), *head(12)),
        "efficientnet": nn.Sequential(
            stem(swish), unit(8, 24, 1, swish), unit(24, 24, 5, swish, groups=24, stride=2),
            Gated(24, nn.SiLU(), nn.Sigmoid()), unit(24, 12, 1, nn.Identity()), *head(12)),
        "densenet": nn.Sequential(
            stem(), Around(unit(8, 4, 3), join=True), Around(unit(12, 4, 3), join=True), nn.AvgPool2d(2),
            Around(unit(16, 4, 3), join=True), *head(20)),
        "inception": nn.Sequential(
            stem(), Branches(unit(8, 4, 1), nn.Sequential(unit(8, 4, 1), unit(4, 4, (1, 7)),
                                                          unit(4, 4, (7, 1))),
                             nn.Sequential(nn.AvgPool2d(3, 1, 1, count_include_pad=False), unit(8, 4, 1))),
            Branches(unit(12, 8, 3, stride=2, padding=0), nn.MaxPool2d(3, 2)), *head(20)),
        "shufflenet": nn.Sequential(stem(), Shuffled(8), Shuffled(8), unit(8, 12, 1), *head(12)),
        "convnext": nn.Sequential(nn.Conv2d(3, 12, 4, stride=4), ChannelsLast(12), ChannelsLast(12), *head(12)),
        "vit": Transformer(), "swin": Windows(), "mixer": Mixer(), "hourglass": Hourglass(),
    }  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    for net in found.values():
        for layer in net.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.running_mean.normal_(0, 0.2, generator=generator)
                layer.running_var.uniform_(0.5, 2, generator=generator)
        net.eval()
    return found


def export(net: Any, path: Path) -> None:
    """The network as a file, by the older exporter, for any number of images."""
    axes = {"image": {0: "N"}, "logits": {0: "N"}}
    torch.onnx.export(net, (torch.randn(2, 3, SIZE, SIZE),), path, dynamo=False, dynamic_axes=axes, opset_version=17,
                      input_names=["image"], output_names=["logits"])  # fmt: skip
