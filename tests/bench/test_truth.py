"""Hand-set cases by a transformer and exact laws in numpy, which share no code with the library."""

from collections import Counter

import numpy as np
import pytest
import torch
from scipy.special import softmax

from mechmarkov.bench import CASES, methods, page, subspaces
from mechmarkov.bench.patching import edge_effects, node_effects
from mechmarkov.bench.scores import signal_angle

HAND_SET = [name for name in CASES if not name.startswith(("bundled", "trained"))]


def outputs(model, tokens, instead=None):
    """Every sender's part of the stream, and the logits.

    A receiver reads `instead[sender, receiver]`, or `instead[sender, None]`, in place of what is written.
    """
    w = {name: value.numpy() for name, value in model.state_dict().items()}
    pos = w.get("pos_embed.W_pos")
    written, constant = {"embed": w["embed.W_E"][tokens]}, 0 if pos is None else pos[: tokens.shape[1]]

    def read(receiver):
        found = (instead or {}).get
        parts = [found((s, receiver), found((s, None), x)) for s, x in written.items()]
        return sum(parts) + constant

    future = np.triu(np.ones((tokens.shape[1],) * 2, bool), 1)
    for layer in range(model.config.n_layers):
        attn, mlp = f"blocks.{layer}.attn.", f"blocks.{layer}.mlp."
        heads = {}
        for h in range(model.config.n_heads):
            name = f"L{layer}H{h}"
            q, k, v = (read(f"{name}.{x}") @ w[f"{attn}W_{x}"][h] + w[f"{attn}b_{x}"][h] for x in "QKV")
            pattern = softmax(np.where(future, -np.inf, q @ k.swapaxes(1, 2)), -1)
            heads[name] = pattern @ v @ w[f"{attn}W_O"][h]
        written |= heads
        constant = constant + w[f"{attn}b_O"]
        if model.config.d_mlp is not None:
            hidden = np.maximum(0, read(f"L{layer}.mlp") @ w[f"{mlp}W_in"] + w[f"{mlp}b_in"])
            written[f"L{layer}.mlp"] = hidden @ w[f"{mlp}W_out"] + w[f"{mlp}b_out"]
    unembed = w["embed.W_E"].T if model.config.tied else w["unembed.W_U"]
    return written, read("logits") @ unembed + w["unembed.b_U"]


def loss(case, logits):
    return -(case.law.numpy() * np.log(softmax(logits, -1))).sum(-1).mean()


@pytest.mark.parametrize("name", HAND_SET)
def test_effects_are_those_of_a_transformer_in_numpy(name):
    case = CASES[name](5)
    clean, corrupt = case.clean.numpy(), outputs(case.model, case.corrupt.numpy())[0]
    before = loss(case, outputs(case.model, clean)[1])
    paths = {node: (node, None) for node in case.nodes} | case.edges
    found = node_effects(case).as_claims() | edge_effects(case).as_claims()
    assert list(found) == list(paths)
    for what, (sender, receiver) in paths.items():
        instead = {(sender, receiver): corrupt[sender]}
        exact = loss(case, outputs(case.model, clean, instead)[1]) - before
        assert found[what] == pytest.approx(exact, abs=1e-9), what
    largest = max(abs(value) for value in found.values())
    assert largest < 1e-6 if case.empty else largest > 0.01


def counted(x, n, order):
    """The posterior mean under uniform priors: one more than how often each state followed here before."""
    if len(x) < order:
        return np.full(n, 1 / n)
    seen = Counter(x[t] for t in range(order, len(x)) if x[t - order : t] == x[len(x) - order :])
    return np.array([1 + seen[state] for state in range(n)]) / (n + sum(seen.values()))


def filtered(source, x):
    """The next token of a hidden chain: the weight of each state, after every token that was seen."""
    n = len(source.T)
    weight = np.linalg.lstsq(np.vstack([source.T.T - np.eye(n), np.ones(n)]), np.eye(n + 1)[n], rcond=None)[0]
    for token in x:
        weight = (weight * source.E[:, token]) @ source.T
    return (weight @ source.E) / weight.sum()


