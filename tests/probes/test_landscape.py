"""The landscape probe at points whose Hessian is known, and on ways out of saddles."""

import dataclasses
from functools import partial

import numpy as np
import pytest
import torch
from models_by_hand import SMALL_WALK, TINY, relabelled, trained, unigram_model
from probing_cases import P3, RAW_LOG, ask, claims_of, few, random_run, run_of, subject_of, walk_run

import mechmarkov as mm
from mechmarkov.curvature.population import population_of
from mechmarkov.models.constructions.lookup_tables import direct_table
from mechmarkov.objectives import Objective
from mechmarkov.probes import landscape, symmetry
from mechmarkov.sources import Binary, Chain, Circle, DirichletChains
from mechmarkov.theory.walk.trap_spectrum import trap_spectrum
from mechmarkov.training.recipe import load_recipe

asked = partial(ask, landscape.probe)


def test_the_bundled_trap_is_a_saddle_with_the_predicted_rates():
    subject = mm.Subject.of(mm.example("trap"))
    data = landscape.probe.measure(subject)
    scores = landscape.scores(data, landscape.probe.measure(subject.null))
    V = subject.run.states["blocks.0.attn.W_O"][-1, 0, :, :6].double()
    logits = np.sqrt(500.5) ** 2 * subject.run.states["blocks.0.attn.W_K"][-1, 0, 6:, 0].double().numpy()
    query = float(np.exp(logits[-1] - logits.max()) / np.exp(logits - logits.max()).sum())
    z = float(V.mean()) * (1 - query)
    theory = trap_spectrum(
        n_states=6,
        length=97,
        position_norm=np.sqrt(500.5),
        alpha=float(V.mean()),
        query_mass=query,
        slope=-1 / (z + 0.1),
    )
    assert scores["kind"].value == "saddle"
    assert scores["hessian_min"].value == pytest.approx(-theory.growth_position, rel=1e-6)
    assert scores["escape_rate"].value == pytest.approx(theory.growth_position, rel=1e-6)
    assert scores["hessian_min"].null == pytest.approx(-theory.growth_position, rel=1e-6)
    assert data["spectrum"].values == pytest.approx(theory.eigenvalues, abs=1e-6)
    assert float(data["disagreement"]) < 1e-9  # with positions as long as they are stored, in float32
    assert float(data["overlap"]) == pytest.approx(1, abs=1e-6)
    # -log(z + eps) has no stationary point: V grows inside.
    assert scores["drift"].value == pytest.approx(scores["grad_norm"].value)
    assert scores["drift"].value == pytest.approx((1 - query) / (z + 0.1) / 6, rel=0.01)
    assert scores["grad_norm"].null is not None
    point = claims_of(landscape.probe, data).first("is_at", status="shown")
    assert point.object == ("saddle",)
    assert point.value == pytest.approx(-theory.growth_position, rel=1e-6)
    assert point.condition("outside the symmetric subspace") is not None
    assert point.condition("growing directions").value == 10
    assert point.condition("from the stationary point").value < 1e-12
    assert scores["hessian_min"].interval is None  # over all the sequences there are
    assert point.condition("as predicted").holds
    assert point.condition("as predicted").words == ("the symmetric trap",)
    growth = [premise for premise in point.because if premise.name == "predicted growth"]
    assert max(premise.value for premise in growth) == pytest.approx(theory.growth_position)
    leaves = claims_of(landscape.probe, data).first("leaves_by")
    assert leaves.condition("on the subspace to the last bit") is not None
    assert point.condition("drift").value == scores["drift"].value


def test_where_tokens_grow_faster_the_lowest_modes_are_theirs():
    # Positions of length 1, six turns: attention by token identity outgrows that by lag class.
    data, scores, _ = asked(walk_run(Circle(n_states=3, p=1.0), np.full((3, 3), 0.4), np.zeros(19)))
    assert scores["kind"].value == "saddle"
    rate = float(data["growth"].sel(mode="attention by token"))
    assert rate > float(data["growth"].sel(mode="attention by lag class"))
    assert scores["hessian_min"].value == pytest.approx(-rate, rel=1e-9)
    assert float(data["overlap"]) == pytest.approx(1, abs=1e-6)


