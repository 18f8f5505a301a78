"""Value circuits: what each path through a model says of the next state, given the state it reads."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from mechmarkov.models.components import head_name, mlp_name
from mechmarkov.probing.recording import MLP_BY_PARENT, NORM_SCALE
from mechmarkov.probing.subject import Subject

Tables = dict[str, Float[np.ndarray, "member state_from state_to"]]


def _norm(subject: Subject, name: str, x: np.ndarray) -> np.ndarray:
    """The state-dependent part of a norm's output `[member, state, d_model]`, its scale at the data mean."""
    state = subject.decoder.state_dict()
    kind = subject.config.normalization_type
    if kind is None:
        return x
    if kind in ("LN", "LNPre"):
        x = x - x.mean(-1, keepdims=True)
    x = x / subject.recorded(NORM_SCALE)[name][:, None, None]
    if kind in ("LN", "RMS"):
        x = x * state[f"{name}.w"].double().numpy()[:, None, :]
    return x


def path_tables(subject: Subject) -> Tables:
    """The full circuit `C[state_from, state_to]` of every path from one token to the logits.

    `direct` is `W_E W_U`; `L0H1` is `W_E W_V W_O W_U` of a head, reading embeddings; `L0.mlp` is the mean of
    what the MLP adds to the logits given the parent state, with the residual stream it really sees. Gains of
    norms are folded in at their mean scale on the data. Behind a query token there is no `direct` path: no
    state sits at the position that is read.

    Returns:
        By path, `[member, state_from, state_to]` in score units, attention mass not folded in.
    """
    decoder, n_states = subject.decoder, subject.source.n_states
    blocks: list[Any] = list(decoder.blocks)
    W_U = decoder.unembed.W_U.detach().double().numpy()[..., :n_states]
    embedded = decoder.embed.W_E.detach().double().numpy()[:, :n_states]
    tables: Tables = {}
    if not subject.objective.query:
        tables["direct"] = _norm(subject, "ln_final", embedded) @ W_U
    for layer, block in enumerate(blocks):
        read = torch.from_numpy(_norm(subject, f"blocks.{layer}.ln1", embedded))
        written = block.attn.value_circuit(read).detach().numpy()
        for head in range(subject.config.n_heads):
            tables[head_name(layer, head)] = _norm(subject, "ln_final", written[:, head]) @ W_U
        if block.mlp is not None:
            # A parent that is never seen says nothing.
            rows = np.nan_to_num(subject.recorded(MLP_BY_PARENT)[:, layer])
            tables[mlp_name(layer)] = _norm(subject, "ln_final", rows) @ W_U
    return tables
