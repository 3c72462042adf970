"""The symmetries of a model from those of a narrow twin."""

from __future__ import annotations

from collections import Counter
from typing import Any

import ddc
import pytest
import torch
from torch import Tensor, nn

transformers = pytest.importorskip("transformers")

COMMON = dict(
    vocab_size=23, bos_token_id=None, eos_token_id=None, pad_token_id=None, use_cache=False
)


def next_token(model: nn.Module) -> Tensor:
    tokens = torch.randint(23, (8, 9))
    logits = model(input_ids=tokens[:, :-1]).logits
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def made(kind: str, **sizes: Any) -> nn.Module:
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**COMMON | sizes)
    return getattr(transformers, f"{kind}{'LMHeadModel' if kind == 'GPT2' else 'ForCausalLM'}")(
        config
    ).double()


def llama(width: int, heads: int, groups: int, head: int, inner: int, layers: int = 2) -> nn.Module:
    return made(
        "Llama",
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=groups,
        head_dim=head,
        initializer_range=width**-0.5,
    )


def gpt2(width: int, heads: int, layers: int = 2) -> nn.Module:
    return made(
        "GPT2",
        n_embd=width,
        n_head=heads,
        n_layer=layers,
        n_positions=12,
        attn_pdrop=0.0,
        embd_pdrop=0.0,
        resid_pdrop=0.0,
        initializer_range=width**-0.5,
    )


def mixtral(width: int, heads: int, inner: int, experts: int) -> nn.Module:
    return made(
        "Mixtral",
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        num_local_experts=experts,
        num_experts_per_tok=experts,
        head_dim=4,
        initializer_range=width**-0.5,
        output_router_logits=False,
        experts_implementation="eager",  # the grouped product does not take float64
    )


def found(group: ddc.SymmetryGroup) -> dict[str, int]:
    return dict(Counter(f"{gauge.kind} {gauge.group}" for gauge in group.gauges))


TWINS = {
    "llama": lambda: (llama(8, 4, 2, 4, 10), llama(24, 6, 3, 4, 20)),
    "llama, other heads": lambda: (llama(8, 4, 2, 4, 10), llama(16, 8, 2, 6, 20)),
    "gpt2": lambda: (gpt2(8, 2), gpt2(24, 3)),
    "mixtral": lambda: (mixtral(8, 2, 10, 3), mixtral(16, 4, 12, 4)),
}


@pytest.mark.parametrize("name", TWINS)
def test_a_twin_gives_what_discovery_finds(name: str) -> None:
    narrow, wide = TWINS[name]()
    before = [parameter.detach().clone() for parameter in wide.parameters()]
    calls = 0

    def loss(model: nn.Module) -> Tensor:
        nonlocal calls
        calls += 1
        return next_token(model)

    group = ddc.discover(narrow, next_token).widen(wide, loss)
    by_twin, calls = calls, 0
    searched = ddc.discover(wide, loss)

    assert found(group) == found(searched)
    assert group.dimension == searched.dimension
    assert group.residual <= group.tolerance
    assert all(gauge.residual <= gauge.tolerance for gauge in group.gauges)
    for now, was in zip(wide.parameters(), before, strict=True):
        assert torch.equal(now, was)
    assert by_twin < 2 * calls


def test_a_twin_may_have_fewer_layers() -> None:
    group = ddc.discover(llama(8, 4, 2, 4, 10, layers=3), next_token)
    deep = llama(16, 4, 2, 4, 12, layers=7)
    widened = group.widen(deep, next_token)

    assert found(widened) == found(ddc.discover(deep, next_token))
    assert widened.residual <= widened.tolerance


def test_nothing_is_believed_of_a_twin() -> None:
    narrow = llama(8, 4, 2, 4, 10)
    wide = llama(16, 4, 2, 4, 12)
    wide.lm_head.weight = wide.model.embed_tokens.weight
    wide.model.layers[0].mlp.down_proj.register_forward_pre_hook(lambda _, x: (x[0].tanh(),))
    group = ddc.discover(narrow, next_token).widen(wide, next_token)

    names = {gauge.name for gauge in group.gauges}
    assert found(group)["glu rescale (R+)^12"] == 1
    assert not any("layers.0.mlp" in name and "rescale" in name for name in names)
    assert not any(gauge.kind == "residual rotation" for gauge in group.gauges)
    assert group.residual <= group.tolerance


def test_another_model_is_no_twin() -> None:
    group = ddc.discover(llama(8, 4, 2, 4, 10), next_token)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()

    def loss(model: nn.Module) -> Tensor:
        outputs = model(torch.randn(16, 3, dtype=torch.float64))
        return nn.functional.cross_entropy(outputs, torch.randint(2, (16,)))

    widened = group.widen(model, loss)
    assert len(widened) == 0
    assert any("does not have" in note for note in widened.notes)
