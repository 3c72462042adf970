"""Symmetries of model families as `transformers` and `timm` ship them, found from a loss alone.

Small models with random weights, float64. Prints the table of docs/reference/families.md:

    python examples/python/families.py [--write docs/reference/families.md] [names of families]
"""

from __future__ import annotations

import argparse
import copy
import pathlib
import re
import resource
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ddc
import peft
import torch
import transformers
from ddc._precision import Float64
from family_models import (
    GAT,
    DiT,
    Encoder,
    Pairs,
    Recurrent,
    UNet,
    adapted,
    classify_nodes,
    classify_pixels,
    convnext,
    denoise,
    match_pairs,
    resnet,
    trained_resnet,
)
from timm_on_cpu import import_timm
from torch import Tensor, nn

STEPS = 20


@dataclass
class Family:
    """A model family.

    Attributes
    ----------
    name : str
    make : callable
        Returns the model, with random weights.
    loss : callable
        Loss of the model, on a batch that it draws.
    expected : dict
        How many gauges there are of which kind and group: ``{"VO linear GL(4)^2": 2}``.
    missing : str
        Which directions that no batch sees are along no gauge, which parameters have no gradient,
        and why.
    of_the_point : int
        How many directions that no batch sees depend on the weights: kernels of layers that are narrower
        than what they read. They are along no orbit of a group, and counted apart.
    seed : int
        Seed of the weights.
    training : bool
        Norms take means and variances of the batch.
    """

    name: str
    make: Callable[[], nn.Module]
    loss: Callable[[nn.Module], Tensor]
    expected: dict[str, int] = field(default_factory=dict)
    missing: str = ""
    of_the_point: int = 0
    seed: int = 0
    training: bool = False


def next_token(model: nn.Module) -> Tensor:
    tokens = torch.randint(model.config.vocab_size, (32, 9))
    logits = model(input_ids=tokens[:, :-1]).logits
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


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


def causal(name: str, **config: Any) -> Callable[[], nn.Module]:
    """A language model of transformers by the stem of its classes' names."""

    def make() -> nn.Module:
        head = "LMHeadModel" if name == "GPT2" else "ForCausalLM"
        cls = getattr(transformers, name + head)
        return cls(getattr(transformers, name + "Config")(**config))

    return make


# With the usual 0.02 a model this narrow would have attention scores of 1e-4 and little to see.
SPREAD = 8**-0.5
DECODER: dict[str, Any] = dict(
    vocab_size=11, bos_token_id=None, eos_token_id=None, pad_token_id=None, use_cache=False
)
LLAMA = DECODER | dict(
    hidden_size=8,
    intermediate_size=10,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=4,
    max_position_embeddings=8,
    initializer_range=SPREAD,
)
GPT = DECODER | dict(
    n_embd=8, n_inner=10, n_layer=2, n_head=2, n_positions=8, initializer_range=SPREAD
)
# In parallel branches the first feed-forward part sees single tokens and nothing else: it takes
# many to tell its units apart.
MANY_TOKENS = dict(vocab_size=31)
# Behind norms with the usual eps of 1e-12 the scale of a residual stream would hardly matter, and count
# among the directions that no batch sees. But it is no symmetry.
ENCODER: dict[str, Any] = dict(
    hidden_size=8,
    intermediate_size=10,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_labels=3,
    initializer_range=SPREAD,
    layer_norm_eps=1e-5,
)


def hf_vit() -> nn.Module:
    config = transformers.ViTConfig(**ENCODER, image_size=4, patch_size=2)
    return transformers.ViTForImageClassification(config)


def hf_bert() -> nn.Module:
    config = transformers.BertConfig(**ENCODER, vocab_size=13, max_position_embeddings=6)
    return transformers.BertForSequenceClassification(config)


def timm_vit() -> nn.Module:
    model = import_timm().models.VisionTransformer(
        img_size=4,
        patch_size=2,
        embed_dim=8,
        depth=2,
        num_heads=2,
        mlp_ratio=1.25,
        num_classes=3,
        init_values=0.5,
    )
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=SPREAD)
    return model


TWO_HEADS = dict(num_attention_heads=2, num_key_value_heads=2)
SMALL = dict(n_layers=2, n_heads=2, n_layer=2, n_head=2, initializer_range=SPREAD)
MAMBA = dict(
    hidden_size=6,
    state_size=3,
    num_hidden_layers=2,
    expand=1,
    time_step_rank=2,
    initializer_range=SPREAD,
)


def t5() -> nn.Module:
    config = transformers.T5Config(
        vocab_size=11,
        d_model=8,
        d_kv=4,
        d_ff=10,
        num_layers=1,
        num_heads=2,
        tie_word_embeddings=False,
        use_cache=False,
        relative_attention_num_buckets=4,
    )
    return transformers.T5ForConditionalGeneration(config)


def bart() -> nn.Module:
    config = transformers.BartConfig(
        vocab_size=11,
        d_model=8,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=10,
        decoder_ffn_dim=10,
        max_position_embeddings=8,
        init_std=SPREAD,
        use_cache=False,
    )
    return transformers.BartForConditionalGeneration(config)


