"""Cut paths against a transformer written out in numpy."""

import numpy as np
import pytest
import torch
from mechmarkov.probes.induction.cuts import reference_tokens
from mechmarkov.probes.induction.feeding import share_left
from mechmarkov.probes.induction.matches import find_matches
from mechmarkov.probes.induction.paths import trace
from mechmarkov.probes.induction.recorded import INDUCTION
from probing_cases import RAW_LOG, random_run, run_of, subject_of

from mechmarkov.models.constructions.induction_heads import induction_pair
from mechmarkov.objectives import Objective
from mechmarkov.sources import DirichletChains

LAST = Objective(read="last")


def by_hand(state: dict[str, np.ndarray], config, tokens: np.ndarray, cut=None, means=None):
    """Logits `[b, position, out]`, patterns and outputs of heads; `cut` is (feeders, reader, input)."""
    x = state["embed.W_E"][tokens]
    if config.positional_embedding_type == "standard":
        x = x + state["pos_embed.W_pos"][: tokens.shape[1]]
    length, writes, patterns = tokens.shape[1], {}, {}

    def normed(x: np.ndarray, name: str) -> np.ndarray:
        if config.normalization_type is None:
            return x
        x = x - x.mean(-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + config.eps)
        return x * state[f"{name}.w"] + state[f"{name}.b"]

    for layer in range(config.n_layers):
        out = np.zeros_like(x)
        for head in range(config.n_heads):
            inputs = {}
            for name in "QKV":
                read = x
                if cut is not None and cut[1] == (layer, head) and cut[2] == name:
                    read = x + sum(means[feeder] - writes[feeder] for feeder in cut[0])
                w, b = (state[f"blocks.{layer}.attn.{kind}_{name}"][head] for kind in "Wb")
                inputs[name] = normed(read, f"blocks.{layer}.ln1") @ w + b
            logits = inputs["Q"] @ inputs["K"].swapaxes(1, 2) / config.score_scale
            logits = np.where(np.tri(length, dtype=bool), logits, -np.inf)
            pattern = np.exp(logits - logits.max(-1, keepdims=True))
            patterns[layer, head] = pattern = pattern / pattern.sum(-1, keepdims=True)
            # The output bias b_V W_O is in the mean as in every sequence, so it cancels.
            writes[layer, head] = pattern @ inputs["V"] @ state[f"blocks.{layer}.attn.W_O"][head]
            out = out + writes[layer, head]
        x = x + out + state[f"blocks.{layer}.attn.b_O"]
    return normed(x, "ln_final") @ state["unembed.W_U"] + state["unembed.b_U"], patterns, writes


@pytest.mark.parametrize("norm", [None, "LN"])
@pytest.mark.parametrize("objective", [Objective(), LAST, RAW_LOG], ids=["all", "last", "query"])
def test_a_cut_is_that_of_a_transformer_written_out(norm, objective):
    run = random_run("three layers", n_steps=2, objective=objective, n_heads=2, normalization_type=norm)
    subject = subject_of(run, sequences=10)
    batch, member, reader = subject.batch, 1, (2, 1)
    exact, simpler = subject.exact["bigram"], subject.exact["unigram"]
    paths = trace(subject, [[], [reader]], exact, simpler)
    state = {name: value.double().numpy() for name, value in run.model(step=10).state_dict().items()}
    surprise = find_matches(batch, 3).surprise[0].double().numpy()
    queries = float(find_matches(batch, 3).queries[0].sum())
    read, real = batch.read.numpy(), batch.history.shape[1]

    others = by_hand(state, run.config, reference_tokens(subject).numpy())[2]
    means = {head: write.mean(0) for head, write in others.items()}
    parts = []  # each sequence's part in the score

    def measured(cut=None) -> tuple[float, np.ndarray]:
        logits, patterns, _ = by_hand(state, run.config, batch.tokens.numpy(), cut, means)
        parts.append((patterns[reader][:, read, :real] * surprise).sum((1, 2)))
        score = parts[-1].sum() / queries
        predicted = objective.predict(torch.tensor(logits[:, read])).numpy()
        predicted = np.maximum(predicted, 1e-12)
        return score, (exact * np.log(exact / predicted)).sum(-1).mean(-1)

    score, clean = measured()
    assert paths["intact"].values[member] == pytest.approx(score, abs=1e-5)
    assert paths["kl_intact"].values[member] == pytest.approx(clean.mean(), rel=1e-4)
    assert paths["kl_simpler"].values == pytest.approx(
        (exact * np.log(exact / simpler)).sum(-1).mean(), rel=1e-9
    )
    ahead = (exact * np.log(exact / simpler)).sum(-1).mean(-1) - clean
    assert paths["simpler_error"].values[member] == pytest.approx(ahead.std(ddof=1) / np.sqrt(10), rel=1e-4)
    cuts = {(la, h): measured(([(la, h)], reader, "K"))[0] for la in range(2) for h in range(2)}
    for (la, h), left in cuts.items():
        assert paths["key_cut"].values[member, la, h] == pytest.approx(left, abs=1e-5)
    assert np.isnan(paths["key_cut"].values[member, 2]).all()
    feeder = min(cuts, key=lambda where: cuts[where])
    assert (paths["feeder_layer"][member], paths["feeder_head"][member]) == feeder
    feeders = [(int(la), int(h)) for la, h in np.argwhere(paths["feeds"].values[member])]
    assert feeder in feeders
    for i, into in enumerate("QKV"):
        score, changed = measured((feeders, reader, into))
        assert paths["cut"].values[member, i] == pytest.approx(score, abs=1e-5)
        assert paths["kl_cut"].values[member, i] == pytest.approx(changed.mean(), rel=1e-4)
        error = (changed - clean).std() / np.sqrt(9)
        assert paths["kl_error"].values[member, i] == pytest.approx(error, rel=1e-3, abs=1e-5)
    if parts[0].sum() > 0:
        expected = share_left(torch.tensor(parts[-2]), torch.tensor(parts[0]))
        assert paths["key_left"].values[member] == pytest.approx(expected, rel=1e-3)


