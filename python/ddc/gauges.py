"""Makers of gauges, for models that are wired by hand.

Tensors are given by their names in ``model.named_parameters()``. What a maker returns is a claim about
the model; :func:`ddc.testing.gauge_invariants` and :func:`ddc.measure.gate` check it.

>>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
>>> gauges = [
...     ddc.gauges.relu_rescale(model, "0.weight", "2.weight", bias_in="0.bias"),
...     ddc.gauges.cross_entropy_shift(model, "2.weight"),
...     ddc.gauges.cross_entropy_shift(model, "2.bias"),
... ]
>>> optimizer = ddc.DDCAdam(model.named_parameters(), lr=1e-3, symmetries=gauges)

All makers take the same words. `layout` is ``"out_in"`` where rows of a weight are outputs
(:class:`torch.nn.Linear`, convolutions) and ``"in_out"`` where they are inputs (GPT-2). `name` is that of
the gauge; by default it is made from the name of a tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from ddc import _C
from ddc._C import Gauge
from ddc._model import parameters_of

Layout = Literal["out_in", "in_out"]
Packing = Literal["separate", "stacked", "per_head"]
Pairing = Literal["none", "half_split", "interleaved"]
Model = nn.Module | Sequence[tuple[str, Tensor]]
Readers = str | Sequence[str] | Mapping[str, str | None]

__all__ = [
    "Norm",
    "chained_rescale",
    "cross_entropy_shift",
    "diagonal_linear",
    "glu_rescale",
    "key_bias_null",
    "linear_pair",
    "norm_kernel_shifts",
    "norm_scale",
    "norm_shift_exchange",
    "null_shift",
    "qk_linear",
    "qk_rotation",
    "qk_scale",
    "qk_torus",
    "relu_rescale",
    "residual_mean_shift",
    "residual_rotation",
    "value_bias_exchange",
    "vo_linear",
    "vo_rotation",
    "vo_scale",
]


def _names(names: str | Sequence[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _readers(readers: Readers) -> list[tuple[str, str | None]]:
    if isinstance(readers, Mapping):
        return list(readers.items())
    return [(weight, None) for weight in _names(readers)]


def _norms(norms: Sequence[Norm]) -> list[tuple[Any, ...]]:
    return [(n.gain, _readers(n.readers), n.shift, n.gain_is_offset, n.layout) for n in norms]


# Arguments that the extension has in another form.
_FORMS: dict[str, Callable[[Any], Any]] = {
    "model": lambda model: parameters_of(model) if isinstance(model, nn.Module) else list(model),
    "weights_out": _names,
    "weights_down": _names,
    "readers": _readers,
    "writers": lambda writers: list(writers.items()),
    "norms": _norms,
}


def _gauges(maker: str, arguments: Mapping[str, Any]) -> list[Gauge]:
    """Gauges that the extension makes of the parameters of the function that is called like it."""
    given = {name: _FORMS.get(name, lambda same: same)(each) for name, each in arguments.items()}
    return _C.make_gauges(maker, given.pop("model"), given)


def _gauge(maker: str, arguments: Mapping[str, Any]) -> Gauge:
    (gauge,) = _gauges(maker, arguments)
    return gauge


# ---- Rescalings -------------------------------------------------------------------------------------


def relu_rescale(
    model: Model,
    weight_in: str,
    weights_out: str | Sequence[str],
    *,
    bias_in: str | None = None,
    degree: float = 1.0,
    whole: bool = False,
    layout: Layout = "out_in",
    name: str | None = None,
) -> Gauge:
    """Rescaling of the units between two layers with a positively homogeneous activation.

    ``y = W_out act(W_in x + b_in)`` with ``act(c z) = c^degree act(z)`` for positive c. Group (R+)^units.

    Broken by: GELU, SiLU and tanh, which are not homogeneous; a norm between the two layers; a bias that
    is left out here; a residual connection or anything else that reads the units and is left out.

    Parameters
    ----------
    model : Module, or sequence of named tensors
    weight_in : str
        Weight before the activation.
    weights_out : str or sequence of str
        Weights after it: all that read the units.
    bias_in : str, optional
        Bias beside `weight_in`.
    degree : float
        1 for ReLU and leaky ReLU, 2 for squared ReLU.
    whole : bool
        One factor for the whole layer instead of one per unit. Group R+.

    Returns
    -------
    Gauge
    """
    return _gauge("relu_rescale", locals())


def chained_rescale(
    model: Model,
    weights: Sequence[str],
    *,
    biases: Sequence[str | None] = (),
    degree: float = 1.0,
    whole: bool = False,
    layout: Layout = "out_in",
) -> list[Gauge]:
    """Rescalings of a stack of layers, one :func:`relu_rescale` for each two that follow each other.

    Group (R+)^units for each. They share tensors; the optimizer treats them jointly.

    Broken by: whatever breaks :func:`relu_rescale`, anywhere in the stack.

    Parameters
    ----------
    model : Module, or sequence of named tensors
    weights : sequence of str
        Weights of the layers in order, two or more.
    biases : sequence of str or None
        One entry per weight, None for a layer without bias. Empty: no layer has one.
    degree, whole
        As for :func:`relu_rescale`.

    Returns
    -------
    list of Gauge
        One fewer than there are weights.
    """
    return _gauges("chained_rescale", locals())


def glu_rescale(
    model: Model,
    weight_up: str,
    weights_down: str | Sequence[str],
    *,
    bias_up: str | None = None,
    layout: Layout = "out_in",
    name: str | None = None,
) -> Gauge:
    """Rescaling of the up branch of a gated MLP, whatever the activation of its gate.

    ``y = W_down (act(W_gate x) * (W_up x + b_up))``: SwiGLU, GEGLU, ReGLU. The gate is not acted on.
    Group (R+)^units.

    Broken by: a norm between the product and the down projection; an activation on the up branch.

    Parameters
    ----------
    model : Module, or sequence of named tensors
    weight_up : str
        Weight of the branch without activation.
    weights_down : str or sequence of str
        Weights that read the product.
    bias_up : str, optional
        Bias beside `weight_up`.

    Returns
    -------
    Gauge
    """
    return _gauge("glu_rescale", locals())


def diagonal_linear(model: Model, u: str, v: str, *, name: str | None = None) -> Gauge:
    """Rescaling of the two factors of a diagonal linear network, ``beta = u * v`` elementwise.

    Group (R+)^coordinates.

    Broken by: anything that reads one of the factors alone.

    Parameters
    ----------
    model : Module, or sequence of named tensors
    u, v : str
        The factors.

    Returns
    -------
    Gauge
    """
    return _gauge("diagonal_linear", locals())


def linear_pair(
    model: Model,
    weight_first: str,
    weight_second: str,
    *,
    layout: Layout = "out_in",
    name: str | None = None,
) -> Gauge:
    """Change of basis between two matrices with nothing between them: a LoRA pair, a factorised layer.

    ``y = second first x``. Group GL(r), with r the inner size. A second matrix that starts at zero is
    fine.

    Broken by: dropout, an activation, a norm or a bias between the two.

    Parameters
    ----------
    model : Module, or sequence of named tensors
    weight_first : str
        Matrix that reads the input, r by inputs.
    weight_second : str
        Matrix that writes the output, outputs by r.

    Returns
    -------
    Gauge
    """
    return _gauge("linear_pair", locals())


# ---- Norms ------------------------------------------------------------------------------------------


def norm_scale(
    model: Model,
    gain: str,
    weights_out: str | Sequence[str],
    *,
    shift: str | None = None,
    gain_is_offset: bool = False,
    layout: Layout = "out_in",
    name: str | None = None,
) -> Gauge:
    """Rescaling of the gain of a normalisation layer against everything that reads its output.

    ``y_k = W_k (gain * norm(x) + shift)`` for every reader k. Group (R+)^d.

    Broken by: a reader that is left out; an unembedding that is tied to the embedding; a residual
    connection that takes the normalised value; an elementwise function before the reader.

    Parameters
    ----------
    model : Module, or sequence of named tensors
    gain : str
        Gain of the norm.
    weights_out : str or sequence of str
        Weights that read the norm's output, all of them.
    shift : str, optional
        Shift of the norm. (LayerNorm has one, RMSNorm has none.)
    gain_is_offset : bool
        The norm stores its gain as (1 + w), as Gemma's does.

    Returns
    -------
    Gauge
    """
    return _gauge("norm_scale", locals())


def norm_kernel_shifts(
    model: Model,
    gain: str,
    readers: Readers,
    *,
    shift: str | None = None,
    gain_is_offset: bool = False,
    layout: Layout = "out_in",
) -> list[Gauge]:
    """Shifts of the rows of weights that read a LayerNorm, whose output has zero mean before the gain.

    The same number may be added to all of a row of ``W diag(gain)``. If the norm has a shift, the bias
    beside the weight makes up for it; readers without a bias are left out then. Group R^rows for each.

    Broken by: RMSNorm, which does not subtract the mean; a reader that is tied to something else.

    Parameters
    ----------
    model : Module, or sequence of named tensors
    gain : str
        Gain of the norm.
    readers : dict, or str or sequence of str
        Weights that read the norm's output, with the biases beside them: ``{"fc.weight": "fc.bias"}``,
        None for no bias. As names alone: without biases.
    shift : str, optional
        Shift of the norm.
    gain_is_offset : bool
        The norm stores its gain as (1 + w).

    Returns
    -------
    list of Gauge
        One for each reader.
    """
    return _gauges("norm_kernel_shifts", locals())


def norm_shift_exchange(
    model: Model,
    gain: str,
    readers: Readers,
    *,
    shift: str,
    bias_added_next: str | None = None,
    layout: Layout = "out_in",
    name: str | None = None,
) -> Gauge:
    """Exchange between the shift of a norm and the biases of those who read it.

    What the shift gains, each bias may lose, ``b_k - W_k s``. Group R^d.

    Broken by: a reader that is left out or has no bias; a residual stream that goes on from the norm's
    output, unless `bias_added_next` is given.

    Parameters
    ----------
    model : Module, or sequence of named tensors
    gain : str
        Gain of the norm.
    readers : dict
        Weights that read the norm's output, with the biases beside them: ``{"fc.weight": "fc.bias"}``.
    shift : str
        Shift of the norm.
    bias_added_next : str, optional
        Where a residual stream goes on from the norm's output: the bias that is added to it next.

    Returns
    -------
    Gauge
    """
    return _gauge("norm_shift_exchange", locals())


# ---- Shifts that the loss does not see --------------------------------------------------------------


def cross_entropy_shift(
    model: Model, tensor: str, *, layout: Layout = "out_in", name: str | None = None
) -> Gauge:
    """Shift of all logits by the same number, which softmax cross-entropy does not see.

    Group R^d for an unembedding, to all rows of which the same is added; R for an output bias. A model
    with both has both gauges.

    Broken by: an unembedding that is tied to the embedding; soft-capped logits; a z-loss.

    Parameters
    ----------
    model : Module, or sequence of named tensors
    tensor : str
        Unembedding (classes by d) or output bias.

    Returns
    -------
    Gauge
    """
    return _gauge("cross_entropy_shift", locals())


def null_shift(model: Model, tensor: str, *, name: str | None = None) -> Gauge:
    """Shift of a tensor that the loss does not see at all, by anything.

    Group R^entries. Adam makes steps of full size out of the rounding of its gradient; bound, the tensor
    stays where it is.

    Broken by: any use of the tensor that the loss sees.

    Parameters
    ----------
    model : Module, or sequence of named tensors
    tensor : str
        The tensor.

    Returns
    -------
    Gauge
    """
    return _gauge("null_shift", locals())


# ---- Attention --------------------------------------------------------------------------------------


def qk_scale(
    model: Model,
    weight_query: str,
    weight_key: str,
    *,
    heads: int,
    kv_heads: int | None = None,
    bias_query: str | None = None,
    bias_key: str | None = None,
    pairing: Pairing = "none",
    rotary_size: int | None = None,
    packing: Packing = "separate",
    layout: Layout = "out_in",
    name: str | None = None,
) -> Gauge:
    """Rescaling of queries against keys: one factor per key head, or per rotary plane of it.

    Group (R+)^heads, or (R+)^(heads * planes).

    Broken by: a norm on queries or keys, which undoes the scale; a pairing that is not the model's.

    Parameters
    ----------
    model : Module, or sequence of named tensors
    weight_query, weight_key : str
        Projections. With a fused one both name the same tensor, and `packing` says how it is cut.
    heads : int
        Number of query heads.
    kv_heads : int, optional
        Number of key heads, which groups of query heads share. None: as many as query heads.
    bias_query, bias_key : str, optional
        Biases beside the projections.
    pairing : {'none', 'half_split', 'interleaved'}
        How a rotary embedding pairs the coordinates of a head into planes: i with i + d/2 (Llama,
        NeoX), or 2i with 2i + 1 (GPT-J). 'none': there is no rotary embedding.
    rotary_size : int, optional
        Number of leading coordinates of a head that the rotary embedding turns. None: all.
    packing : {'separate', 'stacked', 'per_head'}
        How projections are stored: a tensor each; or in one tensor, all query heads, all key heads, all
        value heads; or in one tensor, per key head its query heads, then key, then value (GPT-NeoX).

    Returns
    -------
    Gauge
    """
    return _gauge("qk_scale", locals())


def qk_torus(
    model: Model,
    weight_query: str,
    weight_key: str,
    *,
    heads: int,
    pairing: Pairing,
    kv_heads: int | None = None,
    bias_query: str | None = None,
    bias_key: str | None = None,
    rotary_size: int | None = None,
    packing: Packing = "separate",
    layout: Layout = "out_in",
    name: str | None = None,
) -> Gauge:
    """Rotation of queries and keys in the planes of a rotary embedding.

    Group SO(2)^(heads * planes).

    Broken by: a norm with a gain on queries or keys; a pairing that is not the model's.

    Parameters
    ----------
    model, weight_query, weight_key, heads, kv_heads, bias_query, bias_key, rotary_size, packing
        As for :func:`qk_scale`.
    pairing : {'half_split', 'interleaved'}
        How the rotary embedding pairs the coordinates of a head into planes.

    Returns
    -------
    Gauge
    """
    return _gauge("qk_torus", locals())


def qk_rotation(
    model: Model,
    weight_query: str,
    weight_key: str,
    *,
    heads: int,
    kv_heads: int | None = None,
    bias_query: str | None = None,
    bias_key: str | None = None,
    pairing: Pairing = "none",
    rotary_size: int | None = None,
    packing: Packing = "separate",
    layout: Layout = "out_in",
    name: str | None = None,
) -> Gauge:
    """Rotation of queries and keys, per key head, of the coordinates that no rotary embedding turns.

    Group O(d_head)^heads.

    Broken by: a rotary embedding of coordinates that are not declared as such; a norm with a gain on
    queries or keys.

    Parameters
    ----------
    model, weight_query, weight_key, heads, kv_heads, bias_query, bias_key, pairing, rotary_size, packing
        As for :func:`qk_scale`.

    Returns
    -------
    Gauge
    """
    return _gauge("qk_rotation", locals())


def qk_linear(
    model: Model,
    weight_query: str,
    weight_key: str,
    *,
    heads: int,
    kv_heads: int | None = None,
    bias_query: str | None = None,
    bias_key: str | None = None,
    pairing: Pairing = "none",
    rotary_size: int | None = None,
    packing: Packing = "separate",
    layout: Layout = "out_in",
    name: str | None = None,
) -> Gauge:
    """Change of basis of queries against keys, per key head, where no rotary embedding turns them.

    Group GL(d_head)^heads. It contains :func:`qk_rotation` and, on these coordinates, :func:`qk_scale`:
    bind either it or them.

    Broken by: a rotary embedding of coordinates that are not declared as such; a norm on queries or keys.

    Parameters
    ----------
    model, weight_query, weight_key, heads, kv_heads, bias_query, bias_key, pairing, rotary_size, packing
        As for :func:`qk_scale`.

    Returns
    -------
    Gauge
    """
    return _gauge("qk_linear", locals())


def key_bias_null(
    model: Model,
    weight_query: str,
    weight_key: str,
    *,
    heads: int,
    bias_key: str,
    kv_heads: int | None = None,
    pairing: Pairing = "none",
    rotary_size: int | None = None,
    packing: Packing = "separate",
    layout: Layout = "out_in",
    name: str | None = None,
) -> Gauge:
    """Shift of the key bias, which adds the same number to all scores of a query: softmax is blind to it.

    On the coordinates that no rotary embedding turns. Group R^(heads * d_head).

    Broken by: a rotary embedding of coordinates that are not declared as such; a norm on keys.

    Parameters
    ----------
    model, weight_query, weight_key, heads, kv_heads, pairing, rotary_size, packing
        As for :func:`qk_scale`.
    bias_key : str
        The key bias.

    Returns
    -------
    Gauge
    """
    return _gauge("key_bias_null", locals())


def vo_scale(
    model: Model,
    weight_value: str,
    weight_output: str,
    *,
    heads: int,
    kv_heads: int | None = None,
    bias_value: str | None = None,
    packing: Packing = "separate",
    layout: Layout = "out_in",
    name: str | None = None,
) -> Gauge:
    """Rescaling of values against the output projection: one factor per value head.

    Group (R+)^heads.

    Broken by: a norm between the heads and the output projection.

    Parameters
    ----------
    model : Module, or sequence of named tensors
    weight_value, weight_output : str
        Value and output projections. A fused projection of queries, keys and values is the
        `weight_value`, and `packing` says how it is cut.
    heads : int
        Number of query heads.
    kv_heads : int, optional
        Number of value heads, which groups of query heads share. None: as many as query heads.
    bias_value : str, optional
        Bias beside the value projection.
    packing : {'separate', 'stacked', 'per_head'}
        How projections are stored, as for :func:`qk_scale`.

    Returns
    -------
    Gauge
    """
    return _gauge("vo_scale", locals())


def vo_rotation(
    model: Model,
    weight_value: str,
    weight_output: str,
    *,
    heads: int,
    kv_heads: int | None = None,
    bias_value: str | None = None,
    packing: Packing = "separate",
    layout: Layout = "out_in",
    name: str | None = None,
) -> Gauge:
    """Rotation of values, per value head, that the output projection undoes.

    Group O(d_head)^heads.

    Broken by: a norm between the heads and the output projection.

    Parameters
    ----------
    model, weight_value, weight_output, heads, kv_heads, bias_value, packing
        As for :func:`vo_scale`.

    Returns
    -------
    Gauge
    """
    return _gauge("vo_rotation", locals())


def vo_linear(
    model: Model,
    weight_value: str,
    weight_output: str,
    *,
    heads: int,
    kv_heads: int | None = None,
    bias_value: str | None = None,
    packing: Packing = "separate",
    layout: Layout = "out_in",
    name: str | None = None,
) -> Gauge:
    """Change of basis of values, per value head, that the output projection undoes.

    Group GL(d_head)^heads. It contains :func:`vo_scale` and :func:`vo_rotation`: bind either it or them.

    Broken by: a norm between the heads and the output projection.

    Parameters
    ----------
    model, weight_value, weight_output, heads, kv_heads, bias_value, packing
        As for :func:`vo_scale`.

    Returns
    -------
    Gauge
    """
    return _gauge("vo_linear", locals())


def value_bias_exchange(
    model: Model,
    weight_value: str,
    weight_output: str,
    *,
    heads: int,
    bias_value: str,
    bias_output: str,
    kv_heads: int | None = None,
    packing: Packing = "separate",
    layout: Layout = "out_in",
    name: str | None = None,
) -> Gauge:
    """Exchange between the value bias and the output bias.

    Attention weights sum to one, so that a value bias reaches the output as a constant: what it gains,
    the bias of the output projection may lose. Group R^(heads * d_head).

    Broken by: attention weights that do not sum to one (dropout on them, a sink without value).

    Parameters
    ----------
    model, weight_value, weight_output, heads, kv_heads, packing
        As for :func:`vo_scale`.
    bias_value, bias_output : str
        The two biases.

    Returns
    -------
    Gauge
    """
    return _gauge("value_bias_exchange", locals())


# ---- Residual streams -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Norm:
    """Norm through which a residual stream is read, and who reads it.

    Parameters
    ----------
    gain : str
        Gain of the norm.
    readers : dict, or str or sequence of str
        Weights that read the norm's output, with the biases beside them: ``{"fc.weight": "fc.bias"}``.
    shift : str, optional
        Shift of the norm. All readers must have a bias then.
    gain_is_offset : bool
        The norm stores its gain as (1 + w).
    layout : {'out_in', 'in_out'}
        Layout of the weights.
    """

    gain: str
    readers: Readers
    shift: str | None = None
    gain_is_offset: bool = False
    layout: Layout = "out_in"


def residual_mean_shift(
    model: Model, writer: str, *, axis: int = 0, name: str | None = None
) -> Gauge:
    """Shift of the mean over channels of what is written to a residual stream, which LayerNorm subtracts.

    A constant per token or position, per column of an output projection, and one for a bias. Group R to
    the number of those.

    Broken by: a reader of the stream without a LayerNorm before it (an unembedding without final norm);
    RMSNorm.

    Parameters
    ----------
    model : Module, or sequence of named tensors
    writer : str
        Tensor that writes to the stream: an embedding, an output projection, its bias.
    axis : int
        Axis of the tensor that is the stream's: 0 for a Linear and its bias, 1 for an Embedding.

    Returns
    -------
    Gauge
    """
    return _gauge("residual_mean_shift", locals())


def residual_rotation(
    model: Model,
    writers: Mapping[str, int],
    norms: Sequence[Norm],
    *,
    layer_norm: bool = True,
    name: str | None = None,
) -> Gauge:
    """Rotation of a residual stream: every writer turns, and every reader turns back what it reads.

    Group O(d), or O(d - 1) with LayerNorm: the rotations that leave the vector of ones alone. The gains of
    the norms take no steps of their own then; the weights that read through them do.

    Broken by: an embedding that is tied to the unembedding; a reader without norm; an elementwise
    function on the stream; norms with a shift that are read without a bias.

    Parameters
    ----------
    model : Module, or sequence of named tensors
    writers : dict
        Tensors that write to the stream, each with the axis that is the stream's: 0 for a Linear and its
        bias, 1 for an Embedding.
    norms : sequence of Norm
        Norms that read the stream.
    layer_norm : bool
        The norms subtract the mean.

    Returns
    -------
    Gauge
    """
    return _gauge("residual_rotation", locals())
