"""The symmetry probe on traps, on walks that are none, and on models whose symmetry is known."""

import dataclasses
from functools import partial

import numpy as np
import pytest
import torch
from mechmarkov.probes.symmetry.equivariance import equivariance_error
from mechmarkov.probes.symmetry.reduced_run import reduced_run
from probing_cases import RAW_LOG, ask, claims_of, random_run, run_of, subject_of, walk_run

import mechmarkov as mm
from mechmarkov.curvature.loss_surface import loss_surface
from mechmarkov.curvature.population import population_of
from mechmarkov.models import DecoderConfig
from mechmarkov.models.constructions.lookup_tables import direct_table
from mechmarkov.objectives import Objective
from mechmarkov.probes import symmetry
from mechmarkov.sources import Binary, Chain, Circle, DirichletChains
from mechmarkov.theory.walk import reduced_walk
from mechmarkov.theory.walk.token_mean import token_mean_variance

asked = partial(ask, symmetry.probe)


def test_the_bundled_trap_is_trapped_and_says_why():
    subject = mm.Subject.of(mm.example("trap"), "all")
    data = symmetry.probe.measure(subject)
    scores = symmetry.scores(data, symmetry.probe.measure(subject.null))
    assert scores["trapped"].value is True
    assert scores["first_step_information"].value < 1e-20
    assert scores["equivariance_error"].value == scores["attention_spread"].value == 0
    assert scores["symmetric_share"].value == pytest.approx(1)
    assert scores["gradient_outside"].value < 1e-20
    assert scores["gradient_outside"].null[0] > 0.1  # fresh models are elsewhere
    assert scores["equivariance_error"].null[0] > 0.5
    assert scores["token_mean_accuracy"].value == pytest.approx(1 / 6)
    assert data["trapped"].values.all()  # from the zero start to the last step
    assert not data["reduced_spread"].any()
    assert data["reduced_gap"].max() < 1e-6  # the run is stored in float32
    trapped = claims_of(symmetry.probe, data).first("is_trapped_by", status="shown")
    assert trapped.object == ("shifts",)
    held = {premise.name: premise.holds for premise in trapped.because}
    for name in ("states divide the length", "first gradient is flat", "attention is flat"):
        assert held[name], name
    assert held["rows of V are constant"]
    assert trapped.condition("states that a label counts").value == 96
    assert trapped.condition("reduced system's spread").value == 0
    assert len(symmetry.probe.figures(data)) == 3


@pytest.mark.parametrize(("states", "cases"), [(4, None), (6, 726)])
def test_a_way_out_is_told_of_walks_as_measured(states, cases):
    run = walk_run(Circle(n_states=states, p=1.0), np.full((states, states), 0.3), np.zeros(2 * states + 1))
    _, scores, said = asked(run)
    assert scores["trapped"].value is True
    helped = said.first("is_left_with")
    assert (helped and helped.number("cases")) == cases


def test_the_bundled_walk_left_because_its_first_step_tells_states_apart():
    data, scores, said = asked(mm.example("walk"), sequences=512)
    assert scores["trapped"].value is False
    assert scores["first_step_information"].value == pytest.approx(2.41e-4, rel=0.01)
    assert float(data["reduced_gap"][-1]) < 0.1
    trapped = said.first("is_trapped_by")
    assert (trapped.status, trapped.object) == ("excluded", ("token mean",))
    assert trapped.condition("the token mean tells").holds
    assert trapped.condition("first gradient is flat").holds is False
    assert trapped.condition("reduced system's spread").value == pytest.approx(1, abs=0.01)


def test_a_deterministic_walk_over_broken_turns_is_not_trapped():
    run = walk_run(Circle(n_states=6, p=1.0), np.full((6, 6), 0.2), np.zeros(15))
    _, scores, said = asked(run)
    assert scores["trapped"].value is False
    assert scores["token_mean_accuracy"].value == 1
    assert scores["gradient_outside"].value < 1e-20  # inside what rotations leave alone, which is more
    trapped = said.first("is_trapped_by", status="excluded")
    assert trapped.condition("states divide the length").holds is False
    assert trapped.condition("the token mean tells").value == 1
    assert trapped.condition("chance").value == pytest.approx(1 / 6)


