"""What is said of a trained member: the probes' own scores, and whether it stayed at the unigram."""

import numpy as np
import pytest
import torch

import mechmarkov as mm
from mechmarkov.models.constructions.lookup_tables import direct_table
from mechmarkov.probing.probe import load_probe
from mechmarkov.probing.subject import Subject
from mechmarkov.sweeps.evaluate import evaluate
from mechmarkov.sweeps.stuck import Line, line_of, stuck

T = 16


def handset(source, law):
    """A model that predicts `law[current token]`, as a run."""
    return mm.Run.from_model(direct_table(torch.tensor(law).log().float(), T), source=source)


def answer(source, law):
    return evaluate([handset(source, law)], [])[0].stuck


def mixed(source, share):
    """Between the unigram (0) and the bigram (1)."""
    return (1 - share) * source.pi + share * source.P


@pytest.mark.parametrize(
    "source", [mm.Binary(p=0.2, q=0.3), mm.Binary(p=0.8, q=0.9), mm.Circle(n_states=5, p=0.8)]
)
def test_the_unigram_is_stuck_unlike_the_bigram(source):
    P = np.where(source.P > 0, source.P, 1e-9)
    unigram, bigram = answer(source, np.tile(source.pi, (source.n_states, 1))), answer(source, P)
    gap = source.unigram_entropy - source.entropy_rate
    assert (unigram.value, bigram.value) == (True, False)
    assert unigram.line == pytest.approx(gap / 2, abs=1e-12)
    # 512 sequences of 16: pi of the sample is within 0.02 of pi, and the KL of a row below 2 nats.
    assert unigram.excess == pytest.approx(gap, abs=0.03)
    assert bigram.excess == pytest.approx(0, abs=1e-6)


def test_the_line_is_half_the_bigrams_gain():
    source = mm.Binary(p=0.1, q=0.3)
    shares = np.linspace(0, 1, 21)
    runs = [handset(source, mixed(source, share)) for share in shares]
    found = [one.stuck for one in evaluate(runs, [])]
    # By hand: pi-weighted KL of the rows of P to those of the mixture.
    exact = [
        float(source.pi @ (source.P * np.log(source.P / mixed(source, share))).sum(1)) for share in shares
    ]
    half = (source.unigram_entropy - source.entropy_rate) / 2
    clear = [i for i, value in enumerate(exact) if abs(value - half) > 0.02]  # the sample's pi is not pi
    assert 15 < len(clear) < 21
    assert [found[i].value for i in clear] == [exact[i] > half for i in clear]
    assert {found[i].value for i in clear} == {True, False}


def test_nothing_can_be_stuck_where_tokens_are_independent():
    source = mm.Binary(p=0.4, q=0.6)
    found = answer(source, source.P)
    assert found.value is None
    assert found.reason == "the unigram is as good as the bigram here"


def test_in_context_the_unigram_is_the_sequences():
    source = mm.DirichletChains(n_states=3, start="uniform")
    run = handset(source, np.full((3, 3), 1 / 3))
    subject = Subject.of(run)
    line = line_of(subject)
    assert (line.predictor, line.expected, line.loss) == ("in_context_bigram", True, 0.0)
    # By brute force, token by token.
    best, other = subject.exact["in_context_bigram"], subject.exact["in_context_unigram"]
    total = 0.0
    for b in range(best.shape[0]):
        for t in range(best.shape[1]):
            total += sum(best[b, t, j] * np.log(best[b, t, j] / other[b, t, j]) for j in range(3))
    assert line.half == pytest.approx(total / best.shape[0] / best.shape[1] / 2, rel=1e-9)


def test_without_a_closed_form_losses_are_sampled():
    source = mm.DirichletChains(n_states=2)
    assert isinstance(source.best(), str)
    run = handset(source, np.full((2, 2), 0.5))
    subject = Subject.of(run)
    line = line_of(subject)
    targets = subject.batch.targets.numpy()

    def loss(name):
        law = subject.exact[name]
        terms = [-np.log(law[b, t, targets[b, t]]) for b in range(len(law)) for t in range(law.shape[1])]
        return np.mean(terms)

    assert not line.expected
    assert line.loss == pytest.approx(loss("in_context_bigram"), rel=1e-12)
    assert 2 * line.half == pytest.approx(loss("in_context_unigram") - loss("in_context_bigram"), rel=1e-9)
    found = evaluate([run], [])[0].stuck
    assert found.excess == pytest.approx(np.log(2) - loss("in_context_bigram"), rel=1e-6)  # uniform: log 2
    assert found.value is True


def test_the_line_itself_is_not_stuck():
    data = load_probe("behaviour").measure(Subject.of(handset(mm.Binary(p=0.2, q=0.3), np.full((2, 2), 0.5))))
    excess = float(data["kl"].sel(predictor="bigram")[-1])
    assert stuck(data, Line("bigram", True, 0.0, excess)).value is False
    assert stuck(data, Line("bigram", True, 0.0, excess * (1 - 1e-9))).value is True


def test_scores_are_those_of_mm_probe():
    recipe = mm.load_recipe("binary-p05-q08-tied").replace(
        **{"model.n_ctx": 12, "steps": 5, "data.batch": 4, "checkpoints": [2]}
    )
    runs = mm.train(recipe, seeds=[3, 4])
    found = evaluate(runs, ["attention", "dynamics", "behaviour"], steps="all")
    for run, one in zip(runs, found, strict=True):
        alone = mm.probe(run, ["behaviour", "attention", "dynamics"], steps="all")
        assert {**one.skipped} == alone.skipped
        assert one.failed == {}
        assert {*one.scores} == {*alone.outcomes}
        for probe, outcome in alone.outcomes.items():
            for name, score in outcome.scores.items():
                ours, theirs = one.scores[probe][name], score.to_data()
                assert {*ours} == {*theirs}
                for key, value in theirs.items():
                    # float32 forward passes that sum in another order
                    numeric = isinstance(value, int | float | tuple | list)
                    close = pytest.approx(value, abs=2e-6, rel=1e-4) if numeric else value
                    assert ours[key] == close, (probe, name, key)


def test_seeds_differ_so_their_scores_do():
    recipe = mm.load_recipe("binary-p05-q08-tied").replace(**{"model.n_ctx": 12, "steps": 5})
    one, other = evaluate(mm.train(recipe, seeds=[3, 4]), [])
    assert one.scores["behaviour"]["kl_bigram"]["value"] != other.scores["behaviour"]["kl_bigram"]["value"]
    assert one.scores["behaviour"]["kl_bigram"]["null"] == other.scores["behaviour"]["kl_bigram"]["null"]
