"""Models set by hand, the same under other names of states, and what a probe says of them."""

import dataclasses

import numpy as np
import pytest
import torch
from probing_cases import P3, probe_quickly, random_run, run_of, run_of_walk

import mechmarkov as mm
from mechmarkov.models import HookedDecoder
from mechmarkov.models.constructions.lookup_tables import value_table
from mechmarkov.models.constructions.walk import WalkShape
from mechmarkov.probing.batch import Batch
from mechmarkov.probing.score import Score
from mechmarkov.runs.run import Run
from mechmarkov.sources import Chain
from mechmarkov.training.recipe import load_recipe

PI = np.linalg.matrix_power(P3, 200)[0]
LOG_P = torch.tensor(np.log(P3)).float()
N_CTX = 8
TINY = {"n_layers": 1, "n_heads": 1, "d_model": 4, "d_head": 2, "n_ctx": 4}
SMALL_WALK = {
    "source": {"kind": "circle", "n_states": 3, "p": 1.0},
    "model": {"kind": "walk", "n_ctx": 19, "n_positions": 20, "form": "small", "dtype": "float64"},
    "steps": 60,
}


def holding(*has: str) -> HookedDecoder:
    """A decoder that selects the parent, holds the bigram, the unigram, or none of these."""
    decoder = value_table(LOG_P if "bigram" in has else torch.zeros(3, 3), N_CTX)
    with torch.no_grad():
        if "selection" not in has and "bigram" not in has:
            decoder.get_parameter("blocks.0.attn.W_Q").zero_()
        if "unigram" in has:
            decoder.get_parameter("unembed.b_U").copy_(torch.tensor(np.log(PI)))
    return decoder


def story(*steps: tuple[str, ...]) -> Run:
    """A run that has these things at steps 0, 10, 20, …."""
    return run_of(*(holding(*has) for has in steps))


def unigram_model(source, tied):
    shape = {"tied": tied, "d_vocab": source.n_states}
    decoder = random_run("plain", **(TINY | shape)).model()
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            if name != "unembed.b_U":
                parameter.zero_()
        decoder.unembed.b_U.copy_(torch.tensor(np.log(source.pi)))
    return run_of(decoder, source=source)


def trained(name, seed=0, **changes):
    return mm.train(load_recipe(name).to_data() | changes, seed=seed, progress=False)


def random_walk_run(source, n_ctx, positions="one_hot"):
    shape = WalkShape(source.n_states, n_ctx, n_positions=9, positions=positions)
    generator = torch.Generator().manual_seed(0)
    V = 0.4 * torch.rand(source.n_states, source.n_states, generator=generator)
    u = 0.4 * torch.randn(shape.width, generator=generator)
    return run_of_walk(source, shape, V, u)


def stacked(first, rest):
    """A mixer that is of one kind in the first layer and of another in the others."""

    class Stacked:
        made = 0

        def __new__(cls, config, stack):
            cls.made += 1
            return (first if cls.made % config.n_layers == 1 else rest)(config, stack)

    return Stacked


def asked(model, probe, sequences=64, **run):
    runs = model if isinstance(model, list) else [model]
    steps = "all" if len(runs) > 1 else "last"
    return probe_quickly(run_of(*runs, **run), [probe], steps=steps, sequences=sequences)[probe]


def relabelled(run: Run, batch: Batch, new: list[int]) -> tuple[Run, Batch]:
    """State s is called new[s] from here on, in the chain, the model and the sequences."""
    old = np.argsort(new)
    n, names = len(new), dict(run.states)
    tokens = torch.tensor([*new, *range(n, run.config.d_vocab)])
    names["embed.W_E"] = run.states["embed.W_E"][:, tokens.argsort()]
    if "unembed.W_U" in names:
        names["unembed.W_U"] = run.states["unembed.W_U"][..., old]
    names["unembed.b_U"] = run.states["unembed.b_U"][..., old]
    chain = Chain(run.source.P[np.ix_(old, old)])
    changed = dataclasses.replace(run, source=chain, states=names)
    sequences = (tokens[states] for states in (batch.tokens, batch.history, batch.following))
    return changed, Batch(*sequences, batch.read, batch.known)


def assert_equal(ours: dict[str, Score], theirs: dict[str, Score], leave_out: set[str] = frozenset()) -> None:
    assert set(ours) - leave_out == set(theirs) - leave_out
    for name in set(ours) - leave_out:
        a, b = ours[name], theirs[name]
        assert a.reason == b.reason, name
        if isinstance(a.value, float):
            assert a.value == pytest.approx(b.value, rel=1e-4, abs=1e-5), name
        else:
            assert a.value == b.value, name
