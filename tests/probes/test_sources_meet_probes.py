"""Every source trains from a recipe; every probe answers for it, or says truly why it does not."""

import math

import numpy as np
import pytest
import torch
from probing_cases import probe_quickly, randomise, run_of

import mechmarkov as mm
from mechmarkov.models import HookedDecoder
from mechmarkov.sources import FixedChain, Hidden, Stationary
from mechmarkov.theory.predictors import uniform

P3 = [[0.7, 0.2, 0.1], [0.15, 0.05, 0.8], [0.3, 0.6, 0.1]]
OTHER = [[0.1, 0.2, 0.7], [0.6, 0.3, 0.1], [0.2, 0.7, 0.1]]
SECOND = [[[0.8, 0.2], [0.3, 0.7]], [[0.1, 0.9], [0.6, 0.4]]]
OBSERVED = mm.Chain(P3).sample(1, 3_000, generator=torch.Generator().manual_seed(0))[0]

TABLE, CHAIN = {"alignment", "storage"}, {"symmetry", "landscape"}
# Each source with the probes that do not apply, once there are several steps.
SOURCES = {
    "graph": (mm.Graph(weights=[[0, 1, 1], [1, 0, 2], [1, 2, 0]]), set()),
    "lagged chain": (mm.LaggedChain(P3, lag=2), CHAIN | {"storage"}),
    "lag one": (mm.LaggedChain(P3, lag=1), CHAIN),
    "switch": (mm.sources.Switch(p=0.3, q=0.4, lag=3), CHAIN | {"storage"}),
    "order k": (mm.OrderK(SECOND), CHAIN),
    "doubly stochastic": (mm.sources.DoublyStochastic(n_states=3), CHAIN | TABLE),
    "rows alike": (mm.DirichletChains(n_states=3, rows="alike"), CHAIN | TABLE),
    "fresh order 2": (mm.DirichletChains(n_states=2, start="uniform", order=2), CHAIN | TABLE),
    "mixture": (mm.sources.ChainMixture(chains=[P3, OTHER]), CHAIN | TABLE),
    "relabelled graph": (
        mm.sources.RelabelledGraph(graph={"edges": [[0, 1], [1, 2]], "n_states": 3}, endpoint=0, at=4),
        CHAIN | TABLE,
    ),
    "trigger": (mm.sources.TriggerBigram(P3, triggers=[1]), CHAIN),
    "trigger, global": (mm.sources.TriggerBigram(P3, triggers=[1], start="global"), CHAIN),
    "selective lag": (mm.sources.SelectiveLag(P3, lags=[1, 2]), CHAIN),
    "selective, no parent": (mm.sources.SelectiveLag(P3, lags=[2, 3]), CHAIN | {"storage"}),
    "hidden": (mm.HiddenMarkov(transitions=[[0.9, 0.1], [0.2, 0.8]], emissions=[P3[0], OTHER[0]]), CHAIN),
    "tokens": (
        mm.sources.Tokenised(
            source=mm.sources.Switch(p=0.3, q=0.4, lag=2),
            tokeniser={"kind": "greedy", "words": ["a", "b", "ab", "bba"]},
        ),
        CHAIN,
    ),
    "hidden mixture": (
        mm.sources.HiddenMixture(
            tasks=[
                {"transitions": [[0.9, 0.1], [0.2, 0.8]], "emissions": [P3[0], OTHER[0]]},
                {"transitions": [[0.1, 0.9], [0.8, 0.2]], "emissions": [P3[0], OTHER[0]]},
            ]
        ),
        CHAIN,
    ),
    "factored": (
        mm.sources.FactoredHiddenMarkov(
            factors=[
                {"transitions": [[0.9, 0.1], [0.2, 0.8]], "emissions": [[0.8, 0.2], [0.3, 0.7]]},
                {"transitions": [[0.7, 0.3], [0.4, 0.6]], "emissions": [[0.9, 0.1], [0.2, 0.8]]},
            ]
        ),
        CHAIN,
    ),
    "generalised hidden": (mm.sources.GeneralisedHiddenMarkov.qubit(turn=0.7, strength=0.6), CHAIN),
    "context tree": (
        mm.sources.ContextTree(
            leaves=[
                {"context": [1], "law": [0.3, 0.7]},
                {"context": [0, 0], "law": [0.9, 0.1]},
                {"context": [1, 0], "law": [0.5, 0.5]},
            ]
        ),
        CHAIN,
    ),
    "context trees": (mm.sources.ContextTrees(n_states=2, depth=2), CHAIN | TABLE),
    "observed": (mm.Observed(OBSERVED, order=1, block=50), CHAIN),
    "observed, order 2": (mm.Observed(OBSERVED, order=2, block=50), CHAIN),
    "context conditioned": (mm.sources.ContextConditionedChain(P3), CHAIN | TABLE),
    "causal graph": (
        mm.sources.CausalGraph(n_states=3, parents=[[], [0], [0], [1], [2], [3], []]),
        CHAIN | TABLE,
    ),
    "fruit 1": (mm.sources.FruitQuestions(task=1), CHAIN | TABLE),
    "fruit 2": (mm.sources.FruitQuestions(task=2), CHAIN | TABLE),
}

