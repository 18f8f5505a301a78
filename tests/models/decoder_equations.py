"""The decoder's equations in numpy, from the paper's side, and what it is compared by."""

import math

import numpy as np
import torch
from scipy.special import erf


def norm(x, weights, config, name):
    kind = config.normalization_type
    if kind is None:
        return x
    if kind.startswith("LN"):
        x = x - x.mean(-1, keepdims=True)
    x = root_mean_square(x, config.eps)
    return x * weights.get(f"{name}.w", 1.0) + weights.get(f"{name}.b", 0.0)


def root_mean_square(x, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)


def turn(x, config):
    """Rotary positions as multiplication of complex pairs; x is [position, d_head]."""
    half = config.rotary_dim // 2
    angle = np.arange(len(x))[:, None] * config.rotary_base ** (-np.arange(half) / half)
    first, second = (
        (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
        if config.rotary_adjacent_pairs
        else (slice(0, half), slice(half, 2 * half))
    )
    z = (x[:, first] + 1j * x[:, second]) * np.exp(1j * angle)
    out = x.copy()
    out[:, first], out[:, second] = z.real, z.imag
    return out


def by_lag(config, weights, layer, head):
    """Returns what scores get by lag, with HookedTransformer's formula for ALiBi."""
    if config.positional_embedding_type == "alibi":
        return -np.arange(config.n_ctx) / 2 ** (8 * (head + 1) / config.n_heads)
    return weights.get(f"blocks.{layer}.attn.b_rel", np.zeros((config.n_heads, config.n_ctx)))[head]


def pattern_of(q, k, rel, config, bias):
    """Attention of one head on one sequence, entry by entry: softmax over the keys in reach."""
    pattern = np.zeros((len(q), len(q)))
    for t in range(len(q)):
        reach = [s for s in range(t + 1) if config.window is None or t - s <= config.window]
        keys = [k[s] + (rel[t - s] if rel is not None else 0.0) for s in reach]
        scores = np.array([q[t] @ key for key in keys])
        if config.use_attn_scale:
            scores = scores / config.attn_scale
        scores = scores + bias[t - np.array(reach)]
        pattern[t, reach] = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
    return pattern


ACTIVATION = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * (1 + erf(x / math.sqrt(2))) / 2,
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu_new": lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
}


def reference(config, state, tokens, patterns=None):
    """Logits `[batch, position, d_vocab_out]`; `patterns` overrides the pattern of layers by number."""
    w = {name: tensor.double().numpy() for name, tensor in state.items()}
    logits = []
    for sequence in tokens.numpy():
        positions = w["pos_embed.W_pos"][: len(sequence)] if "pos_embed.W_pos" in w else 0.0
        x = w["embed.W_E"][sequence]
        on_keys = 0.0
        if config.positional_embedding_type == "standard":
            x = x + positions
        elif config.positional_embedding_type == "shortformer":
            on_keys = positions
        for layer in range(config.n_layers):
            a = f"blocks.{layer}.attn."
            normed = norm(x, w, config, f"blocks.{layer}.ln1") if config.norm_first else x
            update = np.zeros_like(x) + w[a + "b_O"]
            shared = "" if config.n_key_value_heads is None else "_"
            for h in range(config.n_heads):
                g = h if config.n_key_value_heads is None else h * config.n_key_value_heads // config.n_heads
                q = (normed + on_keys) @ w[a + "W_Q"][h] + w[a + "b_Q"][h]
                k = (normed + on_keys) @ w[a + shared + "W_K"][g] + w[a + shared + "b_K"][g]
                v = normed @ w[a + shared + "W_V"][g] + w[a + shared + "b_V"][g]
                if config.use_qk_norm:
                    q = root_mean_square(q, config.eps) * w[a + "q_norm.w"]
                    k = root_mean_square(k, config.eps) * w[a + "k_norm.w"]
                if config.positional_embedding_type == "rotary":
                    q, k = turn(q, config), turn(k, config)
                rel = w[a + "W_rel"][h] if config.positional_embedding_type == "relative" else None
                pattern = (patterns or {}).get(layer)
                pattern = (
                    pattern_of(q, k, rel, config, by_lag(config, w, layer, h)) if pattern is None else pattern
                )
                update += pattern @ v @ w[a + "W_O"][h]
            before, x = x, x + update
            x = x if config.norm_first else norm(x, w, config, f"blocks.{layer}.ln1")
            if not config.attn_only:
                m, act = f"blocks.{layer}.mlp.", ACTIVATION[config.act_fn]
                read = before if config.parallel_attn_mlp else x
                read = norm(read, w, config, f"blocks.{layer}.ln2") if config.norm_first else read
                if config.gated_mlp:
                    hidden = act(read @ w[m + "W_gate"]) * (read @ w[m + "W_in"]) + w[m + "b_in"]
                else:
                    hidden = act(read @ w[m + "W_in"] + w[m + "b_in"])
                x = x + hidden @ w[m + "W_out"] + w[m + "b_out"]
                x = x if config.norm_first else norm(x, w, config, f"blocks.{layer}.ln2")
        x = norm(x, w, config, "ln_final") if config.final_norm else x
        unembed = w["embed.W_E"][: config.d_vocab_out].T if config.tied else w["unembed.W_U"]
        logits.append(x @ unembed + w["unembed.b_U"])
    return np.stack(logits)


def relative_error(ours, expected):
    return np.abs(ours.detach().numpy() - expected).max() / np.abs(expected).max()


def look(activation, hook):
    """A hook that changes nothing: attention is spelled out for it."""


def losses_and_gradients(decoder, tokens, hooks):
    decoder.zero_grad()
    logits = decoder.run_with_hooks(tokens, fwd_hooks=hooks)
    weight = torch.linspace(-1, 2, logits.numel(), dtype=logits.dtype).view_as(logits)
    (logits.sin() * weight).sum().backward()
    return logits, {name: p.grad.clone() for name, p in decoder.named_parameters()}