def test_a_random_start_leaves_when_linear_theory_says():
    run = trained("walk-k6-one", init={"scheme": "normal", "std": 1e-6}, **SMALL_WALK)
    data, scores, said = asked(run)
    assert scores["observed_rate"].value == pytest.approx(scores["observed_rate"].null, rel=0.05)
    assert 20 < scores["escape_step"].value < 50
    assert abs(scores["escape_step"].value - scores["escape_step"].null) <= 1
    assert scores["kind"].value == "not stationary"
    assert scores["escape_rate"].reason == "it is at no stationary point that it could escape"
    leaves = said.first("leaves_by", status="shown")
    assert leaves.condition("observed rate").value == scores["observed_rate"].value
    # While it is small the amplitude is the predicted one, step by step.
    own, theory = data["amplitude"].values, data["predicted_amplitude"].values
    small = (own > 1e-12) & (own < 0.05)
    assert small.sum() > 10
    assert np.log(theory[small] / own[small]) == pytest.approx(np.zeros(small.sum()), abs=0.2)
    assert said.first("leaves_by", status="shown").condition("seen") is not None
    assert said.first("is_at") is None or not said.first("is_at").condition("tied embeddings favour repeats")


def test_a_large_random_start_was_never_at_the_saddle():
    _, scores, said = asked(
        trained("walk-k6-one", init={"scheme": "normal", "std": 0.04}, **(SMALL_WALK | {"steps": 5}))
    )
    assert scores["escape_step"].value is None
    assert "already away from the saddle" in scores["escape_step"].reason
    leaves = said.first("leaves_by")
    assert (leaves.status, leaves.value) == ("does not apply", None)
    assert leaves.condition("already away") is not None


def test_a_zero_start_with_the_symmetry_built_in_never_leaves():
    changes = SMALL_WALK | {"model": SMALL_WALK["model"] | {"form": "reduced"}}
    data, scores, said = asked(trained("walk-k6-trap", **changes))
    assert scores["kind"].value == "saddle"
    assert scores["escape_step"].value is None
    assert not data["amplitude"].any()
    leaves = said.first("leaves_by")
    assert leaves.status == "excluded"
    assert leaves.condition("on the subspace to the last bit") is not None


@pytest.fixture(scope="module")
def tied():
    recipe = load_recipe("binary-p08-q08-tied-gd").to_data()
    model = recipe["model"] | {"n_ctx": 16}
    return trained("binary-p08-q08-tied-gd", model=model, steps=200, checkpoints={"every": 50})


def test_the_tied_binary_run_is_at_a_minimum_by_its_hessian(tied):
    data, scores, said = asked(tied, steps="all")
    assert scores["kind"].value == "minimum"
    # Bias 2 pi0 pi1, embeddings 4 pi0 pi1 (p + q - 1).
    assert scores["hessian_min"].value == pytest.approx(0.5, abs=0.03)
    assert scores["hessian_max"].value == pytest.approx(0.6, abs=0.05)
    assert scores["escape_rate"].value == 0
    point = said.first("is_at", status="shown")
    assert (point.object, point.value) == (("minimum",), pytest.approx(0.5, abs=0.03))
    assert point.condition("as predicted").words == ("the unigram point",)
    # The logit of a token after itself is |e|², and 1 - p - q is below zero.
    assert point.condition("tied embeddings favour repeats").value == pytest.approx(-0.6)
    assert said.first("lies_in").object == ("unigram",)
    assert float(data.attrs["unigram_growth"]) == 0
    assert len(landscape.probe.figures(data)) == 4
    # Canonical coordinates, from the weights of each step.
    for i, step in enumerate(data["step"].values):
        E = tied.model(step=int(step)).embed.W_E.detach().double()
        assert float(data["canonical_e"][i]) == pytest.approx(float((E[1] - E[0]).norm()))


def test_untied_weights_leave_the_unigram_at_the_predicted_rate():
    recipe = load_recipe("binary-p08-q08-tied-gd").to_data()
    model = recipe["model"] | {"n_ctx": 16, "tied": False}
    run = trained("binary-p08-q08-tied-gd", model=model, steps=40, checkpoints={"every": 1})
    _, scores, said = asked(run)
    # sigma = 2 pi0 pi1 |p + q - 1| = 0.3
    assert scores["observed_rate"].null == pytest.approx(0.3, abs=1e-6)
    assert scores["observed_rate"].value == pytest.approx(0.3, rel=0.15)
    assert abs(scores["escape_step"].value - scores["escape_step"].null) <= 3
    assert said.first("leaves_by", status="shown").condition("seen") is not None


