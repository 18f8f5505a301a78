"""Induction circuits of the bundled run, of every shape, and where nothing can be told."""

import numpy as np
import pytest
import torch
from induction_asked import N_CTX, REDRAWN, asked, degree_of, feeders_of, heads_of
from mechmarkov.probes.induction import circuit
from models_by_hand import assert_equal, relabelled
from probing_cases import CHAIN, RAW_LOG, SHAPES, claims_of, random_run, run_of, says, subject_of

from mechmarkov.models.constructions.induction_heads import induction_pair
from mechmarkov.objectives import Objective
from mechmarkov.probes import induction
from mechmarkov.probing import Subject
from mechmarkov.probing.score import Score
from mechmarkov.runs.loading import example
from mechmarkov.theory.predictors import in_context_bigram


@pytest.fixture(scope="module")
def bundled() -> Subject:
    run = example("induction")
    return Subject.of(run, [0, 340, -1], sequences=192)


def test_the_bundled_run_holds_a_circuit_that_carries_the_in_context_bigram(bundled):
    data = induction.probe.measure(bundled)
    scores, said = induction.scores(data, None), claims_of(induction.probe, data)
    assert scores["induction_head"].value == "L1H0"
    assert scores["previous_token_head"].value == "L0H1"
    assert scores["previous_token_score"].value > 0.85
    assert scores["induction_score"].value > 0.8 * float(data["ideal"].sel(matched=1))
    assert scores["predecessor_effect"].interval[0] > 0.7
    assert scores["copying_score"].value == pytest.approx(1)
    assert scores["k_composition"].value > 1.5 * scores["k_composition"].null[2]
    assert (feeders_of(said), heads_of(said)) == (("L0H1",), ("L1H0",))
    assert degree_of(said) == ("shown", set())
    now = data.isel(step=-1)
    assert (int(now["feeder_layer"]), int(now["feeder_head"])) == (0, 1)
    assert float(now["cut"].sel(input="K")) < 0.05 * float(now["intact"])
    assert float(now["key_cut"][0, 0]) > 0.9 * float(now["intact"])
    assert float(now["kl_intact"]) < 0.02
    assert float(now["kl_cut"].sel(input="K")) > float(data["kl_simpler"])
    assert (now["kl_cut"].sel(input=["Q", "V"]) < 0.75 * now["kl_cut"].sel(input="K")).all()
    # With the path whole, as the model itself predicts.
    batch = bundled.batch.head(128)
    predicted = bundled.decoder[2](batch.tokens).double().softmax(-1).detach().numpy()
    exact = in_context_bigram(batch.tokens.numpy(), 3)
    kl = (exact * np.log(exact / predicted)).sum(-1).mean()
    assert float(now["kl_intact"]) == pytest.approx(kl, rel=1e-4)


def test_the_bundled_run_forms_its_circuit_while_training(bundled):
    data = induction.probe.measure(bundled)
    best = data["induction"].sel(matched=1).isel(circuit.induction_heads(data))
    assert best.values[0] < 0.01 < 0.2 < best.values[1] < best.values[2]
    assert data["feeder_layer"].values.tolist() == [-1, 0, 0]
    assert np.isnan(data["kl_intact"].values[0])
    titles = [figure.title for figure in induction.probe.figures(data)]
    assert titles == [
        "Heads by what they do",
        "Attention on the end of a sequence",
        "Cutting L0H1 from L1H0",
        "The circuit over training",
    ]
    views = {figure.title: figure.content for figure in induction.probe.figures(data)}
    view = views["Attention on the end of a sequence"]
    assert view.head_labels == ["L0H1", "L1H0", "ideal"]
    assert view.patterns.shape == (3, 24, 24)
    x = bundled.batch.tokens[0].tolist()
    hits = [s for s in range(1, 64) if x[s - 1] == x[63]]
    assert view.patterns[2, -1] == pytest.approx([(s in hits) / len(hits) for s in range(40, 64)])
    length = np.array(views["Cutting L0H1 from L1H0"].data[0].x, dtype=float)  # long names: the bars lie
    last = data.isel(step=-1)
    assert length == pytest.approx([float(last["kl_intact"]), *last["kl_cut"].values])