HIDDEN = {
    "mixture",
    "relabelled graph",
    "selective lag",
    "selective, no parent",
    "hidden",
    "tokens",
    "hidden mixture",
    "factored",
    "generalised hidden",
}


def first_order(source):
    return getattr(source, "order", None) == 1


# What a reason says of the source, and whether that is so.
CLAIMS = {
    "redraws its chain for every sequence": lambda source: source.redraws,
    "is not stationary": lambda source: not source.redraws and not isinstance(source, Stationary),
    "is not a first-order chain": lambda source: (
        not isinstance(source, FixedChain) and not first_order(source)
    ),
    "is a first-order chain in another form": first_order,
    "is a first-order chain estimated": lambda source: (
        first_order(source) and isinstance(source, mm.Observed)
    ),
    "law is an estimate": lambda source: isinstance(source, mm.Observed),
    "is not one first-order chain": lambda source: not isinstance(source, FixedChain),
    "it takes long": lambda source: isinstance(source, FixedChain),
    "some transitions are impossible": lambda source: source.P.min() <= 0,
    "has no graph of positions": lambda source: not isinstance(source, mm.sources.CausalGraph),
    "nothing is hidden behind": lambda source: not isinstance(source, Hidden),
    "neighbours are independent": lambda source: np.allclose(source.P, source.pi, rtol=0, atol=1e-12),
}


def recipe(source, **changes):
    n_ctx = 6 if source.length is None else source.length - 1
    shape = {"n_layers": 1, "n_heads": 1, "d_model": 4, "d_head": 2, "n_ctx": n_ctx, "d_mlp": 4}
    data = {
        "name": source.kind,
        "source": source.model_dump(mode="json"),
        "model": {
            "kind": "decoder",
            "attn_only": False,
            "act_fn": "relu",
            "normalization_type": "LN",
            **shape,
        },
        "data": {"batch": 4},
        "steps": 3,
    }
    return data | changes


# Sources of a class that another row asks about too, or of a like one: in `make test-system`.
VARIANTS = {
    "observed, order 2",
    "lag one",
    "switch",
    "rows alike",
    "trigger, global",
    "selective, no parent",
    "fruit 2",
    "factored",
    "context tree",
    "generalised hidden",
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.system if name in VARIANTS else ()) for name in SOURCES]
)
@pytest.mark.usefixtures("one_term")
def test_every_probe_answers_or_says_truly_why_not(name):
    source, not_asked = SOURCES[name]
    run = mm.train(recipe(source), seed=0)
    assert run.steps.tolist()[-1] == 3
    assert run.source == source
    result = probe_quickly(run, nulls=2, steps=[0, 3], sequences=8, drawn=True)
    assert result.failed == {}
    asks = {
        "belief": name in HIDDEN,
        "graph": name == "causal graph",
        "degeneracy": False,
        "certificate": False,
    }
    assert set(result.skipped) == not_asked | {probe for probe, asked in asks.items() if not asked}
    assert (
        "runs only if named: --probes certificate, or mm.probe(run, ['certificate'])"
        in result.skipped.pop("certificate")
    )
    for why in result.skipped.values():
        (claim,) = [claim for claim in CLAIMS if claim in why]
        assert CLAIMS[claim](source), why
        assert "\n" not in why
    for outcome in result.values():
        assert outcome.verdict
        assert "nan" not in outcome.verdict
        for score in outcome.scores.values():
            assert score.value is not None or score.reason
            assert not isinstance(score.value, float) or math.isfinite(score.value)


@pytest.mark.parametrize("name", SOURCES)
def test_a_model_that_says_nothing_is_as_far_from_each_predictor_as_its_law_says(name):
    """Behaviour's KLs for uniform predictions: log K less the entropy of what the predictor says."""
    source = SOURCES[name][0]
    n_ctx = 6 if source.length is None else source.length - 1
    config = mm.DecoderConfig(
        n_layers=1, d_model=2, d_head=2, n_ctx=n_ctx, d_vocab=source.n_states, normalization_type=None
    )
    decoder = randomise(HookedDecoder(config), scale=0.0)
    result = probe_quickly(run_of(decoder, source=source), ["behaviour"], sequences=32)["behaviour"]
    kl = result.data["kl"][-1]
    tokens = mm.Subject.of(run_of(decoder, source=source), sequences=32).batch.history.numpy()
    assert np.allclose(uniform(tokens, source.n_states), 1 / source.n_states)
    for rule in source.predictors().values():
        law = rule.probabilities(tokens)
        entropy = -(law * np.log(np.where(law > 0, law, 1))).sum(-1)
        expected = np.log(source.n_states) - entropy.mean()
        assert float(kl.sel(predictor=rule.name)) == pytest.approx(expected, abs=1e-6)  # float32 predictions
    best = source.best()
    if not isinstance(best, str):
        optimal = best.probabilities(tokens).max(-1).mean()
        assert result.scores["optimal_accuracy"].value == pytest.approx(optimal, abs=1e-9)


