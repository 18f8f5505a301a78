"""Runs made by hand, and weights in which nothing is zero, for the tests of probing and of the probes."""

from collections.abc import Iterable

import numpy as np
import pytest
import torch
from _pytest.mark import ParameterSet

import mechmarkov as mm
from mechmarkov.claims.claim import Claims, said_by
from mechmarkov.models import DecoderConfig, HookedDecoder
from mechmarkov.models.constructions.walk import (
    WalkShape,
    walk_decoder_config,
    walk_frozen_state,
    walk_trainable,
    walk_trained_state,
)
from mechmarkov.objectives import Objective
from mechmarkov.probing import Probe, Subject, subject
from mechmarkov.probing.outcome import Outcome
from mechmarkov.runs.run import Run
from mechmarkov.sources import Chain, Circle

RAW_LOG = Objective(kind="raw_log", read="last", query=True)

# Three states without a symmetry, no zeros, far from its stationary law.
P3 = np.array([[0.7, 0.2, 0.1], [0.15, 0.05, 0.8], [0.3, 0.6, 0.1]])
CHAIN = Chain(P3)

BASE = {
    "n_layers": 2,
    "d_model": 8,
    "n_ctx": 7,
    "d_head": 3,
    "n_heads": 2,
    "d_vocab": 3,
    "attn_only": True,
    "normalization_type": None,
}
MLP = {"attn_only": False, "act_fn": "gelu", "d_mlp": 9}
LLAMA = dict(
    MLP,
    normalization_type="RMS",
    gated_mlp=True,
    act_fn="silu",
    n_key_value_heads=1,
    d_head=4,
    positional_embedding_type="rotary",
)
SHAPES = {
    "plain": {},
    "one token of context": {"n_ctx": 1},
    "two tokens of context": {"n_ctx": 2},
    "three layers": {"n_layers": 3, "n_heads": 1},
    "LN and MLP": dict(MLP, normalization_type="LN"),
    "LNPre": {"normalization_type": "LNPre"},
    "RMS and MLP": dict(MLP, normalization_type="RMS"),
    "RMSPre, tied": {"normalization_type": "RMSPre", "tied": True},
    "shortformer": {"positional_embedding_type": "shortformer"},
    "rotary": {"positional_embedding_type": "rotary", "d_head": 4},
    "relative": {"positional_embedding_type": "relative"},
    "relative bias": {"positional_embedding_type": "relative_bias"},
    "ALiBi": {"positional_embedding_type": "alibi"},
    "no positions": {"positional_embedding_type": "none"},
    "window": {"window": 2},
    "window of itself alone": {"window": 0},
    "relative, window": {"positional_embedding_type": "relative", "window": 3},
    "grouped queries": {"n_layers": 1, "n_heads": 4, "n_key_value_heads": 2},
    "Llama": LLAMA,
    "Qwen3": dict(LLAMA, use_qk_norm=True, tied=True),
    "GPT-NeoX": dict(
        MLP,
        normalization_type="LN",
        parallel_attn_mlp=True,
        positional_embedding_type="rotary",
        d_head=4,
        rotary_dim=2,
    ),
    "post-norm": dict(MLP, normalization_type="LN", norm_first=False),
}
# One of each kind; where a test takes long, the others are in `make test-system`.
FEW_SHAPES = {"plain", "one token of context", "LN and MLP", "relative", "Llama"}


def few(cases: Iterable[tuple[str, Objective]]) -> list[ParameterSet]:
    """Shapes and objectives as parameters of a test that takes long."""
    rest = pytest.mark.system
    return [pytest.param(*case, marks=() if case[0] in FEW_SHAPES else rest) for case in cases]


def config_of(shape: str = "plain", **changes) -> DecoderConfig:
    return DecoderConfig(**(BASE | SHAPES[shape] | changes))


def randomise(decoder: HookedDecoder, seed: int = 0, scale: float = 0.5) -> HookedDecoder:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            draw = scale * torch.randn(parameter.shape, generator=generator)
            parameter.copy_(1 + draw if name.endswith(".w") else draw)
    return decoder


