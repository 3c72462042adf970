"""Small networks for families.py that no library ships at this size, and wrappers that return logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import peft
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, leaky_relu, silu


class Recurrent(nn.Module):
    """A language model of one recurrent layer."""

    def __init__(self, cell: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 5)
        self.cell = cell(5, 6, batch_first=True)
        self.out = nn.Linear(6, 9)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.cell(self.embed(tokens))[0])


class Encoder(nn.Module):
    """Two layers of torch's own transformer, with learned positions, that classify by the mean."""

    def __init__(self, norm_first: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.positions = nn.Parameter(torch.randn(6, 8))
        layer = nn.TransformerEncoderLayer(
            8, 2, 10, dropout=0.0, batch_first=True, norm_first=norm_first
        )
        norm = nn.LayerNorm(8) if norm_first else None
        self.layers = nn.TransformerEncoder(layer, 2, norm=norm, enable_nested_tensor=False)
        self.out = nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.layers(self.embed(tokens) + self.positions).mean(1))


class ResNetBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.first_norm(self.first(x)).relu()
        return (x + self.second_norm(self.second(inner))).relu()


def resnet() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        ResNetBlock(4),
        ResNetBlock(4),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 3),
    )


def trained_resnet() -> nn.Module:
    """With running means and variances of images, and weights that are not those of an initialisation."""
    model = resnet()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        for _ in range(50):
            model(2 * torch.randn(24, 3, 8, 8) + 1)
    return model


class ConvNeXtBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.scale = nn.Parameter(torch.rand(width))

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        inner = self.scale * self.down(gelu(self.up(inner)))
        return x + inner.permute(0, 3, 1, 2)


class MeanOfPixels(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


def convnext() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 6, 2, stride=2),
        ConvNeXtBlock(6),
        ConvNeXtBlock(6),
        MeanOfPixels(),
        nn.LayerNorm(6),
        nn.Linear(6, 3),
    )


class UNet(nn.Module):
    """One level down and up again, with the usual skip: logits of every pixel's class."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = self.block(2, 4)
        self.down = self.block(4, 6)
        self.up = nn.ConvTranspose2d(6, 4, 2, stride=2)
        self.leave = self.block(8, 4)
        self.out = nn.Conv2d(4, 3, 1)

    @staticmethod
    def block(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(2, outputs), nn.ReLU()
        )

    def forward(self, x: Tensor) -> Tensor:
        skipped = self.enter(x)
        inner = self.up(self.down(nn.functional.max_pool2d(skipped, 2)))
        return self.out(self.leave(torch.cat([skipped, inner], 1))).movedim(1, -1)


def classify_pixels(model: nn.Module) -> Tensor:
    images = torch.randn(8, 2, 6, 6, dtype=torch.float64)
    return cross_entropy(model(images).flatten(0, -2), torch.randint(3, (8 * 6 * 6,)))


class DiTBlock(nn.Module):
    """Norms without weights, whose scale, shift and gate are made of the condition."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.modulation = nn.Linear(width, 6 * width)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.up = nn.Linear(width, 10)
        self.down = nn.Linear(10, width)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        norm = nn.LayerNorm(x.size(-1), elementwise_affine=False).to(x)
        made = self.modulation(silu(condition))[:, None].chunk(6, -1)
        inner = norm(x) * (1 + made[0]) + made[1]
        heads = self.qkv(inner).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(*heads)
        x = x + made[2] * self.project(attended.transpose(1, 2).flatten(2))
        inner = norm(x) * (1 + made[3]) + made[4]
        return x + made[5] * self.down(gelu(self.up(inner), approximate="tanh"))


class DiT(nn.Module):
    """A diffusion transformer that predicts what was added to patches, under a condition."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Linear(5, 8)
        self.positions = nn.Parameter(torch.randn(4, 8))
        self.condition = nn.Linear(6, 8)
        self.block = DiTBlock(8, 2)
        self.modulation = nn.Linear(8, 16)
        self.out = nn.Linear(8, 5)

    def forward(self, x: Tensor, features: Tensor) -> Tensor:
        condition = self.condition(features)
        x = self.block(self.patches(x) + self.positions, condition)
        shift, scale = self.modulation(silu(condition))[:, None].chunk(2, -1)
        x = nn.functional.layer_norm(x, (8,)) * (1 + scale) + shift
        return self.out(x)


def denoise(model: nn.Module) -> Tensor:
    clean = torch.randn(32, 4, 5, dtype=torch.float64)
    noise = torch.randn(32, 4, 5, dtype=torch.float64)
    condition = torch.randn(32, 6, dtype=torch.float64)
    return (model(clean + noise, condition) - noise).square().mean()


class GraphAttention(nn.Module):
    """A layer of a GAT: what an edge weighs is read off both its ends."""

    def __init__(self, inputs: int, heads: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Linear(inputs, heads * outputs, bias=False)
        self.from_node = nn.Parameter(torch.randn(heads, outputs))
        self.to_node = nn.Parameter(torch.randn(heads, outputs))
        self.bias = nn.Parameter(torch.randn(heads * outputs))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        nodes = self.weight(x).unflatten(-1, self.from_node.shape)
        from_node = (nodes * self.from_node).sum(-1)
        to_node = (nodes * self.to_node).sum(-1)
        scores = leaky_relu(to_node[:, :, None] + from_node[:, None], 0.2)
        weights = scores.masked_fill(~edges[..., None], -torch.inf).softmax(2)
        return torch.einsum("bijh,bjho->biho", weights, nodes).flatten(2) + self.bias


class GAT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = GraphAttention(5, 2, 4)
        self.second = GraphAttention(8, 1, 3)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        return self.second(nn.functional.elu(self.first(x, edges)), edges)


def classify_nodes(model: nn.Module) -> Tensor:
    nodes = torch.randn(16, 6, 5, dtype=torch.float64)
    edges = (torch.rand(16, 6, 6) < 0.5) | torch.eye(6, dtype=torch.bool)
    return cross_entropy(model(nodes, edges).flatten(0, 1), torch.randint(3, (96,)))


class Pairs(nn.Module):
    """Logits of which text of a batch belongs to which of its images."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, images: Tensor) -> Tensor:
        return self.model(input_ids=tokens, pixel_values=images).logits_per_image


def match_pairs(model: nn.Module) -> Tensor:
    tokens = torch.randint(1, 10, (12, 5))
    tokens[:, -1] = 10
    images = torch.randn(12, 3, 4, 4, dtype=torch.float64)
    logits, labels = model(tokens, images), torch.arange(12)
    return cross_entropy(logits, labels) + cross_entropy(logits.t(), labels)


def adapted(base: Callable[[], nn.Module], config: Callable[[], Any]) -> Callable[[], nn.Module]:
    """A model with adapters of peft, which alone are trained, at a generic point."""

    def make() -> nn.Module:
        model = peft.get_peft_model(base(), config())
        for parameter in model.parameters():
            if parameter.requires_grad:
                nn.init.normal_(parameter)
        return model

    return make