def law(name, source, x, seed):
    """The law of the next state, drawn as the case says."""
    random = np.random.default_rng(seed)
    if name in ("induction", "contrary"):
        return counted(x, source.n_states, 1)
    if name == "order-2":
        return counted(x, 2, 2)
    if name in ("belief", "no-belief"):
        return filtered(source, x)
    if name in ("tied-plateau", "canonical"):
        p, q = random.uniform(0.6, 0.9, size=2)
        return np.array([[1 - p, p], [q, 1 - q]])[x[-1]]
    if name == "trigram":
        kernel = random.dirichlet(np.ones(3), size=(3, 3))
        return kernel[x[-2], x[-1]] if len(x) > 1 else None
    return random.dirichlet(np.ones(4), size=4)[x[-1]]


@pytest.mark.parametrize("name", HAND_SET)
def test_laws_are_those_of_counting_and_weighing_by_hand(name):
    case = CASES[name](5)
    for x, rows in zip(case.clean.tolist()[:8], case.law.numpy(), strict=False):
        for t, row in zip(case.read.tolist(), rows, strict=True):
            expected = law(name, case.source, x[: t + 1], 5)
            if expected is not None:  # a first token has no token before it
                np.testing.assert_allclose(row, expected, atol=1e-9)


def test_the_angle_of_signals_counts_a_missing_one_and_one_too_many_as_a_right_angle():
    signals = np.random.default_rng(0).normal(size=(50, 4))
    a, b, c, d = np.linalg.qr(signals - signals.mean(0))[0].T
    half = np.cos(np.pi / 4)
    for claimed, expected in (
        ((a, b), 0),
        ((a,), 1 / 2),
        ((a, b, c), 1 / 3),
        ((c,), 1),
        ((a, half * (b + c)), 1 / 4),
        ((half * (a + c),), (1 / 2 + 1) / 2),
        ((a, b, c, d), 2 / 4),
        ((0 * a,), 1),
    ):
        found = signal_angle(np.stack([a, b], 1), 3.0 + np.stack(claimed, 1))
        assert found == pytest.approx(expected, abs=1e-6), expected


@pytest.mark.parametrize("name", ["head", "mlp", "induction"])
def test_direct_attribution_is_what_a_node_itself_writes_to_the_logits_of_the_law(name):
    case = CASES[name](5)
    clean, corrupt = (outputs(case.model, tokens.numpy())[0] for tokens in (case.clean, case.corrupt))
    unembed = case.model.state_dict()["unembed.W_U"].numpy()
    law, read = case.law.numpy(), case.read.numpy()
    claims = methods.direct_logit_attribution(case)
    assert set(claims) == set(case.nodes)
    for node, claimed in claims.items():
        moved = ((clean[node] - corrupt[node]) @ unembed)[:, read]
        expected = ((law * moved).sum(-1) - moved.mean(-1)).mean()
        assert abs(claimed) == pytest.approx(abs(expected), abs=1e-6)
        assert np.sign(claimed) == np.sign(expected) or abs(expected) < 1e-6


def test_a_subspace_whose_interchange_changes_nothing_is_not_claimed():
    """The gain is 0 to the last bit, and so is that of the control task."""
    case = CASES["direct"](0)
    with torch.no_grad():
        case.model.get_parameter("unembed.W_U").zero_()
    said = subspaces._controlled(case, lambda *_, **__: torch.from_numpy(case.subspace[1]))
    assert isinstance(said, str)
    assert "no more than chance" in said


def test_scores_have_two_digits_below_ten_and_none_from_there_on():
    shown = ["–", "-9.99", "9.99", "10", "123"]
    assert [page._number(value) for value in (np.nan, -9.99, 9.994, 10.0, 123.4)] == shown