def test_another_optimiser_has_no_rate():
    run = run_of(
        direct_table(torch.zeros(2, 2), n_ctx=6),
        source=Binary(p=0.3, q=0.3),
        recipe={"optimiser": {"kind": "adamw"}},
    )
    assert asked(run)[1]["escape_rate"].reason.startswith("the run was trained by adamw")
    unknown = dataclasses.replace(run, recipe=None)
    assert asked(unknown)[1]["escape_rate"].reason == "how the run was trained is unknown"


@pytest.mark.parametrize(
    ("p", "tied", "kind"),
    [(0.8, True, "minimum"), (0.2, True, "saddle"), (0.8, False, "saddle"), (0.2, False, "saddle")],
)
def test_an_exact_unigram_point_is_what_its_closed_form_says(p, tied, kind):
    data, scores, _ = asked(unigram_model(Binary(p=p, q=p), tied), sequences=512)
    assert scores["kind"].value == kind
    lowest = {True: min(2 * p - 1, 0.5), False: -abs(2 * p - 1) / 2}[tied]
    # The closed form is the population's; the frequencies of pairs are a sample's.
    assert scores["hessian_min"].null == pytest.approx(lowest)
    assert scores["hessian_min"].value == pytest.approx(lowest, abs=0.06)
    assert data.attrs["point"] == "the unigram point"
    if kind == "saddle":
        assert float(data["overlap"]) > 0.9


def no_slope():
    """Makkuva et al.'s e = 1, w = -1/√2: the MLP takes back what the embedding says, and all predict pi."""
    source, one_wide = Binary(p=0.8, q=0.8), {"d_model": 1, "d_head": 1, "positional_embedding_type": "none"}
    mlp = {"attn_only": False, "act_fn": "relu", "d_mlp": 2, "tied": True, "d_vocab": 2}
    decoder = random_run("plain", **(TINY | mlp | one_wide)).model()
    values = {"W_E": [[-0.5], [0.5]], "W_in": [[1.0, -1.0]], "W_out": [[-1.0], [1.0]]}
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            parameter.copy_(torch.tensor(values.get(name.split(".")[-1], 0.0)))
    return run_of(decoder, source=source)


def one_sided():
    """Untied: embeddings, and an unembedding that is zero."""
    run = unigram_model(Binary(p=0.8, q=0.8), tied=False)
    run.states["embed.W_E"].normal_(generator=torch.Generator().manual_seed(0))
    return run


@pytest.mark.parametrize("build", [no_slope, one_sided])
def test_what_predicts_the_unigram_elsewhere_is_not_at_its_point(build):
    data, scores, said = asked(build())
    assert float(data["excess"]) == pytest.approx(np.log(2) - Binary(p=0.8, q=0.8).entropy_rate, rel=0.05)
    assert scores["hessian_min"].null is None
    point = said.first("is_at") or said.first("moves")
    assert point.condition("as predicted") is None
    assert point.condition("the unigram point would be") is not None


def test_of_another_path_at_the_unigram_point_theory_says_nothing():
    run = unigram_model(Binary(p=0.2, q=0.2), tied=True)
    run.states["blocks.0.attn.W_V"][0, 0] = torch.eye(4, 2)
    run.states["blocks.0.attn.W_O"][0, 0] = 5 * torch.eye(2, 4)
    _, scores, said = asked(run)
    assert not isinstance(scores["hessian_min"].null, float)
    point = said.first("is_at") or said.first("moves")
    assert point.condition("theory knows only part").words == ("the unigram point",)
    assert point.condition("theory knows only part").value == pytest.approx(5, rel=1e-3)
    assert point.condition("as predicted") is None


def test_what_a_sample_cannot_tell_from_theory_is_not_said_to_differ():
    """Sixteen sequences bend the smallest eigenvalue beyond the limit; its interval holds the prediction."""
    said, run = [], unigram_model(Binary(p=0.2, q=0.3), tied=True)
    for seed in range(8):
        subject = mm.Subject.of(run, "last", seed=seed, sequences=16)
        data = landscape.probe.measure(subject)
        if data.attrs["kind"] != "not stationary":
            said.append(claims_of(landscape.probe, data).first("is_at"))
    judged = [one.condition("as predicted") for one in said]
    assert all(premise is None or premise.holds for premise in judged)
    assert any(one.condition("the interval holds the prediction") for one in said)


