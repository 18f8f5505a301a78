"""Every sequence of a small model through the model itself: an oracle that shares no code with bounds."""

from itertools import product

import numpy as np
import torch
from probing_cases import CHAIN, MLP, RAW_LOG, SHAPES, config_of, randomise, run_of

from mechmarkov.certify import certify, proof_of
from mechmarkov.certify.bounds.ball import EXACT, FLOAT32
from mechmarkov.certify.bounds.every import Bounds, bounds
from mechmarkov.certify.bounds.layer import Layer
from mechmarkov.certify.contexts import Contexts
from mechmarkov.models import HookedDecoder
from mechmarkov.objectives import Objective
from mechmarkov.sources import Chain
from mechmarkov.theory.kernel import kl

SOFTMAX, RAW = Objective(), Objective(kind="raw_log", read="last")
POSITIONS = ("standard", "relative_bias", "alibi", "relative", "shortformer", "rotary", "none")
ROUNDING = {EXACT: torch.float64, FLOAT32: torch.float32}
ROOM = 1 + 1e-9  # our own rounding of what was seen in float64


def one_layer(shape, objective=SOFTMAX, seed=0, scale=0.5, source=CHAIN, **changes):
    query = {"d_vocab": source.n_states + 1, "d_vocab_out": source.n_states} if objective.query else {}
    own = {"n_ctx": min(6, SHAPES[shape].get("n_ctx", 6)), "n_layers": 1, "d_vocab": source.n_states}
    config = config_of(shape, **(own | query | changes))
    return run_of(randomise(HookedDecoder(config), seed, scale), source=source, objective=objective)


def small_run(rng):
    """A random attention-only model of one layer and its chain, with or without forbidden transitions."""
    n, heads, length = int(rng.integers(2, 5)), int(rng.integers(1, 4)), int(rng.integers(1, 9))
    length = min(length, 5) if n == 4 else length
    objective = [SOFTMAX, RAW, RAW_LOG][rng.integers(3)]
    P = rng.random((n, n)) * (rng.random((n, n)) < (0.6 if rng.random() < 0.5 else 1.0))
    np.fill_diagonal(P, P.diagonal() + 0.1)
    P += 0.1 * np.roll(np.eye(n), 1, axis=1)  # one closed class
    source = Chain(P / P.sum(1, keepdims=True))
    shape = str(rng.choice(["plain", "relative", "window", "no positions", "shortformer"]))
    run = one_layer(
        shape,
        objective,
        seed=int(rng.integers(1 << 30)),
        scale=float(rng.choice([0.2, 0.6])),
        source=source,
        n_heads=heads,
        n_ctx=max(length, 1 + objective.query),
    )
    if objective.kind == "raw_log" and rng.random() < 0.8:  # scores above 0 everywhere
        run.states["unembed.b_U"] += 6.0
    return run


def deep(shape="LN and MLP", **changes):
    """A random model of two layers, whose weights are small enough to be bounded."""
    own = {"n_layers": 2, "n_ctx": 5, "scale": 0.1, "seed": 0, "source": Chain([[0.7, 0.3], [0.2, 0.8]])}
    return one_layer(shape, SOFTMAX, **(own | changes))


def drawn(rng):
    """A random model of two or three layers, with any norm, positions and activation, and its chain."""
    n, norm = int(rng.integers(2, 4)), [None, "LN", "LNPre", "RMS", "RMSPre"][rng.integers(5)]
    P = rng.random((n, n)) * (rng.random((n, n)) < (0.6 if rng.random() < 0.4 else 1.0))
    np.fill_diagonal(P, P.diagonal() + 0.1)
    P += 0.1 * np.roll(np.eye(n), 1, axis=1)  # one closed class
    changes = {
        "n_ctx": int(rng.integers(1, 6)),
        "n_heads": int(rng.integers(1, 3)),
        "n_layers": int(rng.integers(2, 4)),
        "d_model": int(rng.integers(3, 7)),
        "positional_embedding_type": str(rng.choice(POSITIONS)),
        "eps": float(rng.choice([1e-5, 1e-2])),
        "use_qk_norm": bool(rng.random() < 0.2),
        "window": 1 if rng.random() < 0.2 else None,
    }
    if changes["positional_embedding_type"] == "rotary":
        pairs = bool(rng.random() < 0.5)
        changes |= {"d_head": 4, "rotary_dim": int(rng.choice([2, 4])), "rotary_adjacent_pairs": pairs}
    if norm is not None:
        places = {"norm_first": bool(rng.random() < 0.7), "final_norm": bool(rng.random() < 0.6)}
        changes |= {"normalization_type": norm, **places}
    if rng.random() < 0.6:
        changes |= MLP | {"act_fn": str(rng.choice(["relu", "gelu", "gelu_new", "silu"])), "d_mlp": 4}
        changes["gated_mlp"] = bool(rng.random() < 0.2)
        changes["parallel_attn_mlp"] = bool(changes.get("norm_first") and rng.random() < 0.2)
    scale = float(rng.choice([0.1, 0.3, 0.6]))
    source = Chain(P / P.sum(1, keepdims=True))
    return deep("plain", seed=int(rng.integers(1 << 30)), scale=scale, source=source, **changes)