@pytest.mark.parametrize(
    ("init", "why"),
    [
        ({"scheme": "zero"}, "rounding took it out"),
        ({"scheme": "normal", "std": 0.01}, "it started at random"),
        (None, "its start is unknown"),
    ],
)
def test_a_trap_that_was_left_says_what_broke_the_symmetry(init, why):
    recipe = None
    if init is not None:
        recipe = {"init": init, "optimiser": {"kind": "gd", "lr": 1.0}}
    V = np.linalg.matrix_power(Circle(n_states=6, p=1).P, 2).T
    run = walk_run(Circle(n_states=6, p=1.0), V, 3.0 * (np.arange(13) % 6 == 4), recipe=recipe)
    _, scores, said = asked(run)
    assert scores["trapped"].value is False
    trapped = said.first("is_trapped_by", status="excluded")
    assert trapped.condition("states divide the length").holds
    assert trapped.condition("first gradient is flat").holds
    assert trapped.condition(why) is not None
    assert (trapped.condition("reduced system's spread") is not None) == (init == {"scheme": "zero"})


@pytest.mark.parametrize("positions", ["one_hot", "sine"])
def test_adam_stays_in_the_trap_where_positions_are_one_hot_alone(positions):
    recipe = mm.example("trap").recipe | {
        "source": {"kind": "circle", "n_states": 4, "p": 1.0},
        "model": {"kind": "walk", "n_ctx": 13, "n_positions": 20, "positions": positions, "dtype": "float64"},
        "optimiser": {"kind": "adamw", "lr": 0.01},
        "steps": 10,
        "checkpoints": [0, 10],
    }
    run = mm.train(recipe, seed=0, progress=False)
    said = [asked(run, steps=[step])[2] for step in (0, 10)]
    first, last = (one.first("is_trapped_by") for one in said)
    assert first.condition("first gradient is flat").holds
    assert first.condition("stays for ever").holds == (positions == "one_hot")
    assert last.status == ("shown" if positions == "one_hot" else "excluded")
    assert last.condition("rounding took it out") is None  # Adam took it out, in the first step


def test_what_almost_is_a_trap_is_not():
    source = Circle(n_states=4, p=1.0)
    flat = walk_run(source, np.full((4, 4), 0.3), np.zeros(9))
    assert asked(flat)[1]["trapped"].value is True
    # Constant rows that differ, as a finite sample leaves them, are the trap too.
    assert asked(walk_run(source, np.outer([0.3, 0.31, 0.29, 0.3], np.ones(4)), np.zeros(9)))[1][
        "trapped"
    ].value
    tilted = walk_run(source, np.full((4, 4), 0.3), np.linspace(0, 0.05, 9))
    assert asked(tilted)[1]["trapped"].value is False
    knowing = walk_run(source, 0.3 + 0.1 * source.P.T, np.zeros(9))
    assert asked(knowing)[1]["trapped"].value is False
    undetermined = walk_run(Circle(n_states=4, p=0.9), np.full((4, 4), 0.3), np.zeros(9))
    _, scores, said = asked(undetermined)
    assert scores["trapped"].value is False
    assert said.first("is_trapped_by").condition("the token mean tells").holds


def test_independent_tokens_leave_nothing_to_be_stuck_at():
    coin = Chain(np.full((3, 3), 1 / 3))
    data, scores, said = asked(run_of(direct_table(torch.zeros(3, 3), n_ctx=6), source=coin))
    assert scores["trapped"].value is None
    assert float(data["excess"][0]) == pytest.approx(0, abs=1e-12)
    assert said.first("is_trapped_by").condition("near the best").value == pytest.approx(0, abs=1e-12)
    walk = walk_run(Circle(n_states=3, p=0.5), np.full((3, 3), 0.3), np.zeros(8))
    _, scores, said = asked(dataclasses.replace(walk, source=coin))
    assert scores["trapped"].value is False
    assert said.first("is_trapped_by").condition("near the best").holds


def test_a_unigram_decoder_is_not_called_this_trap():
    run = run_of(direct_table(torch.zeros(2, 2), n_ctx=6), source=Binary(p=0.8, q=0.8))
    _, scores, said = asked(run)
    assert scores["trapped"].value is None
    assert scores["trapped"].reason.startswith("does not apply")
    assert said.first("is_trapped_by").status == "does not apply"
    assert scores["equivariance_error"].value == pytest.approx(0, abs=1e-6)