def test_a_run_is_followed_from_where_it_is_at_the_unigram_point():
    source, gd = Binary(p=0.2, q=0.3), {"optimiser": {"kind": "gd", "lr": 1.0}}
    away, there = (unigram_model(source, tied=True).model() for _ in range(2))
    with torch.no_grad():
        away.get_parameter("embed.W_E").copy_(torch.eye(2, 4))
    data, _, said = asked(run_of(away, there, there, source=source, recipe=gd))
    assert data["kept_step"].values.tolist() == [10, 20]
    assert said.first("leaves_by").condition("no growing pattern") is not None
    point = said.first("is_at", status="shown")
    assert point.condition("outside the symmetric subspace") is None  # it has no automorphism but identity
    _, scores, said = asked(run_of(away, away, source=source, recipe=gd))
    assert "escape_step" not in scores
    assert not said.where("leaves_by")


@pytest.mark.parametrize(
    ("P", "kind", "outside"),
    [
        (np.full((3, 3), 0.5) - 0.5 * np.eye(3), "minimum", "minimum"),  # never stays
        (0.1 * np.ones((3, 3)) + 0.7 * np.eye(3), "saddle", "saddle"),  # mostly stays
        (np.array([[0.0, 0.9, 0.1], [0.1, 0.0, 0.9], [0.9, 0.1, 0.0]]), "minimum", "minimum"),  # goes round
        # Two states that are alike change places, the third stays: what grows tells them from it.
        (np.array([[0.1, 0.8, 0.1], [0.8, 0.1, 0.1], [0.1, 0.1, 0.8]]), "saddle", "minimum"),
        (P3, "saddle", "saddle"),
    ],
)
def test_of_many_states_the_criterion_is_the_sign_of_the_symmetric_covariance(P, kind, outside):
    source = Chain(P)
    joint = source.pi[:, None] * P - np.outer(source.pi, source.pi)
    growth = 2 * max(0.0, float(np.linalg.eigvalsh((joint + joint.T) / 2).max()))
    assert (growth > 1e-9) == (kind == "saddle")
    run = random_run("plain", **(TINY | {"tied": True, "d_vocab": 3}))
    data, scores, said = asked(dataclasses.replace(run, source=source))
    assert scores["unigram_point"].value == kind
    assert data.attrs["unigram_growth"] == pytest.approx(growth, abs=1e-9)
    point = said.first("is_at") or said.first("moves")
    assert point.condition("the unigram point would be").words == (kind,)
    # And a model that is put there is what the criterion says, in and outside the symmetric subspace.
    _, scores, said = asked(unigram_model(source, tied=True), sequences=256)
    assert scores["kind"].value == outside
    assert scores["unigram_point"].value == kind
    point = said.first("is_at", status="shown")
    assert point.object == (outside,)
    leaves_inside = point.condition("leaves inside the symmetric subspace")
    assert (leaves_inside is not None) == (kind != outside)
    assert leaves_inside is None or leaves_inside.value == pytest.approx(growth, rel=1e-3)


def test_a_learned_walk_drifts_inside_and_is_settled_outside():
    _, scores, said = asked(mm.example("walk"), sequences=512)
    assert scores["kind"].value == "minimum"
    assert scores["drift"].value > 0.99 * scores["grad_norm"].value
    drift = said.first("is_at", status="shown").condition("drift")
    assert drift.value == pytest.approx(0.1, abs=0.01)


def test_the_slice_holds_the_points_it_is_named_after(tied):
    data, _, _ = asked(tied)
    source = tied.source
    run, unigram, bigram = data.attrs["loss_at"]
    assert unigram == pytest.approx(source.unigram_entropy)
    assert bigram == pytest.approx(source.entropy_rate, abs=0.02)
    assert run == pytest.approx(unigram, abs=1e-3)
    assert float(data["slice"].interp(along=0.0, across=0.0)) == pytest.approx(unigram, abs=0.02)
    assert float(data["slice"].min()) <= bigram + 0.02