def layer_of(run, unit=FLOAT32) -> Layer:
    weights = {name: value.double().numpy() for name, value in run.model().state_dict().items()}
    return Layer(run.config, weights, unit)


def contexts_of(run) -> Contexts:
    return Contexts.of(run.source, run.objective, run.config)


def bounds_of(run, unit=FLOAT32) -> Bounds:
    return bounds(layer_of(run, unit), contexts_of(run), run.objective.kind == "cross_entropy")


def every_history(run) -> np.ndarray:
    """All sequences of states that the source can give, as long as the model knows them."""
    source, length = run.source, run.config.n_ctx - run.objective.query
    every = np.array(list(product(range(source.n_states), repeat=length)))
    possible = (source.P > 0)[every[:, :-1], every[:, 1:]].all(1) & (source.pi > 0)[every[:, 0]]
    return every[possible]


@torch.no_grad()
def every_score(run, unit=FLOAT32) -> tuple[np.ndarray, np.ndarray]:
    """All sequences, and the model's scores `[sequence, read, state]` in the precision of a unit."""
    histories = every_history(run)
    tokens = torch.from_numpy(histories)
    if run.objective.query:
        tokens = torch.cat([tokens, torch.full((len(tokens), 1), run.config.d_vocab - 1)], 1)
    read = torch.tensor(contexts_of(run).reads)
    decoder = run.model().to(ROUNDING[unit])
    return histories, decoder(tokens, read=read).double().numpy()


def largest_odds(run, unit=FLOAT32) -> np.ndarray:
    """The largest log odds of all sequences, `[read, parent, state_to, state_against]`; -inf of none."""
    histories, scores = every_score(run, unit)
    with np.errstate(divide="ignore"):
        logs = np.log(run.objective.predict(torch.from_numpy(scores)).numpy())
    contexts, n = contexts_of(run), run.source.n_states
    found = np.full((len(contexts.reads), n, n, n), -np.inf)
    for i, read in enumerate(contexts.reads):
        for parent in range(n):
            here = logs[histories[:, read - contexts.query] == parent, i]
            if len(here):
                with np.errstate(invalid="ignore"):
                    odds = here[:, :, None] - here[:, None]
                found[i, parent] = np.where(np.isneginf(here)[:, :, None], -np.inf, odds).max(0)
                np.fill_diagonal(found[i, parent], 0.0)
    return found


def worst_of_all(run, table, unit=FLOAT32) -> tuple[dict[str, float], np.ndarray]:
    """What a proof of a table claims, of all sequences one by one, and the largest KL at each position."""
    histories, scores = every_score(run, unit)
    laws = run.objective.predict(torch.from_numpy(scores)).numpy()
    p = table[histories[:, np.array(contexts_of(run).reads) - run.objective.query]]
    with np.errstate(divide="ignore"):
        ratios = np.log(laws / np.where(p > 0, p, np.nan))  # infinite where the model gives no probability
    nats, apart = kl(p, laws), np.nanmax(ratios, -1) - np.nanmin(ratios, -1)
    found = {
        "worst_kl": nats.max(),
        "log_ratio_below": -np.nanmin(ratios),
        "log_ratio_above": np.nanmax(ratios),
        "logit_error": apart.max(),
    }
    return found, nats.max(0)


def is_within(claims, seen):
    """Returns whether each claim is at least what was seen; None claims nothing."""
    return all(claims[name] is None or value <= claims[name] * ROOM + 1e-13 for name, value in seen.items())


def proof(run, program=None, unit=FLOAT32):
    return proof_of(certify(run, program, unit=unit), int(run.steps[-1]))