def looks_like_the_trap(change):
    """The symmetric trap with one premise of the argument removed."""
    run = walk_run(Circle(n_states=4, p=1.0), np.full((4, 4), 0.3), np.zeros(9))
    states, model, fields = dict(run.states), run.config.model_dump(), {}
    if change == "residual":  # the last state is the query itself, and on its own stream
        states["embed.W_E"] = states["embed.W_E"][:, :4]
        model["d_vocab"] = 4
        fields["objective"] = Objective(kind="raw_log", read="last")
    elif change == "second layer":
        states |= {name.replace("s.0", "s.1"): x for name, x in states.items() if "blocks.0" in name}
        model["n_layers"] = 2
    elif change == "trained embedding":
        fields["trainable"] = run.trainable | {"embed.W_E": None}
    else:
        model |= {"window": 3} if change == "window" else {"use_attn_scale": True}
    return dataclasses.replace(run, states=states, config=DecoderConfig(**model), **fields)


@pytest.mark.parametrize("change", ["residual", "second layer", "trained embedding", "window", "scale"])
def test_the_argument_is_the_walk_models_alone(change):
    _, scores, said = asked(looks_like_the_trap(change))
    assert scores["trapped"].value is None
    assert scores["trapped"].reason.startswith("does not apply")
    assert said.first("is_trapped_by").status == "does not apply"


@pytest.mark.parametrize("zero", [["unembed.W_U"], None], ids=["zero unembedding", "zero"])
def test_a_decoder_that_starts_at_zero_is_not_called_trapped_and_learns(zero):
    # K divides N - 1 = 12, attention is flat and no circuit depends on the state, as in the trap.
    model = {"kind": "decoder", "n_layers": 1, "d_model": 16, "d_head": 16, "n_ctx": 12, "attn_only": True}
    recipe = {
        "name": "zero",
        "source": {"kind": "circle", "n_states": 4, "p": 1.0},
        "model": model,
        "init": {"scheme": "normal", "std": 0.2, "zero": zero} if zero else {"scheme": "zero"},
        "optimiser": {"kind": "adamw", "lr": 0.05},
        "data": {"batch": 16},
        "steps": 60,
        "checkpoints": [0, 60],
    }
    run = mm.train(recipe, seed=0, progress=False)
    data, scores, said = asked(run, steps=[0])
    assert float(data["circuit_variation"][0]) == 0
    assert scores["trapped"].value is None
    assert said.first("is_trapped_by").status == "does not apply"
    data, _, said = asked(run, steps=[60])
    assert (float(data["excess"][0]) < 0.01) == bool(zero)
    trapped = said.first("is_trapped_by")
    assert trapped.status == ("excluded" if zero else "does not apply")
    assert (trapped.condition("near the best") is not None) == bool(zero)


def test_a_flat_first_gradient_of_a_random_walk_traps_the_population():
    # On four states, P + P² + … + P^(N-1) has equal entries where N - 1 is even.
    _, scores, said = asked(walk_run(Circle(n_states=4, p=0.5), np.full((4, 4), 0.3), np.zeros(9)))
    assert scores["trapped"].value is True
    trapped = said.first("is_trapped_by", status="shown")
    assert trapped.condition("stays for ever").holds is False  # of the population; a sample may leave
    left = walk_run(Circle(n_states=4, p=0.5), np.full((4, 4), 0.3), np.linspace(0, 2, 9))
    _, scores, said = asked(left)
    assert scores["trapped"].value is False
    trapped = said.first("is_trapped_by", status="excluded")
    assert trapped.condition("first gradient is flat").holds
    assert trapped.condition("attention is flat").holds is False
    _, scores, _ = asked(walk_run(Circle(n_states=4, p=0.5), np.full((4, 4), 0.3), np.zeros(10)))
    assert scores["trapped"].value is False


def test_a_chain_without_symmetries_says_so():
    _, scores, _ = asked(random_run("plain"))
    for name in ("equivariance_error", "symmetric_share", "gradient_outside"):
        assert scores[name].value is None
        assert scores[name].reason == "only the identity is an automorphism of the chain"


def test_redrawn_chains_have_no_symmetries_to_ask_for():
    run = run_of(random_run("plain").model(), source=DirichletChains(n_states=3))
    assert "redraws its chain" in symmetry.applies(subject_of(run))


