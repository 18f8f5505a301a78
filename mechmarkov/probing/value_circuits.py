"""Value circuits: what each path through a model says of the next state, given the state it reads.

Norms are replaced by their mean scale on the data, which makes every path but an MLP's linear. Where they
stand behind the sums (`norm_first=False`), what is written passes all that come before it is read.
"""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from mechmarkov.models.components import head_name, mlp_name, norms_between
from mechmarkov.probing.recording import MLP_BY_PARENT, NORM_SCALE, WHERE_READ
from mechmarkov.probing.subject import Subject

Tables = dict[str, Float[np.ndarray, "member state_from state_to"]]
Weights = dict[str, Float[np.ndarray, "member ..."]]


def float64_weights(subject: Subject) -> Weights:
    """The tensors of a subject's models by name, in float64."""
    return {name: value.double().numpy() for name, value in subject.decoder.state_dict().items()}


def embedded_states(subject: Subject, weights: Weights) -> Float[np.ndarray, "member state d_model"]:
    """The embedding of each state of the source.

    Args:
        subject: The models: `Subject.of(run)`.
        weights: Their weights in float64: `float64_weights(subject)`.
    """
    return weights["embed.W_E"][:, : subject.source.n_states]


def _norm(
    subject: Subject,
    weights: Weights,
    name: str,
    x: Float[np.ndarray, "member state d_model"],
    where: str = "",
) -> Float[np.ndarray, "member state d_model"]:
    """The state-dependent part of a norm's output, its scale at the data mean."""
    kind = subject.config.normalization_type
    if kind is None:
        return x
    if kind in ("LN", "LNPre"):
        x = x - x.mean(-1, keepdims=True)
    x = x / subject.recorded(NORM_SCALE)[name + where][:, None, None]
    return x * weights[f"{name}.w"][:, None, :] if kind in ("LN", "RMS") else x


def head_outputs(
    subject: Subject, weights: Weights, layer: int, x: Float[np.ndarray, "member state d_model"]
) -> Float[np.ndarray, "head member state d_model"]:
    """Returns what a layer's heads write if they read only `x`: `norm(x) W_V W_O`.

    Zero unless `Mixer.is_linear`.

    Args:
        subject: The models; a norm has its mean scale on their batch.
        weights: `float64_weights(subject)`.
        layer: The layer.
        x: What stands in the residual stream, such as `embedded_states(subject, weights)`.
    """
    block: Any = subject.decoder.blocks[layer]
    if not block.attn.is_linear:
        return np.zeros((subject.config.n_heads, *x.shape))
    x = _norm(subject, weights, f"blocks.{layer}.ln1", x) if subject.config.norm_first else x
    read = torch.from_numpy(x)
    return np.asarray(block.attn.value_circuit(read).detach()).swapaxes(0, 1)


def carried(
    subject: Subject,
    weights: Weights,
    x: Float[np.ndarray, "member state d_model"],
    writer: str,
    reader: str = "logits",
) -> Float[np.ndarray, "member state d_model"]:
    """Returns what a later component, or the unembedding, finds of what one writes: behind the norms between.

    Args:
        subject: The models; a norm has its mean scale on their batch.
        weights: `float64_weights(subject)`.
        x: What is written, such as an output that `head_outputs` returns.
        writer: The component that writes it, such as `L0H1`, or `embed`.
        reader: The one that reads it.
    """
    read_late = WHERE_READ if reader == "logits" and not subject.config.norm_first else ""
    for norm in norms_between(subject.config, writer, reader):
        x = _norm(subject, weights, norm, x, read_late)
    return x


def to_scores(
    subject: Subject,
    weights: Weights,
    x: Float[np.ndarray, "member state d_model"],
    writer: str | None = None,
) -> Float[np.ndarray, "member state state_to"]:
    """Returns what a part of the residual stream adds to the scores: `norm(x) W_U`.

    Args:
        subject: The models; the final norm has its mean scale on their batch.
        weights: `float64_weights(subject)`.
        x: The part, such as one that `head_outputs` returns.
        writer: The component that writes it; which norms it passes depends on it where these stand behind
            the sums.

    Raises:
        ValueError: No writer is named, and norms stand behind the sums.
    """
    if writer is None and not subject.config.norm_first:
        raise ValueError("writer is None, expected the component that writes x where norm_first is False")
    W_U = subject.decoder.unembed.W_U.detach().double().numpy()[..., : subject.source.n_states]
    return np.asarray(carried(subject, weights, x, writer or "direct") @ W_U)


def path_tables(subject: Subject) -> Tables:
    """The full circuit `C[state_from, state_to]` of every path from one token to the logits.

    `direct` is `W_E W_U`; `L0H1` is `W_E W_V W_O W_U` of a head, reading embeddings; `L0.mlp` is the mean of
    what the MLP adds to the logits given the parent state, with the residual stream it really sees. Gains of
    norms are folded in at their mean scale on the data. Behind a query token there is no `direct` path: no
    state sits at the position that is read.

    Returns:
        By path, `[member, state_from, state_to]` in score units, attention mass not folded in. Zero for heads
        whose values pass more than a matrix (`Mixer.is_linear`).

    Example:
        >>> import mechmarkov as mm
        >>> tables = path_tables(mm.Subject.of(mm.example("walk"), sequences=8))
        >>> {path: table.shape for path, table in tables.items()}
        {'L0H0': (1, 6, 6)}
    """
    config, weights = subject.config, float64_weights(subject)
    embedded = embedded_states(subject, weights)
    outputs: dict[str, Float[np.ndarray, "member state d_model"]] = {}
    if not subject.objective.query:
        outputs["direct"] = embedded
    for layer in range(config.n_layers):
        read = carried(subject, weights, embedded, "embed", head_name(layer, 0))
        for head, output in enumerate(head_outputs(subject, weights, layer, read)):
            outputs[head_name(layer, head)] = output
        if not config.attn_only:
            # A parent never seen says nothing.
            outputs[mlp_name(layer)] = np.nan_to_num(subject.recorded(MLP_BY_PARENT)[:, layer])
    return {name: to_scores(subject, weights, output, name) for name, output in outputs.items()}
