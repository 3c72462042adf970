"""Symmetries of model families as `transformers` and `timm` ship them, found without being told anything.

Small models with random weights, float64. Prints the table of docs/families.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import transformers
from torch import Tensor, nn


@dataclass
class Family:
    name: str
    make: Callable[[], nn.Module]
    loss: Callable[[nn.Module], Tensor]


def language(model: nn.Module) -> Tensor:
    tokens = torch.randint(model.config.vocab_size, (4, 6))
    return model(input_ids=tokens, labels=tokens).loss


def classify_tokens(model: nn.Module) -> Tensor:
    tokens = torch.randint(1, model.config.vocab_size, (32, 6))
    types = torch.randint(2, (32, 6))
    labels = torch.randint(model.config.num_labels, (32,))
    return model(input_ids=tokens, token_type_ids=types, labels=labels).loss


def classify_images(model: nn.Module) -> Tensor:
    images = torch.randn(32, 3, 4, 4, dtype=torch.float64)
    labels = torch.randint(3, (32,))
    out = model(images)
    return nn.functional.cross_entropy(getattr(out, "logits", out), labels)


COMMON = dict(vocab_size=13, use_cache=False)
LLAMA = dict(
    COMMON, hidden_size=12, intermediate_size=14, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=16, pad_token_id=None, bos_token_id=None, eos_token_id=None,
)

# At this width weights of the usual 0.02 would make signals too small to tell directions that no batch
# sees from those that hardly matter. And behind norms with the usual eps of 1e-12 the scale of the
# residual stream would hardly matter, though it is no symmetry.
WIDTH = 8
ENCODER = dict(
    hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=2, intermediate_size=10, num_labels=3,
    initializer_range=WIDTH**-0.5, layer_norm_eps=1e-5,
)


def causal(model: str, **config) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        cls = getattr(transformers, f"{model}ForCausalLM")
        cfg = getattr(transformers, f"{model}Config")(**config)
        return cls(cfg)
    return make


def timm_vit() -> nn.Module:
    from timm_on_cpu import import_timm

    timm = import_timm()
    model = timm.models.VisionTransformer(
        img_size=4, patch_size=2, embed_dim=8, depth=2, num_heads=2, mlp_ratio=1.25, num_classes=3,
        init_values=0.5)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=WIDTH**-0.5)
    return model


FAMILIES = [
    Family("Llama", causal("Llama", **LLAMA), language),
    Family("Mistral", causal("Mistral", **LLAMA, sliding_window=4, head_dim=4), language),
    Family("Qwen2", causal("Qwen2", **LLAMA), language),
    Family("Qwen3", causal("Qwen3", **LLAMA, head_dim=4), language),
    Family("Gemma", causal("Gemma", **{**LLAMA, "pad_token_id": 0}, head_dim=4), language),
    Family("GPT-2", causal("GPT2", **COMMON, n_embd=12, n_layer=2, n_head=3, n_inner=14, n_positions=8,
                           resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, bos_token_id=None, eos_token_id=None), language),
    Family("GPT-NeoX", causal("GPTNeoX", **COMMON, hidden_size=16, intermediate_size=14, num_hidden_layers=2,
                              num_attention_heads=2, rotary_pct=0.5, max_position_embeddings=16), language),
    Family("GPT-J", causal("GPTJ", **COMMON, n_embd=16, n_layer=2, n_head=2, n_inner=14, rotary_dim=4, n_positions=16), language),
    Family("OPT", causal("OPT", **{**COMMON}, hidden_size=12, ffn_dim=14, num_hidden_layers=2, num_attention_heads=3,
                         max_position_embeddings=6, word_embed_proj_dim=12, pad_token_id=1, dropout=0.0), language),
    Family("Phi-3", causal("Phi3", **{**LLAMA, "pad_token_id": None}), language),
    Family("ViT", lambda: transformers.ViTForImageClassification(transformers.ViTConfig(
        **ENCODER, image_size=4, patch_size=2)), classify_images),
    Family("BERT", lambda: transformers.BertForSequenceClassification(transformers.BertConfig(
        **ENCODER, vocab_size=13, max_position_embeddings=6)), classify_tokens),
    Family("timm ViT", timm_vit, classify_images),
]


def build(family: Family, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return family.make().double().eval()