def test_the_equivariance_error_is_that_of_relabelled_sequences_one_by_one():
    source = Circle(n_states=3, p=1.0)
    V = np.random.default_rng(0).normal(size=(3, 3))
    run = walk_run(source, V, np.random.default_rng(1).normal(size=8))
    subject = subject_of(run)
    found = equivariance_error(subject, population_of(subject), source.automorphisms())
    S = np.exp(subject.run.states["blocks.0.attn.W_K"][0, 0, 3:, 0].double().numpy())
    S = (S / S.sum())[:-1]

    def f(walk):
        return sum(S[i] * V[:, state] for i, state in enumerate(walk))

    errors, sizes = [], []
    for start in range(3):
        walk = (start + np.arange(7)) % 3
        sizes.append(np.linalg.norm(f(walk)))
        for g in ([1, 2, 0], [2, 0, 1]):
            moved = np.zeros(3)
            moved[g] = f(walk)  # state y is called g y
            errors.append(np.linalg.norm(f(np.array(g)[walk]) - moved))
    assert found[0] == pytest.approx(np.mean(errors) / np.mean(sizes), rel=1e-5)


def test_circulant_walks_commute_and_others_by_their_share():
    source = Circle(n_states=5, p=0.8)
    rng = np.random.default_rng(0)
    circulant = reduced_walk.value_matrix(rng.normal(size=5))
    noise = rng.normal(size=(5, 5))
    for V in (circulant, circulant + noise):
        data, scores, _ = asked(walk_run(source, V, np.zeros(9)))
        bands = [np.mean([V[(x + d) % 5, x] for x in range(5)]) for d in range(5)]
        expected = 5 * np.sum(np.square(bands)) / (V**2).sum()
        assert scores["symmetric_share"].value == pytest.approx(expected, rel=1e-5)
        assert (float(data["equivariance_error"][0]) < 1e-6) == (expected > 0.999)


def test_the_first_step_is_the_gradient_from_zero():
    source = Circle(n_states=5, p=1.0)
    run = walk_run(source, np.zeros((5, 5)), np.zeros(9))
    data, scores, _ = asked(run)
    subject = subject_of(run)
    surface = loss_surface(subject)
    slope = surface.gradients().mean(1)[0][surface.coordinates.numbers["blocks.0.attn.W_O"][0]].T.numpy()
    # l'(0) / N, with V[to, from].
    assert slope == pytest.approx(data["first_step"].values * (-1 / 0.1) / 9)
    assert scores["first_step_information"].value == pytest.approx(
        1 - slope.mean() ** 2 / (slope**2).mean(), rel=1e-9
    )
    between, total = token_mean_variance(source.P, np.array(source.pi), 9)
    assert (float(data["between_class"]), float(data["token_mean_variance"])) == (between, total)


def test_the_reduced_system_needs_a_run_it_can_be_beside():
    recipe = {"init": {"scheme": "zero"}, "optimiser": {"kind": "gd", "lr": 1.0}}
    run = walk_run(Circle(n_states=3, p=1.0), np.zeros((3, 3)), np.zeros(7), recipe=recipe)
    subject = subject_of(run)
    assert reduced_run(subject, population_of(subject))["reduced_spread"].values.tolist() == [0.0]
    for change, why in (
        ({"init": {"scheme": "normal"}}, "did not start from zero"),
        ({"optimiser": {"kind": "adamw"}}, "plain gradient descent"),
    ):
        other = subject_of(dataclasses.replace(run, recipe=recipe | change))
        assert why in reduced_run(other, population_of(other)).attrs["no_reduced"]
    other = subject_of(random_run("plain"))
    assert "walk model on a circle" in reduced_run(other, population_of(other)).attrs["no_reduced"]


@pytest.mark.parametrize(
    ("shape", "objective"),
    [("LN and MLP", RAW_LOG), ("LN and MLP", None), ("Qwen3", None), ("GPT-NeoX", RAW_LOG)],
)
def test_a_stack_is_each_step_alone(shape, objective):
    source = Circle(n_states=3, p=0.7)
    fields = {} if objective is None else {"objective": objective}
    base = random_run(shape, n_steps=2, **fields)
    run = dataclasses.replace(base, source=source)
    together = symmetry.probe.measure(subject_of(run, sequences=8))
    for step in (0, 10):
        alone = symmetry.probe.measure(subject_of(run, [step], sequences=8))
        for name, values in alone.data_vars.items():
            if "step" in values.dims:
                ours = together[name].sel(step=[step])
                assert np.allclose(ours, values, rtol=1e-4, atol=1e-6, equal_nan=True), name
