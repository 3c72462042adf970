"""Symmetries of model families as `transformers` and `timm` ship them, found without being told anything.

Small models with random weights, float64. Prints the table of docs/families.md.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import ddc


class Float64(TorchFunctionMode):
    """Gives float64 where float32 is asked for.

    Models of transformers compute norms, rotary angles and the loss in float32, whatever the type of
    their weights: a guard for half precision, which rounds to 1e-7 in a float64 model.
    """

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is Tensor.float:
            return args[0].double()

        def wider(value: Any) -> Any:
            return torch.float64 if value is torch.float32 else value

        return function(*map(wider, args), **{k: wider(v) for k, v in (kwargs or {}).items()})


@dataclass
class Family:
    name: str
    make: Callable[[], nn.Module]
    loss: Callable[[nn.Module], Tensor]
    expected: dict[str, int] = field(default_factory=dict)
    seed: int = 0


def language(model: nn.Module) -> Tensor:
    tokens = torch.randint(model.config.vocab_size, (32, 8))
    with Float64():
        return model(input_ids=tokens, labels=tokens).loss


def classify_tokens(model: nn.Module) -> Tensor:
    tokens = torch.randint(1, model.config.vocab_size, (4, 6))
    types = torch.randint(2, (4, 6))
    labels = torch.randint(model.config.num_labels, (4,))
    return model(input_ids=tokens, token_type_ids=types, labels=labels).loss


def classify_images(model: nn.Module) -> Tensor:
    images = torch.randn(6, 3, 8, 8, dtype=torch.float64)
    labels = torch.randint(3, (6,))
    out = model(images)
    return nn.functional.cross_entropy(getattr(out, "logits", out), labels)


COMMON = dict(vocab_size=11, use_cache=False, initializer_range=0.35, bos_token_id=None, eos_token_id=None)
LLAMA = dict(
    COMMON, hidden_size=8, intermediate_size=10, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, head_dim=4, max_position_embeddings=8, pad_token_id=None,
)


def causal(model: str, **config) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        cls = getattr(transformers, f"{model}ForCausalLM", None) or getattr(transformers, f"{model}LMHeadModel")
        cfg = getattr(transformers, f"{model}Config")(**config)
        return cls(cfg)
    return make


def timm_vit() -> nn.Module:
    import timm
    return timm.models.VisionTransformer(
        img_size=8, patch_size=4, embed_dim=12, depth=2, num_heads=3, mlp_ratio=1.5, num_classes=3,
        init_values=0.1)


FAMILIES = [
    Family("Llama", causal("Llama", **LLAMA), language),
    Family("Mistral", causal("Mistral", **LLAMA, sliding_window=4), language),
    Family("Qwen2", causal("Qwen2", **{**LLAMA, "num_attention_heads": 2, "num_key_value_heads": 1}), language),
    Family("Qwen3", causal("Qwen3", **LLAMA), language),
    Family("Gemma", causal("Gemma", **{**LLAMA, "pad_token_id": None}), language),
    Family("GPT-2", causal("GPT2", **COMMON, n_embd=8, n_layer=2, n_head=2, n_inner=10, n_positions=8,
                           resid_pdrop=0, embd_pdrop=0, attn_pdrop=0), language),
    Family("GPT-NeoX", causal("GPTNeoX", **{**COMMON, "vocab_size": 31}, hidden_size=8, intermediate_size=10, num_hidden_layers=2,
                              num_attention_heads=2, rotary_pct=0.5, max_position_embeddings=8), language),
    Family("GPT-J", causal("GPTJ", **{**COMMON, "vocab_size": 31}, n_embd=8, n_layer=2, n_head=2, n_inner=10, rotary_dim=2, n_positions=8), language),
    Family("OPT", causal("OPT", vocab_size=11, use_cache=False, init_std=0.35, hidden_size=8, ffn_dim=10, num_hidden_layers=2, num_attention_heads=2,
                         max_position_embeddings=8, word_embed_proj_dim=8, pad_token_id=None, dropout=0.0), language),
    Family("Phi-3", causal("Phi3", **{**LLAMA, "num_attention_heads": 2, "num_key_value_heads": 1}), language),
    Family("ViT", lambda: transformers.ViTForImageClassification(transformers.ViTConfig(
        hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=14, image_size=8, patch_size=4, num_labels=3)), classify_images),
    Family("BERT", lambda: transformers.BertForSequenceClassification(transformers.BertConfig(
        vocab_size=13, hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=14,
        max_position_embeddings=6, num_labels=3)), classify_tokens),
    Family("timm ViT", timm_vit, classify_images),
]


def build(family: Family) -> nn.Module:
    torch.manual_seed(family.seed)
    return family.make().double().eval()


def pair_difference(family, model, group, optimizer, steps=20, lr=1e-2):
    one, two = copy.deepcopy(model), copy.deepcopy(model)
    group.random_element(seed=1, size=0.5).apply_(two)
    losses = []
    for copied in (one, two):
        if issubclass(optimizer, torch.optim.AdamW):
            trainer = optimizer(copied.parameters(), lr=lr)
        else:
            trainer = optimizer(copied.named_parameters(), group, lr=lr)
        curve = []
        for step in range(steps + 1):
            torch.manual_seed(step)
            loss = family.loss(copied)
            curve.append(loss.detach())
            trainer.zero_grad()
            loss.backward()
            trainer.step()
        losses.append(torch.stack(curve))
    return ((losses[0] - losses[1]).abs() / losses[0].abs()).max().item()