@torch.no_grad()
def grouped(decoder: HookedDecoder, n_key_value_heads: int) -> HookedDecoder:
    """The same with shared keys and values: each group of heads has those of its first."""
    config = decoder.config
    shared = HookedDecoder(DecoderConfig(**config.model_dump() | {"n_key_value_heads": n_key_value_heads}))
    first = slice(None, None, config.n_heads // n_key_value_heads)
    states = decoder.state_dict()
    for name in list(states):
        block, _, leaf = name.rpartition(".")
        if leaf in ("W_K", "W_V", "b_K", "b_V"):
            states[f"{block}._{leaf}"] = states.pop(name)[first]
    shared.load_state_dict(states)
    return shared


def run_of(*decoders: HookedDecoder, source=CHAIN, objective: Objective | None = None, **fields) -> Run:
    """A run whose steps 0, 10, 20, … are the given models."""
    states = {
        name: torch.stack([decoder.state_dict()[name] for decoder in decoders])
        for name in decoders[0].state_dict()
    }
    return Run(
        config=decoders[0].config,
        source=source,
        objective=objective or Objective(),
        steps=10 * torch.arange(len(decoders)),
        states=states,
        **fields,
    )


def random_run(shape: str = "plain", n_steps: int = 1, objective: Objective | None = None, **changes) -> Run:
    query = bool(objective and objective.query)
    config = config_of(shape, **({"d_vocab": 4, "d_vocab_out": 3} if query else {}), **changes)
    decoders = [randomise(HookedDecoder(config), seed) for seed in range(n_steps)]
    return run_of(*decoders, objective=objective)


def walk_run(source: Circle, V: np.ndarray, logits: np.ndarray, **fields) -> Run:
    """Shi & Cao's model with `V[to, from]` and one attention logit for each of the positions."""
    shape = WalkShape(n_states=source.n_states, n_ctx=len(logits), n_positions=1)  # positions of length 1
    u = np.concatenate([np.zeros(source.n_states), logits])
    return run_of_walk(source, shape, torch.tensor(V).float(), torch.tensor(u).float(), **fields)


def run_of_walk(source: Circle, shape: WalkShape, V: torch.Tensor, u: torch.Tensor, **fields) -> Run:
    states = walk_frozen_state(shape) | walk_trained_state(V, u)
    return Run(
        config=walk_decoder_config(shape),
        source=source,
        objective=RAW_LOG,
        steps=torch.tensor([0]),
        states={name: value[None] for name, value in states.items()},
        trainable=walk_trainable(shape),
        **fields,
    )


def parent_logits(n_ctx: int, sharp: float = 60.0) -> np.ndarray:
    """All attention on the last state in front of the query token."""
    return np.where(np.arange(n_ctx) == n_ctx - 2, sharp, 0.0)


def subject_of(run: Run, steps="all", sequences: int = 16, **keywords) -> Subject:
    return Subject.of(run, steps, sequences=sequences, **keywords)


def ask(probe: mm.Probe, run: Run, sequences: int = 64, steps="last", *, seed: int = 0, null: bool = False):
    """What a probe measures on a run, its scores, beside those of null models or not, and its verdict."""
    subject = subject_of(run, steps, sequences, seed=seed)
    data = probe.measure(subject)
    fresh = probe.measure(subject.null) if null else None
    return data, probe.scores(data, fresh), claims_of(probe, data, fresh)


def probe_quickly(run: Run, probes=None, *, nulls=2, sequences=64, steps="last", drawn=False):
    """`mm.probe` with fewer null models and estimates of a law, for tests that assert nothing of them.

    `drawn` is whether each probe's figures are drawn once, as `mm.probe` does: an eighth of the time.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subject, "NULL_MODELS", nulls)
        if not drawn:
            patch.setattr(Outcome, "figures", lambda outcome: [])
        return mm.probe(run, probes, steps=steps, sequences=sequences, law_draws=2)


def says(verdict: str, *facts: str) -> bool:
    """Whether a sentence states these facts (names, kinds, numbers) in this order, in whatever words."""
    rest = verdict
    for fact in facts:
        _, found, rest = rest.partition(fact)
        if not found:
            return False
    return True


def claims_of(probe: Probe, data, null=None) -> Claims:
    """What a probe says of data, which may have been changed by hand."""
    return Claims(said_by(probe.name, probe.claims(data, probe.scores(data, null))))


def names_in(outcome, relation: str, **given) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Subject and object of each claim of an outcome that is shown."""
    return [(one.subject, one.object) for one in outcome.claims.where(relation, status="shown", **given)]