def translate(model: nn.Module) -> Tensor:
    source, target = torch.randint(2, 11, (32, 5)), torch.randint(2, 11, (32, 6))
    logits = model(input_ids=source, decoder_input_ids=target[:, :-1]).logits
    return nn.functional.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())


def next_of_plain(model: nn.Module) -> Tensor:
    tokens = torch.randint(9, (32, 7))
    logits = model(tokens[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def classify_sequences(model: nn.Module) -> Tensor:
    return nn.functional.cross_entropy(model(torch.randint(11, (32, 6))), torch.randint(3, (32,)))


def classify_larger_images(model: nn.Module) -> Tensor:
    images = torch.randn(24, 3, 8, 8, dtype=torch.float64)
    out = model(images)
    return nn.functional.cross_entropy(getattr(out, "logits", out), torch.randint(3, (24,)))


def transcribe(model: nn.Module) -> Tensor:
    sound = torch.randn(32, 3, 8, dtype=torch.float64)
    target = torch.randint(3, 11, (32, 6))
    logits = model(input_features=sound, decoder_input_ids=target[:, :-1]).logits
    return nn.functional.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())


MOE: dict[str, Any] = LLAMA | dict(
    intermediate_size=6, num_experts_per_tok=2, experts_implementation="eager"
)
LATENT = MOE | dict(
    num_attention_heads=2,
    num_key_value_heads=2,
    moe_intermediate_size=6,
    n_routed_experts=4,
    n_group=2,
    topk_group=1,
    n_shared_experts=1,
    first_k_dense_replace=1,
    q_lora_rank=6,
    kv_lora_rank=5,
    qk_rope_head_dim=2,
    qk_nope_head_dim=4,
    v_head_dim=4,
    num_mtp_layers=0,
)
del LATENT["head_dim"]


def gemma3() -> nn.Module:
    config = transformers.Gemma3TextConfig(**LLAMA, query_pre_attn_scalar=4, sliding_window=4)
    return transformers.Gemma3ForCausalLM(config)


def rwkv() -> nn.Module:
    config = transformers.RwkvConfig(
        **DECODER,
        hidden_size=6,
        attention_hidden_size=6,
        intermediate_size=8,
        num_hidden_layers=2,
        context_length=8,
        rescale_every=0,
    )
    model = transformers.RwkvForCausalLM(config)
    for name, parameter in model.named_parameters():
        if parameter.dim() == 2 or "time_decay" in name:
            nn.init.normal_(parameter, std=SPREAD)
    return model


def whisper() -> nn.Module:
    config = transformers.WhisperConfig(
        vocab_size=11,
        d_model=8,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=10,
        decoder_ffn_dim=10,
        num_mel_bins=3,
        max_source_positions=4,
        max_target_positions=6,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        init_std=SPREAD,
        use_cache=False,
    )
    return transformers.WhisperForConditionalGeneration(config)


def clip() -> nn.Module:
    tower = dict(
        hidden_size=8,
        intermediate_size=10,
        num_hidden_layers=2,
        num_attention_heads=2,
        layer_norm_eps=1e-5,
    )
    tokens = dict(
        vocab_size=11, max_position_embeddings=5, bos_token_id=0, pad_token_id=1, eos_token_id=10
    )
    config = transformers.CLIPConfig(
        text_config=tower | tokens,
        vision_config=tower | dict(image_size=4, patch_size=2),
        projection_dim=5,
    )
    model = transformers.CLIPModel(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=SPREAD)
    return Pairs(model)


def swin() -> nn.Module:
    config = transformers.SwinConfig(
        image_size=8,
        patch_size=2,
        embed_dim=8,
        depths=[1, 1],
        num_heads=[2, 4],
        window_size=2,
        mlp_ratio=1.5,
        num_labels=3,
        initializer_range=SPREAD,
    )
    return transformers.SwinForImageClassification(config)


def lora(**options: Any) -> Any:
    return peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj", "down_proj"], **options)


NORM_AND_HEADS = {
    "norm scale (R+)^8": 5,
    "VO linear GL(4)^2": 2,
    "QK plane scale (R+)^4": 2,
    "QK torus SO(2)^4": 2,
}
GATED = {"glu rescale (R+)^10": 2}
UNTIED = {"residual rotation O(8)": 1, "CE row shift R^8": 1}
# Two layers with biases everywhere.
LAYER_NORM = {
    "norm scale (R+)^8": 5,
    "norm shift exchange R^8": 5,
    "norm kernel shift R^10": 2,
    "QK linear GL(4)^2": 2,
    "VO linear GL(4)^2": 2,
    "null shift R^8": 2,
    "value bias exchange R^8": 2,
    "residual mean shift R^8": 2,
    "residual mean shift R^10": 2,
    "residual mean shift R": 4,
    "CE row shift R^8": 1,
    "CE bias shift R": 1,
}
VISION = {
    "norm kernel shift R^3": 1,
    "residual rotation O(7)": 1,
    # The patches' weight; class token and bias of the patches; positions.
    "residual mean shift R^12": 1,
    "residual mean shift R": 6,
    "residual mean shift R^5": 1,
    # The class token and the bias of the patches with the positions.
    "embedding exchange R^16": 1,
}

FAMILIES = [
    Family("Llama", causal("Llama", **LLAMA), next_token, GATED | NORM_AND_HEADS | UNTIED),
    Family(
        "Mistral",
        causal("Mistral", **LLAMA, sliding_window=4),
        next_token,
        GATED | NORM_AND_HEADS | UNTIED,
    ),
    Family("Qwen2", causal("Qwen2", **LLAMA), next_token, GATED | NORM_AND_HEADS | UNTIED),
    Family(
        "Qwen3",
        causal("Qwen3", **LLAMA),
        next_token,
        GATED
        | UNTIED
        | {"norm scale (R+)^8": 5, "VO linear GL(4)^2": 2, "diagonal linear (R+)^2": 2},
    ),
    # The last norm is read by the embedding.
    Family(
        "Gemma",
        causal("Gemma", **LLAMA),
        next_token,
        GATED | NORM_AND_HEADS | {"norm scale (R+)^8": 4},
    ),
    Family(
        "GPT-2",
        causal("GPT2", **GPT),
        next_token,
        {
            "norm scale (R+)^8": 4,
            "norm shift exchange R^8": 4,
            "norm kernel shift R^24": 2,
            "norm kernel shift R^10": 2,
            "QK linear GL(4)^2": 2,
            "VO linear GL(4)^2": 2,
            "null shift R^8": 2,
            "value bias exchange R^8": 2,
            "residual mean shift R^8": 3,
            "residual mean shift R^10": 2,
            "residual mean shift R": 4,
            "embedding exchange R^8": 1,
        },
    ),
    Family(
        "GPT-NeoX",
        causal("GPTNeoX", **LLAMA | MANY_TOKENS | dict(num_attention_heads=2, rotary_pct=0.5)),
        next_token,
        {
            "norm scale (R+)^8": 5,
            "norm shift exchange R^8": 4,
            "norm kernel shift R^24": 2,
            "norm kernel shift R^10": 2,
            "QK plane scale (R+)^2": 2,
            "QK torus SO(2)^2": 2,
            "QK linear GL(2)^2": 2,
            "VO linear GL(4)^2": 2,
            "null shift R^4": 2,
            "value bias exchange R^8": 2,
            "residual mean shift R^31": 1,
            "residual mean shift R^8": 2,
            "residual mean shift R^10": 2,
            "residual mean shift R": 4,
            "CE row shift R^8": 1,
        },
        missing="21 rotations of the residual stream and 8 shifts of the last norm, whose reader "
        "`lm_head` has no bias: they would have to move the norm's shift along with the weights. "
        "7 exchanges per layer between the output biases of the parallel branches: optimizers bind "
        "one shift of an axis, and the shift of each bias's mean is bound.",
    ),
    Family(
        "GPT-J",
        causal("GPTJ", **GPT | MANY_TOKENS, rotary_dim=2),
        next_token,
        {
            "norm scale (R+)^8": 3,
            "norm shift exchange R^8": 1,
            "norm kernel shift R^10": 2,
            "norm kernel shift R^31": 1,
            "QK plane scale (R+)^2": 2,
            "QK torus SO(2)^2": 2,
            "QK linear GL(2)^2": 2,
            "VO linear GL(4)^2": 2,
            "residual mean shift R^31": 1,
            "residual mean shift R^8": 2,
            "residual mean shift R^10": 2,
            "residual mean shift R": 2,
            "CE row shift R^8": 1,
            "CE bias shift R": 1,
        },
        missing="Attention has no biases, and the shift of the norm before it acts as theirs: 21 "
        "rotations of the residual stream, and per layer 8 shifts of the norm, 4 of constant keys "
        "and 8 of constant values would have to move that shift along with the weights.",
    ),
    Family(
        "OPT",
        causal(
            "OPT",
            **DECODER,
            hidden_size=8,
            word_embed_proj_dim=8,
            ffn_dim=10,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=8,
            init_std=SPREAD,
        ),
        next_token,
        {
            "norm scale (R+)^8": 4,
            "norm shift exchange R^8": 4,
            "norm kernel shift R^8": 6,
            "norm kernel shift R^10": 2,
            "relu rescale (R+)^10": 2,
            "QK linear GL(4)^2": 2,
            "VO linear GL(4)^2": 2,
            "null shift R^8": 2,
            "value bias exchange R^8": 2,
            "residual mean shift R^8": 2,
            "residual mean shift R^10": 3,
            "residual mean shift R": 4,
            "embedding exchange R^8": 1,
        },
        missing="They are the first two rows of the positions, which OPT skips.",
        # With the first weights one unit of a ReLU is hardly ever on.
        seed=1,
    ),
    Family(
        "Phi-3",
        causal("Phi3", **LLAMA | dict(num_attention_heads=2, num_key_value_heads=1)),
        next_token,
        GATED
        | UNTIED
        | {
            "norm scale (R+)^8": 5,
            "VO linear GL(4)": 2,
            "QK plane scale (R+)^2": 2,
            "QK torus SO(2)^2": 2,
        },
    ),
    Family("ViT", hf_vit, classify_images, LAYER_NORM | VISION | {"norm kernel shift R^8": 6}),
    Family(
        "BERT",
        hf_bert,
        classify_tokens,
        LAYER_NORM
        | {
            # The residual stream goes on from the other norms.
            "norm scale (R+)^8": 1,
            "norm kernel shift R^8": 7,
            "residual mean shift R^13": 1,
            "residual mean shift R^6": 1,
            "residual mean shift R^2": 1,
            # Between three tables.
            "embedding exchange R^16": 1,
        },
        missing="They are the row of the padding token, but for its mean.",
    ),
    Family(
        "timm ViT",
        timm_vit,
        classify_images,
        LAYER_NORM | VISION | {"layer scale (R+)^8": 4, "norm kernel shift R^24": 2},
    ),
]


# Wider than what is tested at every change: `pytest -m long` compares these.
MORE = [
    Family(
        "Gemma 2",
        causal("Gemma2", **LLAMA, query_pre_attn_scalar=4),
        next_token,
        {
            "glu rescale (R+)^10": 2,
            "norm scale (R+)^8": 4,
            "VO linear GL(4)^2": 2,
            "QK plane scale (R+)^4": 2,
            "QK torus SO(2)^4": 2,
        },
    ),
    Family(
        "Mamba",
        causal("Mamba", **DECODER | MAMBA),
        next_token,
        {
            "VO linear GL(2)": 2,
            "norm scale (R+)^6": 2,
            "relu rescale (R+)^6": 2,
            "relu rescale (R+)^3": 2,
        },
        missing="One scale per layer goes from all of C and D to the output: as a whole, beside one "
        "of each channel.",
    ),
    Family(
        "T5",
        t5,
        translate,
        {
            "QK linear GL(4)^2": 3,
            "VO linear GL(4)^2": 3,
            "relu rescale (R+)^10": 2,
            "norm scale (R+)^8": 6,
            "QK plane scale R+": 2,
            "residual mean shift R^2": 2,
        },
        missing="They are a bucket of distances in each of the two tables, which no two of so few positions "
        "have.",
    ),
    Family(
        "RNN",
        lambda: Recurrent(nn.RNN),
        next_of_plain,
        {
            "QK linear GL(5)": 1,
            "CE row shift R^6": 1,
            "CE bias shift R": 1,
            "bias exchange R^6": 1,
            "embedding exchange R^5": 1,
        },
    ),
    Family(
        "LSTM",
        lambda: Recurrent(nn.LSTM),
        next_of_plain,
        {
            "QK linear GL(5)": 1,
            "CE row shift R^6": 1,
            "CE bias shift R": 1,
            "bias exchange R^24": 1,
            "embedding exchange R^5": 1,
        },
    ),
    Family(
        "GRU",
        lambda: Recurrent(nn.GRU),
        next_of_plain,
        {
            "QK linear GL(5)": 1,
            "CE row shift R^6": 1,
            "CE bias shift R": 1,
            "bias exchange R^12": 1,
            "embedding exchange R^5": 1,
        },
    ),
    Family(
        "nn.TransformerEncoder, norm first",
        lambda: Encoder(norm_first=True),
        classify_sequences,
        {
            "norm kernel shift R^24": 2,
            "norm kernel shift R^10": 2,
            "norm kernel shift R^3": 1,
            "norm shift exchange R^8": 5,
            "residual rotation O(7)": 1,
            "QK linear GL(4)^2": 2,
            "VO linear GL(4)^2": 2,
            "relu rescale (R+)^10": 2,
            "norm scale (R+)^8": 5,
            "null shift R^8": 2,
            "residual mean shift R^6": 1,
            "residual mean shift R^11": 1,
            "residual mean shift R^8": 2,
            "residual mean shift R": 4,
            "residual mean shift R^10": 2,
            "CE row shift R^8": 1,
            "CE bias shift R": 1,
            "embedding exchange R^8": 1,
            "value bias exchange R^8": 2,
        },
    ),
    Family(
        "nn.TransformerEncoder, norm last",
        lambda: Encoder(norm_first=False),
        classify_sequences,
        {
            "norm kernel shift R^3": 1,
            "norm kernel shift R^10": 2,
            "norm kernel shift R^24": 1,
            "norm shift exchange R^8": 4,
            "QK linear GL(4)^2": 2,
            "VO linear GL(4)^2": 2,
            "relu rescale (R+)^10": 2,
            "norm scale (R+)^8": 1,
            "null shift R^8": 2,
            "residual mean shift R^8": 2,
            "residual mean shift R": 4,
            "residual mean shift R^10": 2,
            "CE row shift R^8": 1,
            "CE bias shift R": 1,
            "value bias exchange R^8": 2,
            "embedding exchange R^8": 2,
        },
        of_the_point=4,
        missing="The 4 are there for few tokens and classes alone, and not with 41 tokens or 9 classes. "
        "8 add a vector to all tokens and take it back behind the first attention: from the output's bias, "
        "and the biases of queries, keys and values. The search looks for readers or for what is added, "
        "not for both.",
    ),
    Family(
        "ResNet, eval",
        resnet,
        classify_larger_images,
        {
            "layer scale (R+)^4": 5,
            "relu rescale (R+)^4": 3,
            "CE row shift R^4": 1,
            "CE bias shift R": 1,
        },
    ),
    Family(
        "ConvNeXt",
        convnext,
        classify_larger_images,
        {
            "norm kernel shift R^12": 2,
            "residual mean shift R^12": 1,
            "residual mean shift R": 3,
            "norm kernel shift R^3": 1,
            "norm shift exchange R^6": 3,
            "layer scale (R+)^6": 2,
            "norm scale (R+)^6": 3,
            "CE row shift R^6": 1,
            "CE bias shift R": 1,
        },
    ),
    Family(
        "Mixtral",
        causal("Mixtral", **MOE, num_local_experts=3),
        next_token,
        {
            "residual rotation O(8)": 1,
            "glu rescale (R+)^18": 2,
            "norm scale (R+)^8": 5,
            "VO linear GL(4)^2": 2,
            "QK plane scale (R+)^4": 2,
            "QK torus SO(2)^4": 2,
            "residual mean shift R^8": 2,
            "CE row shift R^8": 1,
        },
    ),
    Family(
        "Qwen3-MoE",
        causal("Qwen3Moe", **MOE, num_experts=3, moe_intermediate_size=6, norm_topk_prob=True),
        next_token,
        {
            "residual rotation O(8)": 1,
            "glu rescale (R+)^18": 2,
            "norm scale (R+)^8": 5,
            "VO linear GL(4)^2": 2,
            "diagonal linear (R+)^2": 2,
            "residual mean shift R^8": 2,
            "CE row shift R^8": 1,
        },
    ),
    Family(
        "OLMoE",
        causal("Olmoe", **MOE | TWO_HEADS, num_experts=3),
        next_token,
        {
            "residual rotation O(8)": 1,
            "VO linear GL(4)^2": 2,
            "glu rescale (R+)^18": 2,
            "norm scale (R+)^8": 5,
            "diagonal linear (R+)^4": 2,
            "residual mean shift R^8": 2,
            "CE row shift R^8": 1,
        },
    ),
    Family(
        "DeepSeek-V3",
        causal("DeepseekV3", **LATENT),
        next_token,
        {
            "residual rotation O(8)": 1,
            "residual rotation O(6)": 2,
            "residual rotation O(5)": 2,
            "QK linear GL(4)": 4,
            "VO linear GL(4)^2": 2,
            "glu rescale (R+)^24": 1,
            "norm scale (R+)^8": 5,
            "norm scale (R+)^6": 2,
            "glu rescale (R+)^6": 2,
            "norm scale (R+)^5": 2,
            "CE row shift R^8": 1,
        },
        missing="4 are turns and scales of the rotary part of keys, which is one for all heads, "
        "with that of the queries: planes at places that the search does not look at "
        "together. 16 are in the first layer, and were not traced.",
    ),
    Family(
        "Gemma 3",
        gemma3,
        next_token,
        {
            "glu rescale (R+)^10": 2,
            "norm scale (R+)^8": 4,
            "VO linear GL(4)^2": 2,
            "diagonal linear (R+)^2": 2,
        },
    ),
    Family(
        "Mamba-2",
        causal(
            "Mamba2",
            **DECODER,
            hidden_size=6,
            state_size=3,
            num_hidden_layers=2,
            expand=1,
            num_heads=2,
            head_dim=3,
            n_groups=1,
            chunk_size=4,
            initializer_range=SPREAD,
        ),
        next_token,
        {
            "residual rotation O(6)": 1,
            "norm scale (R+)^6": 5,
            "glu rescale (R+)^9": 2,
            "glu rescale (R+)^2": 2,
            "CE row shift R^6": 1,
        },
        missing="One channel per layer of twelve that scale alike: pieces of nine and of two were found.",
    ),
    Family(
        "RWKV",
        rwkv,
        next_token,
        {
            "relu rescale (R+)^8": 2,
            "norm scale (R+)^6": 5,
            "glu rescale (R+)^6": 2,
            "residual mean shift R^11": 1,
            "residual mean shift R": 1,
            "residual mean shift R^6": 2,
            "CE row shift R^6": 1,
        },
        missing="11 scales of the embedding's rows, which the norm behind it forgets but for its eps "
        "(1e-5), and 6 shifts of the last norm, whose reader `head` has no bias: they would "
        "have to move the norm's shift along with the weights.",
    ),
    Family(
        "BART",
        bart,
        translate,
        {
            "norm kernel shift R^8": 9,
            "norm kernel shift R^10": 2,
            "norm shift exchange R^8": 6,
            "QK linear GL(4)^2": 3,
            "VO linear GL(4)^2": 3,
            "norm scale (R+)^8": 1,
            "residual mean shift R^10": 4,
            "null shift R^8": 3,
            "residual mean shift R^8": 3,
            "residual mean shift R": 5,
            "embedding exchange R^8": 1,
            "value bias exchange R^8": 3,
        },
        missing="They are rows of the two tables of positions, but for their means: the first two, which "
        "BART skips, and those beyond the length of the sequences.",
    ),
    Family(
        "Whisper",
        whisper,
        transcribe,
        {
            "norm kernel shift R^8": 9,
            "norm kernel shift R^10": 2,
            "norm shift exchange R^8": 6,
            "QK linear GL(4)^2": 3,
            "VO linear GL(4)^2": 3,
            "norm scale (R+)^8": 6,
            "residual mean shift R^8": 3,
            "residual mean shift R": 5,
            "residual mean shift R^10": 2,
            "residual mean shift R^6": 1,
            "embedding exchange R^8": 1,
            "value bias exchange R^8": 3,
        },
        missing="It is a shift of the last norm, whose reader is the embedding and has no bias.",
    ),
    Family(
        "CLIP",
        clip,
        match_pairs,
        {
            "norm kernel shift R^8": 12,
            "norm kernel shift R^10": 4,
            "norm shift exchange R^8": 8,
            "QK linear GL(4)^2": 4,
            "VO linear GL(4)^2": 4,
            "norm scale (R+)^8": 10,
            "QK plane scale R+": 2,
            "QK rotation O(5)": 1,
            "residual mean shift R^11": 1,
            "residual mean shift R^5": 2,
            "residual mean shift R^8": 4,
            "residual mean shift R": 10,
            "residual mean shift R^10": 4,
            "residual mean shift R^12": 1,
            "null shift R^8": 4,
            "embedding exchange R^16": 1,
            "embedding exchange R^8": 1,
            "value bias exchange R^8": 4,
            "length R+": 2,
        },
        missing="21 rotations of the text's residual stream and 16 shifts of the last norms, whose "
        "readers have no bias: they would have to move the norms' shifts along with the "
        "weights; 1 was not traced.",
    ),
    Family(
        "Swin",
        swin,
        classify_larger_images,
        {
            "norm kernel shift R^16": 3,
            "norm kernel shift R^24": 1,
            "norm kernel shift R^3": 1,
            "norm kernel shift R^8": 3,
            "norm kernel shift R^12": 1,
            "norm shift exchange R^16": 3,
            "norm shift exchange R^8": 2,
            "residual rotation O(15)": 1,
            "QK linear GL(4)^4": 1,
            "VO linear GL(4)^4": 1,
            "QK linear GL(4)^2": 1,
            "VO linear GL(4)^2": 1,
            "norm scale (R+)^32": 1,
            "norm scale (R+)^16": 3,
            "norm scale (R+)^8": 2,
            "residual mean shift R^12": 1,
            "residual mean shift R": 6,
            "null shift R^8": 1,
            "residual mean shift R^2": 1,
            "residual mean shift R^32": 1,
            "null shift R^16": 1,
            "residual mean shift R^16": 1,
            "residual mean shift R^4": 1,
            "residual mean shift R^24": 1,
            "CE row shift R^16": 1,
            "CE bias shift R": 1,
            "value bias exchange R^16": 1,
            "value bias exchange R^8": 1,
        },
        missing="They are shifts of the norm before the merging of patches, whose reader has no bias: "
        "they would have to move the norm's shift along with the weights.",
    ),
    Family(
        "ResNet, train",
        resnet,
        classify_larger_images,
        {
            "relu rescale (R+)^4": 1,
            "norm scale (R+)^4": 2,
            "CE row shift R^4": 1,
            "CE bias shift R": 1,
        },
        training=True,
    ),
    Family(
        "ResNet, eval, trained",
        trained_resnet,
        classify_larger_images,
        {
            "relu rescale (R+)^4": 1,
            "norm scale (R+)^4": 2,
            "CE row shift R^4": 1,
            "CE bias shift R": 1,
        },
        missing="They are 4 scales for each of the five norms: of a convolution, against the gain behind "
        "it. The norm's shift would have to make up for the running mean, which is no parameter, by gain x "
        "mean / deviation: no leg says that. (Without it, as in the untrained model, all are found.)",
    ),
    Family(
        "U-Net",
        UNet,
        classify_pixels,
        {
            "QK linear GL(4)": 1,
            "norm scale (R+)^6": 1,
            "relu rescale (R+)^4": 1,
            "norm scale (R+)^4": 1,
            "residual mean shift R^2": 3,
            "CE row shift R^4": 1,
            "CE bias shift R": 1,
        },
    ),
    Family(
        "DiT",
        DiT,
        denoise,
        {
            "QK linear GL(4)^2": 1,
            "VO linear GL(4)^2": 1,
            "glu rescale (R+)^8": 2,
            "null shift R^8": 1,
            "residual mean shift R^4": 1,
            "residual mean shift R^5": 1,
            "residual mean shift R": 1,
            "embedding exchange R^8": 1,
            "value bias exchange R^8": 1,
        },
        of_the_point=27,
        missing="The last layer is narrower than what it reads, and does not see what is added across "
        "it: that depends on the weights. 24 scales and 21 shifts go between what the condition "
        "makes of a norm, (1 + scale) and shift, and the readers: they act on a part of a "
        "bias plus one.",
    ),
    Family(
        "GAT",
        GAT,
        classify_nodes,
        {"CE bias shift R": 1},
        missing="3 combine a shift of the logits with a change of what weighs edges, which read the "
        "same rows.",
    ),
    Family("LoRA", adapted(causal("Llama", **LLAMA), lora), next_token, {"linear pair GL(2)": 6}),
    Family(
        "DoRA",
        adapted(causal("Llama", **LLAMA), lambda: lora(use_dora=True)),
        next_token,
        {"linear pair GL(2)": 6},
    ),
    Family(
        "VeRA",
        adapted(
            causal("Llama", **LLAMA),
            lambda: peft.VeraConfig(r=4, target_modules=["q_proj"]),
        ),
        next_token,
        {"pair scale R+": 2},
    ),
]


def build(family: Family) -> nn.Module:
    torch.manual_seed(family.seed)
    return family.make().double().train(family.training)


def in_float64(loss: Callable[[nn.Module], Tensor]) -> Callable[[nn.Module], Tensor]:
    """The loss without what the model's own code rounds to float32, as `ddc.discover` sees it."""

    def evaluate(model: nn.Module) -> Tensor:
        with Float64():
            return loss(model)

    return evaluate


def found(group: ddc.SymmetryGroup) -> dict[str, int]:
    """How many gauges there are of which kind and group."""
    return dict(Counter(f"{gauge.kind} {gauge.group}" for gauge in group.gauges))


def train(
    model: nn.Module, loss: Callable[[nn.Module], Tensor], optimizer: torch.optim.Optimizer
) -> tuple[Tensor, Tensor]:
    """The losses of all steps, and the logarithms of the probabilities that come out in the end."""
    losses = []
    for step in range(STEPS):
        torch.manual_seed(step)
        value = loss(model)
        losses.append(value.detach().double())
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    outputs: list[Any] = []
    with model.register_forward_hook(lambda _module, _inputs, output: outputs.append(output)):
        torch.manual_seed(STEPS)
        losses.append(loss(model).detach().double())
    logits = getattr(outputs[0], "logits", outputs[0])
    return torch.stack(losses), logits.detach().double().log_softmax(-1)


def difference_of_copies(
    model: nn.Module,
    loss: Callable[[nn.Module], Tensor],
    group: ddc.SymmetryGroup,
    optimizer: Callable[[nn.Module], torch.optim.Optimizer],
) -> float:
    """How far two copies of a model are apart after training that a symmetry takes into each other.

    The largest difference of losses and predictions, relative to the largest of them.
    """
    first, second = copy.deepcopy(model), copy.deepcopy(model)
    group.random_element(seed=1, size=0.5).apply_(second)
    runs = [train(each, loss, optimizer(each)) for each in (first, second)]
    return max(
        ((mine - other).abs().max() / mine.abs().max()).item()
        for mine, other in zip(*runs, strict=True)
    )


def held(optimizer: torch.optim.Optimizer, group: ddc.SymmetryGroup) -> torch.optim.Optimizer:
    ddc.hold(optimizer, group)
    return optimizer


def optimizers(
    group: ddc.SymmetryGroup, lr: float = 1e-2
) -> dict[str, Callable[[nn.Module], torch.optim.Optimizer]]:
    return {
        "DDCAdam": lambda model: ddc.DDCAdam(model.named_parameters(), symmetries=group, lr=lr),
        "DDCMuon": lambda model: ddc.DDCMuon(model.named_parameters(), symmetries=group, lr=lr),
        "held": lambda model: held(torch.optim.AdamW(model.named_parameters(), lr=lr), group),
        "AdamW": lambda model: torch.optim.AdamW(model.parameters(), lr=lr),
    }


HEADER = """# Symmetries of model families

What `ddc.discover` finds in unmodified models of `transformers` and `timm`, and in some of torch's own
layers, from the model and a loss alone. Small models (two layers, width 8 to 12) with random weights,
float64. Written by

```sh
python examples/python/families.py --write docs/reference/families.md
```

- **gauges**: how many there are, and the sum of their dimensions; `print(symmetries)` lists them.
- **residual**: of all gauges together at the gate, and what it may be.
- **explained**: of the directions that no batch sees (the null space of the Jacobian), those along
  the gauges. Directions that depend on the weights are counted apart, below the table.
- **DDCAdam, DDCMuon, held, AdamW**: two copies that a random element of the group takes into each other
  are trained for 20 steps (lr 1e-2), each with its own gradients; the largest difference of losses
  and predictions, relative. **held** is torch's AdamW under `ddc.hold`.
- **s**, **MB**: processor time of discovery without the count, and how much more memory the process had
  at its peak. (In a process of its own; empty where it was not.)
- **as shipped**: that of DDCAdam with all that the model's own code rounds to float32 in a float64
  model. (transformers' RMSNorms and rotary angles do. The other columns are in float64 throughout.)

| family | parameters | gauges | dimension | residual | explained | | DDCAdam | DDCMuon | held | AdamW | \
as shipped | s | MB |
| --- | --: | --: | --: | --- | --- | --: | --: | --: | --: | --: | --: | --: | --: |
"""


def peak_memory() -> int:
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def cost(family: Family) -> tuple[float, int]:
    """Seconds and bytes that discovery takes. A peak is one of a process: each family wants its own."""
    model = build(family)
    memory, start = peak_memory(), time.process_time()
    ddc.discover(model, family.loss)
    return time.process_time() - start, peak_memory() - memory


def cost_in_its_own_process(family: Family) -> tuple[float, int]:
    command = [sys.executable, __file__, "--cost", family.name]
    seconds, memory = subprocess.run(
        command, check=True, capture_output=True, text=True
    ).stdout.split()[-2:]
    return float(seconds), int(memory)


def row(family: Family) -> tuple[str, str]:
    """The family's row of the table, and what is to be said below it."""
    model = build(family)
    seconds, memory = cost_in_its_own_process(family)
    group = ddc.discover(model, family.loss, completeness=True)
    completeness = group.completeness
    assert completeness is not None, group.notes
    total = round(completeness.kernel) - completeness.dead - family.of_the_point
    differences = [
        difference_of_copies(model, in_float64(family.loss), group, optimizer)
        for optimizer in optimizers(group).values()
    ]
    differences.append(
        difference_of_copies(model, family.loss, group, optimizers(group)["DDCAdam"])
    )
    cells = [
        family.name,
        str(completeness.parameters),
        str(len(group.gauges)),
        str(group.dimension),
        f"{group.residual:.0e} ({group.tolerance:.0e})",
        f"{completeness.explained} of {total}",
        f"{100 * completeness.explained / total:.1f}%",
        *(f"{difference:.0e}" for difference in differences),
        f"{seconds:.1f}",
        f"{memory / 2**20:.0f}",
    ]
    counts = []
    if completeness.explained < total:
        counts.append(f"{total - completeness.explained} are missing.")
    if family.of_the_point > 0:
        counts.append(f"{family.of_the_point} more depend on the weights.")
    if completeness.dead > 0:
        counts.append(f"{completeness.dead} more are of parameters without any gradient.")
    missing = family.missing
    if completeness.explained < total and not missing:
        shares = [f"`{name}` ({share:.1f})" for name, share in completeness.per_tensor[:4]]
        missing = f"Most of them are in {', '.join(shares)}."
    note = f"- **{family.name}**: {' '.join([*counts, missing])}\n" if counts else ""
    return f"| {' | '.join(cells)} |\n", note


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", metavar="FILE", help="the table goes there")
    parser.add_argument(
        "names", nargs="*", help="families whose rows are to be written anew; all if none is named"
    )
    parser.add_argument("--cost", action="store_true", help="print seconds and bytes of a search")
    arguments = parser.parse_args()
    known = [family.name for family in FAMILIES + MORE]
    for name in set(arguments.names) - set(known):
        parser.error(f"no family '{name}': {', '.join(known)}")
    rows: dict[str, tuple[str, str]] = {}
    for family in FAMILIES + MORE:
        if arguments.names and family.name not in arguments.names:
            continue
        if arguments.cost:
            print(*cost(family))
            continue
        print(family.name, file=sys.stderr)
        rows[family.name] = row(family)
        if arguments.write:
            path = pathlib.Path(arguments.write)
            kept = read(path.read_text(), known) if path.exists() else {}
            path.write_text(table(kept | rows, known))
    if not (arguments.write or arguments.cost):
        print(table(rows, known))


def read(text: str, known: list[str]) -> dict[str, tuple[str, str]]:
    """Rows of a table, and the notes below it, by family."""
    # A note may be broken into lines, of which all but the first are indented.
    lines = re.sub(r"\n {2,}", " ", text).splitlines(keepends=True)
    return {
        name: (
            next((line for line in lines if line.startswith(f"| {name} |")), ""),
            next((line for line in lines if line.startswith(f"- **{name}**:")), ""),
        )
        for name in known
    }


def broken(note: str) -> str:
    """A note in lines of at most 120 columns."""
    inside = {"break_long_words": False, "break_on_hyphens": False}
    return textwrap.fill(note, 120, subsequent_indent="  ", **inside) + "\n"


def table(rows: dict[str, tuple[str, str]], known: list[str]) -> str:
    lines = "".join(rows[name][0] for name in known if name in rows)
    notes = "".join(broken(rows[name][1]) for name in known if name in rows and rows[name][1])
    return HEADER + lines + ("\n" + notes if notes else "")


if __name__ == "__main__":
    main()
