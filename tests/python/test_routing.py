"""DDCMuon by itself: which tensors Muon steps and which Adam, on model families as they are shipped."""

import copy
import pathlib
import sys

import pytest
import torch
from torch import Tensor, nn

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "examples" / "python"))

import ddc  # noqa: E402
import families  # noqa: E402
from ddc.routing import roles_of  # noqa: E402


def expected(name: str, tensor: Tensor, model: nn.Module) -> bool:
    """Whether Adam is to step the tensor, by what a reader of the model's code knows."""
    modules = dict(model.named_modules())
    owner = modules[name.rpartition(".")[0]]
    ends = ("lm_head", "embed_out", "classifier", "head", "score", "decoder", "cls")
    is_output = name.rpartition(".")[0].split(".")[-1] in ends and isinstance(owner, nn.Linear)
    return tensor.dim() < 2 or isinstance(owner, nn.Embedding) or is_output or tensor.shape[0] == 1


@pytest.mark.parametrize("family", families.FAMILIES, ids=lambda family: family.name)
def test_the_routing_of_a_family_is_right(family: families.Family) -> None:
    model = families.build(family)
    roles = discovered_roles(model, family.loss)
    group = ddc.SymmetryGroup.of(model, [])._with_roles(roles)
    optimizer = ddc.DDCMuon(model.named_parameters(), symmetries=group)
    routes = {route.name: route for route in optimizer.routing()}
    named = dict(model.named_parameters())
    assert routes.keys() == named.keys()
    wrong = [
        (name, routes[name].reason)
        for name, tensor in named.items()
        if routes[name].use_adam != expected(name, tensor, model)
    ]
    assert not wrong
    assert all(route.reason for route in optimizer.routing())
    for param_group in optimizer.param_groups:
        for name in param_group["param_names"]:
            assert param_group["use_adam"] == routes[name].use_adam


def discovered_roles(model: nn.Module, loss) -> dict[str, str]:
    """What `ddc.discover` notes, without the search."""
    from ddc.discovery import Evaluation

    with Evaluation(model, loss) as evaluation:
        return roles_of(model, evaluation.output_weights())


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1 = nn.GroupNorm(2, width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.norm2 = nn.GroupNorm(2, width)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x))))))


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.Sequential(Residual(8), Residual(8))
        self.fc = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.blocks(self.stem(x)).mean((2, 3)))


IMAGES = torch.randn(64, 3, 8, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.randint(4, (64,), generator=torch.Generator().manual_seed(1))


def resnet_loss(model: nn.Module) -> Tensor:
    chosen = torch.randint(64, (32,))
    images = IMAGES[chosen].to(next(model.parameters()).dtype)
    return nn.functional.cross_entropy(model(images), LABELS[chosen])


def test_convolutions_are_matrices_unless_they_are_depthwise() -> None:
    torch.manual_seed(0)
    model = ResNet()
    group = ddc.discover(model, resnet_loss)
    routes = {r.name: r for r in ddc.DDCMuon(model.named_parameters(), symmetries=group).routing()}
    assert not routes["stem.weight"].use_adam
    assert "convolution" in routes["blocks.0.conv1.weight"].reason
    assert routes["blocks.0.conv2.weight"].reason.startswith("depthwise")
    assert routes["fc.weight"].reason == "output layer"
    assert group.roles == ddc.SymmetryGroup.from_json(group.to_json()).roles


def test_names_decide_where_nothing_else_is_known() -> None:
    tensors = {
        "model.embed_tokens.weight": torch.ones(9, 4),
        "transformer.wte.weight": torch.ones(9, 4),
        "lm_head.weight": torch.ones(9, 4),
        "layers.0.mlp.up_proj.weight": torch.ones(8, 4),
        "pos_table": torch.ones(1, 9, 4),
        "experts.up": torch.ones(3, 8, 4),
    }
    optimizer = ddc.DDCMuon([(n, nn.Parameter(t)) for n, t in tensors.items()])
    by_adam = {route.name for route in optimizer.routing() if route.use_adam}
    assert by_adam == {*list(tensors)[:3], "pos_table"}
    text = str(optimizer.routing())
    assert "lm_head.weight" in text
    assert "named like an output" in text


def test_what_is_said_goes_before_what_is_known() -> None:
    model = ResNet()
    optimizer = ddc.DDCMuon(model.named_parameters(), use_adam=["stem.*"])
    routes = {route.name: route for route in optimizer.routing()}
    assert routes["stem.weight"].use_adam
    assert not routes["fc.weight"].use_adam
    assert routes["fc.bias"].use_adam  # a vector: Muon cannot
    chosen = ddc.DDCMuon(model.named_parameters(), use_adam=lambda name, t: t.dim() == 4)
    assert {r.name for r in chosen.routing() if not r.use_adam} == {"fc.weight"}


def test_a_vector_that_is_left_to_muon_is_refused_with_advice() -> None:
    vector = nn.Parameter(torch.ones(3))
    with pytest.raises(ValueError, match="'v' of shape .3. is no matrix.*use_adam"):
        ddc.DDCMuon([{"params": [("v", vector)], "use_adam": False}])


@pytest.mark.parametrize("name", ["GPT-2", "Llama", "ResNet"])
def test_it_trains_with_no_further_arguments(name: str) -> None:
    torch.manual_seed(0)
    if name == "ResNet":
        model, loss = ResNet(), resnet_loss
    else:
        family = next(f for f in families.FAMILIES if f.name.startswith(name))
        model, loss = families.build(family).float(), family.loss
    group = ddc.discover(model, loss)

    def trained(make) -> list[float]:
        copied = copy.deepcopy(model)
        optimizer = make(copied)
        losses = []
        for _ in range(40):
            torch.manual_seed(0)
            copied.zero_grad()
            value = loss(copied)
            value.backward()
            optimizer.step()
            losses.append(value.item())
        return losses

    ours = trained(lambda m: ddc.DDCMuon(m.named_parameters(), symmetries=group))
    adamw = trained(lambda m: torch.optim.AdamW(m.parameters(), lr=1e-3))
    assert ours[-1] < 0.9 * ours[0]
    assert ours[-1] < adamw[-1]