@pytest.mark.parametrize("name", SOURCES)
def test_no_predictor_beats_the_best_on_what_is_drawn(name):
    """The best predictor's loss on sampled next tokens is the lowest, up to five standard errors."""
    source = SOURCES[name][0]
    best = source.best()
    if isinstance(best, str):
        assert not any(rule.exact for rule in source.predictors().values() if rule.name != "uniform")
        return
    length = source.length or 40
    tokens = source.sample(2_000, length, generator=torch.Generator().manual_seed(1)).numpy()
    history, following = tokens[:, :-1], tokens[:, 1:, None]

    def loss(rule):
        chosen = np.take_along_axis(rule.probabilities(history), following, axis=-1)[..., 0]
        return -np.log(np.maximum(chosen, 1e-300)).mean(1)

    lowest = loss(best)
    assert lowest.max() < 600  # it never calls impossible what was drawn
    for rule in source.predictors().values():
        gap = loss(rule) - lowest
        assert gap.mean() > -5 * gap.std() / np.sqrt(len(gap)) - 1e-12, rule.name


def test_a_walk_model_answers_the_questions_about_fruit():
    source = mm.sources.FruitQuestions(task=1)
    changes = {
        "model": {"kind": "walk", "n_ctx": 17, "n_positions": 20},
        "objective": {"kind": "raw_log", "read": "last", "query": True},
        "init": {"scheme": "normal", "std": 0.01},
        "optimiser": {"kind": "gd", "lr": 0.1},
    }
    run = mm.train(recipe(source, **changes), seed=0)
    result = probe_quickly(run, nulls=2, steps="all", sequences=8)
    assert result.failed == {}
    assert set(result.skipped) == CHAIN | TABLE | {"belief", "graph", "degeneracy", "certificate"}
    optimal = result["behaviour"].scores["optimal_accuracy"].value
    assert optimal == pytest.approx(1)  # the words tell the answer


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"model": {"kind": "decoder", "n_layers": 1, "d_model": 4, "d_head": 2, "n_ctx": 17}}, 16),
        (
            {
                "model": {"kind": "walk", "n_ctx": 16},
                "objective": {"kind": "raw_log", "read": "last", "query": True},
                "init": {"scheme": "zero"},
            },
            17,
        ),
    ],
    ids=["decoder", "walk"],
)
def test_a_context_that_does_not_fit_the_sentences_is_refused(changes, expected):
    n_ctx = changes["model"]["n_ctx"]
    words = rf"^model\.n_ctx is {n_ctx}, expected {expected}: sequences of the source have 17 states$"
    with pytest.raises(ValueError, match=words):
        mm.Recipe.from_data(recipe(mm.sources.FruitQuestions(task=1), **changes))


def test_a_run_whose_context_does_not_fit_is_no_run_file(tmp_path):
    source = mm.sources.FruitQuestions(task=2)
    config = mm.DecoderConfig(n_layers=1, d_model=2, d_head=2, n_ctx=18, d_vocab=19, normalization_type=None)
    run_of(HookedDecoder(config), source=source).save(tmp_path / "fits.pt")
    assert mm.load(tmp_path / "fits.pt").source == source
    other = mm.sources.FruitQuestions(task=1)
    wrong = run_of(HookedDecoder(config), source=other)
    with pytest.raises(ValueError, match=r"model\.n_ctx is 18, expected 16: sequences of the source have 17"):
        wrong.save(tmp_path / "other.pt")
    assert not (tmp_path / "other.pt").exists()
    with pytest.raises(ValueError, match=r"model\.n_ctx is 18, expected 16"):
        mm.Run.from_model(HookedDecoder(config), source=other)
    assert mm.Run.from_model(HookedDecoder(config), source=source).source == source


@pytest.mark.parametrize("lacking", ["uniform", "unigram", "bigram"])
def test_a_source_without_a_predictor_that_probes_compare_with_is_refused(lacking):
    class Own(mm.Binary):
        def predictors(self):
            return {name: rule for name, rule in super().predictors().items() if name != lacking}

    config = mm.DecoderConfig(n_layers=1, d_model=2, d_head=2, n_ctx=4, d_vocab=2, normalization_type=None)
    run = run_of(HookedDecoder(config), source=Own(p=0.2, q=0.3))
    with pytest.raises(ValueError, match=rf"^source 'binary' has .*, expected '{lacking}' among them$"):
        probe_quickly(run, ["behaviour"])
