"""What stands behind attention, on affine forms: norms, the MLP and the unembedding."""

from collections.abc import Callable
from functools import partial

import numpy as np
from jaxtyping import Float
from scipy.special import erf, expit

from mechmarkov.certify.bounds.affine import Affine
from mechmarkov.certify.bounds.layer import Layer
from mechmarkov.certify.bounds.norms import never

Array = Float[np.ndarray, "..."]


def gelu(x: Array) -> Array:
    """`x Phi(x)`, Phi the normal distribution function."""
    return x / 2 * (1 + erf(x / np.sqrt(2)))


def gelu_new(x: Array) -> Array:
    """GPT-2's approximation of gelu: `x / 2 (1 + tanh(√(2/π) (x + 0.044715 x³)))`.

    Example:
        >>> gelu_new(np.array([-1.0, 2.0])).round(3).tolist()
        [-0.159, 1.955]
    """
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def silu(x: Array) -> Array:
    """`x / (1 + exp(-x))`."""
    return x * expit(x)


def relu(x: Array) -> Array:
    """`max(x, 0)`.

    Example:
        >>> relu(np.array([-1.0, 2.0])).tolist()
        [0.0, 2.0]
    """
    return np.maximum(x, 0.0)


# With the largest absolute second derivative: 2 / sqrt(2 pi) and 1 / 2 at zero, and above its value there.
SMOOTH: dict[str, tuple[Callable[[Array], Array], float]] = {
    "gelu": (gelu, 0.79789),
    "gelu_new": (gelu_new, 0.81),
    "silu": (silu, 0.5),
}


def activated(x: Affine, name: str) -> Affine:
    """An activation of affine forms, by its name in a config: "gelu", "gelu_new", "silu" or "relu"."""
    if name == "relu":
        return x.through(relu, _kink_below_chord, never)
    function, bend = SMOOTH[name]

    def bent(low: Array, high: Array) -> Array:
        return bend * (high - low) ** 2 / 8

    return x.through(function, bent, bent)


def _kink_below_chord(low: Array, high: Array) -> Array:
    """Returns how far `max(x, 0)` is below its chord, at zero."""
    return np.maximum(-low, 0) * np.maximum(high, 0) / np.maximum(high - low, 1e-300)


def scores(layer: Layer, before: Affine, behind: Affine) -> Affine:
    """The scores of the next state.

    Args:
        layer: The last layer.
        before: The residual stream that attention reads, `[*lead, d_model]`.
        behind: The residual stream behind attention, likewise.
    """
    behind = block(layer, before, behind)
    behind = layer.norm("ln_final", behind) if layer.config.final_norm else behind
    W_U, b_U = layer.unembedding
    return behind.dot(W_U, extra=1).plus(b_U)


def block(layer: Layer, before: Affine, behind: Affine) -> Affine:
    """The residual stream behind a layer; arguments as for `scores`."""
    config, weights = layer.config, layer.weights
    behind = layer.norm("blocks.0.ln1", behind) if not config.norm_first else behind
    if not config.attn_only:
        assert config.act_fn is not None  # DecoderConfig checks it
        read = before if config.parallel_attn_mlp else behind
        read = layer.norm("blocks.0.ln2", read) if config.norm_first else read
        act = partial(activated, name=config.act_fn)
        W_in, b_in = weights["blocks.0.mlp.W_in"], weights["blocks.0.mlp.b_in"]
        if config.gated_mlp:
            hidden = (act(read.dot(weights["blocks.0.mlp.W_gate"])) * read.dot(W_in)).plus(b_in)
        else:
            hidden = act(read.dot(W_in, extra=1).plus(b_in))
        written = hidden.dot(weights["blocks.0.mlp.W_out"], extra=1).plus(weights["blocks.0.mlp.b_out"])
        behind = written + behind
        behind = layer.norm("blocks.0.ln2", behind) if not config.norm_first else behind
    return behind