@pytest.mark.parametrize(("p", "tied"), [(0.2, True), (0.8, False)])
def test_the_bigram_point_predicts_the_chain_exactly(p, tied):
    source = Binary(p=p, q=0.7)
    shape = {
        "tied": tied,
        "d_vocab": 2,
        "n_heads": 1,
        "d_model": 4,
        "n_layers": 1,
        "normalization_type": None,
    }
    run = run_of(random_run("LN and MLP", **shape).model(), source=source)
    subject = subject_of(run, sequences=64)
    data = landscape.probe.measure(subject)
    law = population_of(subject, subject.batch.head(32)).law.numpy()
    assert data.attrs["loss_at"][2] == pytest.approx(-(law * np.log(law)).sum(-1).mean(), abs=1e-9)
    assert data.attrs["loss_at"][1] == pytest.approx(-(law * np.log(source.pi)).sum(-1).mean(), abs=1e-6)


def test_the_walks_points_are_the_trap_and_the_root_of_the_chain():
    source = Circle(n_states=4, p=0.7)
    data, _, _ = asked(walk_run(source, source.P.T, np.zeros(9)), sequences=256)
    size = np.linalg.norm(source.P)
    root = np.sqrt(source.P) * size / 2
    assert data.attrs["loss_at"][1] == pytest.approx(-np.log(size / 4 * 8 / 9 + 0.1))
    # Attention on the parent but for e^-12 on each of the others.
    assert data.attrs["loss_at"][2] == pytest.approx(
        -(0.7 * np.log(root[0, 1] + 0.1) + 0.3 * np.log(root[0, 3] + 0.1)), abs=0.05
    )


@pytest.mark.parametrize("probe", [landscape.probe, symmetry.probe], ids=["landscape", "symmetry"])
@pytest.mark.parametrize("case", ["decoder", "walk", "trap"])
def test_names_of_states_do_not_matter(probe, case):
    if case == "decoder":
        run = dataclasses.replace(random_run("plain", **TINY), source=Circle(n_states=3, p=0.4))
    else:
        source = Circle(n_states=3, p=0.4 if case == "walk" else 1.0)
        V = np.random.default_rng(0).uniform(0.2, 0.5, (3, 3))
        run = walk_run(source, V, np.random.default_rng(1).normal(size=10))
    subject = subject_of(run, sequences=8)
    changed, batch = relabelled(run, subject.batch, [2, 0, 1] if case == "walk" else [1, 0, 2])
    moved = mm.Subject(changed, changed.model(steps=[0]), batch, axis="step", coordinates=[0])
    ours, theirs = (probe.scores(probe.measure(s), None) for s in (subject, moved))
    assert set(ours) == set(theirs)
    for name, score in ours.items():
        assert score.reason == theirs[name].reason, name
        if isinstance(score.value, float):
            assert score.value == pytest.approx(theirs[name].value, rel=1e-4, abs=1e-6), name
        else:
            assert score.value == theirs[name].value, name


ONE_TOKEN, ITSELF = "one token of context", "window of itself alone"
OF_NEXT_TOKEN = (
    "plain",
    "LN and MLP",
    "RMSPre, tied",
    "rotary",
    "relative",
    ONE_TOKEN,
    ITSELF,
    "Qwen3",
    "GPT-NeoX",
)


@pytest.mark.parametrize(
    ("shape", "objective"),
    few([(shape, Objective()) for shape in OF_NEXT_TOKEN])
    + few([(shape, RAW_LOG) for shape in ("two tokens of context", "LN and MLP", ITSELF)]),
)
def test_every_shape_gets_scores_and_sentences(shape, objective):
    width = {"d_mlp": 5} if "MLP" in shape or shape in ("Qwen3", "GPT-NeoX") else {}
    run = random_run(shape, n_steps=2, objective=objective, d_model=4, n_layers=1, **width)
    subject = subject_of(run, sequences=8)
    for probe in (landscape.probe, symmetry.probe):
        data = probe.measure(subject)
        scores = probe.scores(data, None)
        for name, score in scores.items():
            assert score.value is not None or score.reason, name
        assert claims_of(probe, data)
        assert len(probe.figures(data)) >= 2


def test_it_does_not_apply_to_redrawn_chains_nor_to_giants():
    run = run_of(random_run("plain").model(), source=DirichletChains(n_states=3))
    assert "redraws its chain" in landscape.applies(subject_of(run))
    wide = random_run("plain", d_model=256, n_heads=16, d_head=16)
    assert "too many trainable parameters" in landscape.applies(subject_of(wide))
