"""Probing 100 checkpoints as one stack, beside loops of run_with_cache over the checkpoints.

    python -m benchmarks.trajectory [--batches 16 256] [--repeats 5]

The run is the one-layer walk, K=6, N=97, with every one of 100 steps kept. Both sides measure everything that
`behaviour`, `attention` and `alignment` take their scores from, at every step, with the same code, and must
agree before anything is timed. The loop runs each checkpoint by itself and measures from its cache; what does
not depend on the model (sequences, exact predictors) it computes once. Two shorter loops stand
beside them: one with eight of those scores written by hand in torch, and one that measures nothing.
"""

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

import mechmarkov as mm
from benchmarks.timing import report
from mechmarkov.probing.chunking import Chunk
from mechmarkov.probing.probe import load_probe
from mechmarkov.probing.recording import SCORES
from mechmarkov.probing.recording import record as recording

PROBES = ("behaviour", "attention", "alignment")

Measured = dict[str, np.ndarray]


def measure(subject: mm.Subject) -> Measured:
    """Every array that the probes' scores are taken from, `[step, ...]`."""
    found = {}
    for name in PROBES:
        for key, values in subject.result(name).data_vars.items():
            if "step" in values.dims:
                found[f"{name}.{key}"] = values.values
    return found


def stacked(run: mm.Run, sequences: int) -> Measured:
    """One stack, in chunks."""
    return measure(mm.Subject.of(run, "all", sequences=sequences, find=load_probe))


def one_by_one(run: mm.Run, sequences: int) -> Measured:
    """Each checkpoint by itself: run_with_cache, then the same measures of what the cache holds."""
    found: dict[str, list[np.ndarray]] = {}
    first = mm.Subject.of(run, sequences=sequences, find=load_probe)
    for step in run.steps.tolist():
        member = run.model(steps=[step])
        subject = mm.Subject(run, member, first.batch, axis="step", coordinates=[step], find=load_probe)
        subject.__dict__["exact"] = first.exact
        object.__setattr__(member, "run_with_hooks", from_cache(run.model(step=step), member))
        with patch.object(recording, "chunked", lambda stack, tokens, elements: [whole(stack, tokens)]):
            subject.recorded(SCORES)
        for name, values in measure(subject).items():
            found.setdefault(name, []).append(values)
    return {name: np.concatenate(values) for name, values in found.items()}


def whole(stack: mm.HookedDecoder, tokens: torch.Tensor) -> Chunk:
    """A stack and a batch as one chunk."""
    return Chunk(slice(0, len(stack)), stack, slice(0, len(tokens)), tokens)


def from_cache(model: mm.HookedDecoder, member: mm.HookedDecoder) -> Callable[..., torch.Tensor]:
    """A pass that caches everything first and then hands each hook what it asked for."""

    def run_with_hooks(
        tokens: torch.Tensor, fwd_hooks: list[tuple[str, Callable[..., None]]]
    ) -> torch.Tensor:
        logits, cache = model.run_with_cache(tokens)
        for name, hook in fwd_hooks:
            hook(cache[name][None], hook=member.hook_dict[name])
        scores: torch.Tensor = logits[None]
        return scores

    return run_with_hooks


@torch.no_grad()
def by_hand(run: mm.Run, sequences: int) -> list[list[float]]:
    """What a notebook would have: run_with_cache, and eight scores of each checkpoint."""
    subject = mm.Subject.of(run, sequences=sequences)
    tokens, last = subject.batch.tokens, subject.batch.history[:, -1]
    source = run.source
    assert isinstance(source, mm.sources.FixedChain)
    P = torch.tensor(source.P)
    uniform, bigram = torch.full((6,), 1 / 6, dtype=torch.float64), P[last]
    centred = P.sqrt() - P.sqrt().mean(0) - P.sqrt().mean(1, keepdim=True) + P.sqrt().mean()
    found = []
    for step in run.steps.tolist():
        model = run.model(step=step)
        logits, cache = model.run_with_cache(tokens)
        p = run.objective.predict(logits[:, -1].double()).clamp_min(1e-12)
        attention = cache["blocks.0.attn.hook_pattern"][:, 0, -1].double()
        profile = attention.mean(0).flip(0)
        attn: Any = model.blocks[0].attn
        circuit = (model.embed.W_E[:6] @ attn.W_V[0] @ attn.W_O[0]).double()
        circuit = circuit @ model.unembed.W_U.double()
        circuit = circuit - circuit.mean(0) - circuit.mean(1, keepdim=True) + circuit.mean()
        scores = [
            (uniform * (uniform / p).log()).sum(-1).mean(),
            (torch.special.xlogy(bigram, bigram) - bigram * p.log()).sum(-1).mean(),
            (p.argmax(-1) == subject.batch.targets[:, 0]).double().mean(),
            profile[1],
            profile[1:].argmax() + 1,
            torch.special.entr(attention).sum(-1).exp().mean(),
            (attention[:, :-1].amax(-1) - attention[:, :-1].amin(-1)).mean(),
            (circuit * centred).sum() / (circuit.norm() * centred.norm()).clamp_min(1e-30),
        ]
        found.append([float(score) for score in scores])
    return found


def bare(run: mm.Run, sequences: int) -> None:
    """run_with_cache over the checkpoints, and nothing with it."""
    tokens = mm.Subject.of(run, sequences=sequences).batch.tokens
    for step in run.steps.tolist():
        run.model(step=step).run_with_cache(tokens)


def check(ours: Measured, theirs: Measured, hand: list[list[float]]) -> None:
    """All sides found the same, but for float32 sums in another order."""
    assert ours.keys() == theirs.keys()
    for name, values in ours.items():
        if name != "attention.position_share":  # rounding where the logits hardly vary
            np.testing.assert_allclose(values, theirs[name], rtol=1e-3, atol=1e-4, err_msg=name)
    column = np.array(hand).T
    np.testing.assert_allclose(column[0], ours["behaviour.kl"][:, 0], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(column[3], ours["attention.lag_mass"][:, 0, 0, 1], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(column[5], ours["attention.effective_tokens"][:, 0, 0], rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(column[7], ours["alignment.kernel_cosine"][:, 0], rtol=1e-3, atol=1e-3)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, nargs="+", default=[16, 256])
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    recipe = mm.load_recipe("walk-k6-half").with_set(["steps=99", "checkpoints={every=1}"])
    run = mm.train(recipe, seed=0, progress=False)
    for sequences in options.batches:
        check(stacked(run, sequences), one_by_one(run, sequences), by_hand(run, sequences))
        report(
            f"{len(run.steps)} checkpoints of the walk K=6, N=97, evaluation batch {sequences}, one thread",
            {
                "one stack, three probes at every step": partial(stacked, run, sequences),
                "run_with_cache loop, the same measures": partial(one_by_one, run, sequences),
                "run_with_cache loop, eight scores by hand": partial(by_hand, run, sequences),
                "run_with_cache loop, nothing measured": partial(bare, run, sequences),
            },
            options.repeats,
        )