def scores_of(subject: Subject) -> dict[str, Score]:
    return induction.scores(induction.probe.measure(subject), None)


@pytest.mark.parametrize("objective", [Objective(), RAW_LOG, Objective(read="last")])
@pytest.mark.parametrize("shape", ["plain", "LN and MLP"])
def test_renaming_states_changes_no_score(shape, objective):
    new = [1, 2, 0]
    run = random_run(shape, n_steps=2, objective=objective, n_ctx=10)
    subject = subject_of(run, sequences=16)
    changed, batch = relabelled(run, subject.batch, new)
    moved = Subject(changed, changed.model(steps=[0, 10]), batch, axis="step", coordinates=[0, 10])
    assert_equal(scores_of(subject), scores_of(moved))


@pytest.mark.parametrize("shape", ["three layers", "LN and MLP"])
def test_a_stack_probed_at_all_steps_is_each_step_probed_alone(shape):
    decoders = [induction_pair(3, 12, lags=(2,)), induction_pair(3, 12)]
    for run in (random_run(shape, n_steps=2, n_ctx=10), run_of(*decoders)):
        together = induction.probe.measure(subject_of(run, sequences=16))
        for step in range(2):
            alone = induction.probe.measure(subject_of(run, steps=[10 * step], sequences=16))
            for name, values in alone.data_vars.items():
                if "step" in values.dims and name != "example":  # of the last model's circuit, at all steps
                    of_stack = together[name].isel(step=[step])
                    assert np.allclose(of_stack, values, rtol=1e-4, atol=1e-5, equal_nan=True), name


QUERIED = ("plain", "two tokens of context", "LN and MLP", "window of itself alone", "Llama")


@pytest.mark.parametrize(
    ("shape", "objective"),
    [(shape, Objective()) for shape in SHAPES] + [(shape, RAW_LOG) for shape in QUERIED],
    ids=[*SHAPES, *(f"{shape}, query" for shape in QUERIED)],
)
def test_every_shape_gets_finite_scores_or_a_reason_and_a_sentence(shape, objective, recorded, eight_nulls):
    subject = recorded(shape, objective)
    why = induction.applies(subject)
    known = subject.batch.history.shape[1]
    assert (why is not None) == (known < 3)
    if why is not None:
        assert why.startswith(f"a context of {known} known token")
        return
    data = induction.probe.measure(subject)
    scores = induction.scores(data, induction.probe.measure(subject.null) if objective.query else None)
    for name, score in scores.items():
        assert score.value is None or isinstance(score.value, str) or np.isfinite(score.value), name
    assert {"induction_score", "copying_score", "previous_token_score", "k_composition"} <= set(scores)
    assert claims_of(induction.probe, data).first("is_induction_head") is not None
    assert len(induction.probe.figures(data)) >= 2


def test_it_applies_to_a_pair_on_one_chain():
    assert induction.applies(subject_of(run_of(induction_pair(3, 8), source=CHAIN))) is None


def test_a_head_that_looks_one_back_and_is_not_read_is_no_feeder():
    """A second head copies the first one's attention, sharper, and writes nothing."""
    decoder = induction_pair(3, N_CTX, lags=(1, 1))
    with torch.no_grad():
        decoder.get_parameter("blocks.0.attn.W_O")[0] = 0
        decoder.get_parameter("blocks.0.attn.W_Q")[1] *= 0.2
    scores, said, _ = asked(decoder, REDRAWN)
    assert scores["previous_token_head"].value == "L0H0"
    assert scores["feeders"].value == "L0H1"
    assert (feeders_of(said), heads_of(said)) == (("L0H1",), ("L1H0",))


def test_the_cut_figure_names_all_that_was_cut():
    data = asked(induction_pair(3, 16, lags=(1, 1), readers=2), REDRAWN)[2]
    feeders = asked(induction_pair(3, 16, lags=(1, 1), readers=2), REDRAWN)[0]["feeders"].value
    (figure,) = [one for one in induction.probe.figures(data) if one.key == "cut"]
    assert says(figure.title, *feeders.split(" + "), "from", "L1H0", "L1H1")