def test_the_interval_of_what_is_left_holds_the_ratio_of_means():
    generator, found = torch.Generator().manual_seed(0), []
    for _ in range(600):
        intact, noise = torch.randn(2, 20, generator=generator, dtype=torch.float64)
        intact = 1 + 0.3 * intact
        share, low, high = share_left(0.4 * intact + 0.2 * noise, intact)
        assert low < share < high
        found.append(low <= 0.4 <= high)
    assert 0.93 <= np.mean(found) <= 0.97  # 95 % of 600, two standard errors either way
    assert np.isnan(share_left(noise[:1], intact[:1])).all()
    assert np.isnan(share_left(noise, -intact)).all()


def test_without_a_head_or_a_layer_before_it_there_is_nothing_to_cut():
    subject = subject_of(random_run(n_steps=2), sequences=5)
    paths = trace(subject, [[], [(0, 1)]], subject.exact["bigram"], subject.exact["unigram"])
    assert (paths["feeder_layer"] == -1).all()
    assert (paths["feeder_head"] == -1).all()
    for name in ("intact", "key_cut", "cut", "kl_intact", "kl_cut", "kl_error"):
        assert np.isnan(paths[name]).all()


def test_cutting_leaves_the_models_as_they_were():
    run = random_run(n_steps=2)
    subject = subject_of(run, sequences=5)
    before = {name: value.clone() for name, value in subject.decoder.state_dict().items()}
    points = list(subject.decoder.hook_dict)
    out = subject.decoder(subject.batch.tokens)
    trace(subject, [[(1, 0)], [(1, 1)]], subject.exact["bigram"], subject.exact["unigram"])
    assert list(subject.decoder.hook_dict) == points
    assert all(torch.equal(value, before[name]) for name, value in subject.decoder.state_dict().items())
    assert torch.equal(subject.decoder(subject.batch.tokens), out)


def test_in_a_hand_set_pair_the_keys_alone_carry_it():
    subject = subject_of(run_of(induction_pair(3, 16)), sequences=60)
    paths = trace(subject, [[(1, 0)]], subject.exact["bigram"], subject.exact["unigram"])
    assert paths["feeder_layer"] == paths["feeder_head"] == 0
    assert paths["intact"].values[0] == pytest.approx(
        subject.recorded(INDUCTION).reference.ideal[0], abs=1e-6
    )
    assert abs(paths["cut"].values[0, 1]) < 0.2 * paths["intact"].values[0]
    assert paths["cut"].values[0, [0, 2]] == pytest.approx(paths["intact"].values[0], abs=1e-6)
    assert paths["kl_cut"].values[0, [0, 2]] == pytest.approx(paths["kl_intact"].values[0], abs=1e-6)
    assert paths["kl_cut"].values[0, 1] > paths["kl_intact"].values[0] + 0.05


@pytest.mark.parametrize("sequences", [8, 128])
def test_a_sharp_reader_is_judged_alike_by_few_sequences_and_by_many(sequences):
    """Noise of the mean that is put in, amplified, would make a path that does harm look needed."""
    source = DirichletChains(n_states=8, start="uniform")
    subject = subject_of(run_of(induction_pair(8, 24), source=source), sequences=sequences)
    found = trace(
        subject, [[(1, 0)]], subject.exact["in_context_bigram"], subject.exact["in_context_unigram"]
    )
    change, error = (
        found["kl_cut"].values[0, 1] - found["kl_intact"].values[0],
        found["kl_error"].values[0, 1],
    )
    assert change + 1.96 * error < -0.15  # it is -0.31 with the mean of 8192 sequences


@pytest.mark.parametrize("sequences", [2, 3, 16])
def test_however_few_the_sequences_the_feeder_of_a_perfect_pair_is_not_denied(sequences):
    subject = subject_of(run_of(induction_pair(3, 40)), sequences=sequences)
    paths = trace(subject, [[(1, 0)]], subject.exact["bigram"], subject.exact["unigram"])
    _, low, high = paths["key_left"].values[0]
    assert low < 0.5
    assert abs(low + high) / 2 < 0.5  # a cut that keeps a part of the sequence itself leaves 1 / sequences
    if sequences >= 16:
        assert high < 0.5
        assert np.isnan(paths["earlier_left"].values).all()
