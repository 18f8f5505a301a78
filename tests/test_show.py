"""What a notebook shows: figures of a run, and runs, sources and recipes as compact HTML."""

import numpy as np
import pytest

import mechmarkov as mm


@pytest.fixture(scope="module")
def walk():
    return mm.example("walk")


def test_attention_of_a_given_sequence_is_the_models_own(walk):
    states = [0, 1, 2, 3, 4, 5] * 16
    figure = mm.show.attention(walk, states)
    pattern = np.asarray(figure.data[0].customdata)
    assert pattern.shape == (97, 97)
    assert pattern.sum(axis=1) == pytest.approx(np.ones(97), abs=1e-5)
    assert pattern[-1].argmax() == 95  # the last prediction looks at its parent
    assert pattern[-1, 95] > 0.999
    colour = np.asarray(figure.data[0].z)
    assert colour[-1, 95] == figure.layout.coloraxis.cmax == 3  # of log2: eight times uniform or more
    assert colour[-1, :95].max() == 0
    assert list(figure.data[0].x[:2]) == ["0: 0", "1: 1"]
    assert figure.data[0].x[-1] == "96: query"


def test_every_head_has_a_panel_and_all_share_one_colour_scale():
    run = mm.example("induction")
    figure = mm.show.attention(run, [0, 1, 2, 0, 1])
    assert [note.text for note in figure.layout.annotations] == [
        f"L{layer}H{head}" for layer in range(run.config.n_layers) for head in range(run.config.n_heads)
    ]
    assert {trace.coloraxis for trace in figure.data} == {"coloraxis"}
    assert np.asarray(figure.data[0].z).shape == (5, 5)


@pytest.mark.parametrize(
    ("sequence", "message"),
    [
        ([0, 6] * 48, "sequence has state 6, expected 0 to 5"),
        ([0, -1] * 48, "sequence has state -1, expected 0 to 5"),
        ([0, 1], "sequence has 2 states, expected 96 states before the query"),
        ([], "expected a list of states by number"),
    ],
)
def test_a_sequence_that_cannot_be_read_is_named(walk, sequence, message):
    with pytest.raises(ValueError, match=message):
        mm.show.attention(walk, sequence)


def test_the_kernel_of_the_model_stands_beside_the_truth(walk):
    figure = mm.show.kernel(walk)
    implied, truth = (np.asarray(trace.z) for trace in figure.data)
    assert truth == pytest.approx(np.array(walk.source.P))
    assert implied.sum(axis=1) == pytest.approx(np.ones(6), abs=1e-6)
    # At step 50 V is on its way to sqrt P over a uniform floor: nearer to P than to the uniform law.
    assert np.abs(implied - truth).max() < np.abs(truth - 1 / 6).max()


def test_a_source_without_a_kernel_is_told_so():
    with pytest.raises(ValueError, match="dirichlet_chains, which has no one transition matrix"):
        mm.show.kernel(mm.example("induction"), sequences=8)


def test_the_trajectory_ends_at_the_bigram(walk):
    figure = mm.show.trajectory(walk, sequences=64)
    curves = {trace.name: trace.y for trace in figure.data}
    assert len(curves["bigram"]) == walk.n_steps
    assert curves["bigram"][-1] == min(curve[-1] for curve in curves.values())
    assert curves["uniform"][0] == pytest.approx(0.0, abs=1e-6)  # it starts at zero


def test_the_circuit_of_the_walk_goes_through_its_head(walk):
    figure = mm.show.circuit(walk, sequences=16)
    drawn = [trace.text.split(":")[0] for trace in figure.data if trace.text]
    assert {"L0H0 → logits", "embed → L0H0.V"} <= set(drawn)
    assert "embed → logits" not in drawn


def test_sources_and_recipes_show_themselves_as_escaped_text():
    shown = mm.Binary(p=0.5, q=0.8)._repr_html_()
    assert "unigram entropy" in shown
    assert f"{mm.Binary(p=0.5, q=0.8).entropy_rate:.4f} nats" in shown
    assert "best possible" in shown
    recipe = mm.load_recipe("walk-k6-half").with_set(["title='<script>alert(1)</script>'"])
    assert "<script>" not in recipe._repr_html_()
    assert "&lt;script&gt;" in recipe._repr_html_()
    assert "optimiser" in recipe._repr_html_()
