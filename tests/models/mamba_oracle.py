"""Mamba and Mamba-2 in numpy, one position after the other, from the equations of their papers."""

import numpy as np


def softplus(x):
    return np.logaddexp(0, x)


def silu(x):
    return x / (1 + np.exp(-x))


ACT = {"silu": silu, "relu": lambda x: np.maximum(x, 0), "none": lambda x: x}


def rms(x, gain, eps):
    return gain * x / np.sqrt((x**2).mean() + eps)


def mixer(u, w, config):
    """What a mixer adds to the stream `u` `[position, d_model]`; `w` holds its weights by name."""
    heads, width, window = config.n_heads, config.d_head, config.d_conv
    groups = heads if config.mixer == "mamba1" else config.n_groups
    act = ACT[config.conv_act_fn]

    def convolved(side, t, n):
        out = []
        for head in range(n):
            total = w[f"b_conv_{side}"][head].copy()
            for back in range(window):
                if t >= back:
                    read = u[t - back] @ w[f"W_{side}"][head] + w[f"b_{side}"][head]
                    total += w[f"conv_{side}"][head][:, window - 1 - back] * read
            out.append(act(total))
        return np.array(out)

    state = np.zeros((heads, width, config.d_state))
    found = []
    for t in range(len(u)):
        x = convolved("V", t, heads)
        if config.mixer == "mamba":
            share = heads // groups
            B = np.repeat(convolved("K", t, groups), share, axis=0)
            C = np.repeat(convolved("Q", t, groups), share, axis=0)
            step = softplus(np.array([u[t] @ w["W_dt"][h][:, 0] + w["b_dt"][h, 0] for h in range(heads)]))
        else:
            flat = x[:, 0]
            B = np.repeat((flat @ w["W_B"])[None], heads, axis=0)
            C = np.repeat((flat @ w["W_C"])[None], heads, axis=0)
            step = softplus(flat @ w["W_dt_in"] @ w["W_dt_out"] + w["b_dt"])
        y = np.zeros((heads, width))
        for h in range(heads):
            decay = np.exp(-np.exp(w["A_log"][h]) * step[h])  # [1] or [d_state]
            state[h] = decay * state[h] + step[h] * np.outer(x[h], B[h])
            y[h] = state[h] @ C[h] + w["D"][h] * x[h]
            if config.use_gate:
                y[h] *= silu(u[t] @ w["W_G"][h] + w["b_G"][h])
        if config.use_gate_norm:
            part = heads // groups
            for g in range(groups):
                rows = slice(g * part, (g + 1) * part)
                y[rows] = rms(y[rows].ravel(), w["w"][rows].ravel(), config.eps).reshape(part, width)
        found.append(sum(y[h] @ w["W_O"][h] for h in range(heads)) + w["b_O"])
    return np.array(found)


def logits(tokens, state, config):
    """Logits `[position, d_vocab_out]` of one sequence; `state` is a state dict of one model, in float64."""
    state = {name.replace("._", "."): np.asarray(value, np.float64) for name, value in state.items()}
    x = state["embed.W_E"][tokens]
    if "pos_embed.W_pos" in state:
        x = x + state["pos_embed.W_pos"][: len(x)]
    has_norm = config.normalization_type == "RMS"
    for layer in range(config.n_layers):
        at = f"blocks.{layer}."
        w = {n.removeprefix(f"{at}attn."): v for n, v in state.items() if n.startswith(f"{at}attn.")}
        u = np.array([rms(row, state[f"{at}ln1.w"], config.eps) for row in x]) if has_norm else x
        x = x + mixer(u, w, config)
    if has_norm:
        x = np.array([rms(row, state["ln_final.w"], config.eps) for row in x])
    return x @ state["unembed.W_U"] + state["unembed.b_U"]
