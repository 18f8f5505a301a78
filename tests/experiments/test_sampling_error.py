"""Standard errors of means over sequences against repeated draws, and where a study's table shows them."""

import numpy as np
import pytest

import mechmarkov as mm
from experiments.claims import Claim, Finding
from experiments.claims_table import details
from experiments.harness import Measured, Study, load, save, trained
from experiments.sampling_error import noting, over_sequences
from experiments.statements import Statement


def drawn(rng, sequences=40, positions=6):
    """A loss whose predictions are correlated within a sequence, as a chain's are; and which are counted."""
    own = rng.normal(size=(sequences, 1))
    counted = rng.random((sequences, positions)) < 0.3 + 0.4 * (own > 0)
    return 1 + own + rng.normal(size=(sequences, positions)), counted


@pytest.mark.parametrize("masked", [False, True])
def test_the_error_is_the_spread_of_repeated_measurements(masked):
    rng = np.random.default_rng(0)
    means, errors = [], []
    for _ in range(3000):
        values, counted = drawn(rng)
        with noting() as noted:
            means.append(over_sequences(values, counted if masked else None))
        errors.append((noted.errors[0][0] * means[-1]) ** 2)
        assert means[-1] == pytest.approx(values[counted].mean() if masked else values.mean())
    assert np.sqrt(np.mean(errors)) == pytest.approx(np.std(means), rel=0.05)


def test_leading_axes_are_models():
    values = np.random.default_rng(0).normal(size=(2, 3, 10, 4))
    with noting() as noted:
        np.testing.assert_allclose(over_sequences(values), values.mean((2, 3)))
        over_sequences(values[..., :5, :])
    assert [len(one) for one in noted.errors] == [6, 6]
    expected = values[1, 2].mean(1).std(ddof=1) / np.sqrt(10)
    assert noted.errors[0][5] == pytest.approx(expected / abs(values[1, 2].mean()))
    assert noted.error.endswith("over 5 to 10 sequences")


def a_loss(quick):
    """A measurement of one loss, of a model trained on samples and one on the whole law."""
    recipe = mm.load_recipe("binary-p02-q03-untied").with_set(
        ["steps=1", "checkpoints=[1]", "model.n_ctx=4", "data={batch=8}"]
    )
    trained([recipe, recipe.with_set(["data={population=true}"])], [0, 1] if quick else [0, 1, 2])
    mean = over_sequences(np.array([[0.0], [2.0], [1.0], [1.0]]))
    return Measured(
        [
            Finding("in_nats", f"{mean:.2f} nats", "for", "ours", "sampled", (4, 4)),
            Finding("no_nats", "3/3 seeds", "for", "ours", "sampled", (3, 3)),
        ]
    )


def test_a_table_shows_the_error_beside_the_nats(tmp_path):
    (tmp_path / "claims.toml").write_text("[paper]\n")
    study = Study(tmp_path, "", [a_loss])
    measured = study.measure("a_loss", quick=True)
    save(tmp_path, "a_loss", measured, 1)
    assert load(tmp_path, "a_loss")[0] == measured.findings
    said = Statement("it falls", "shi2025", "abstract", "own: it falls", "own", kind="question")
    claims = [Claim(said, finding, "study", "a_loss") for finding in measured.findings]
    error = "40.8% of a mean, at most 40.8%, over 4 sequences"  # sqrt(2/3) / 2
    shown = details(claims)
    assert f"- Measured: 1.00 nats (standard error {error})" in shown
    assert "- Measured: 3/3 seeds\n" in shown
    batch = "8 fresh sequences a step, others for each of 2 seeds"
    assert f"- Trained on: {batch}; the whole law of the chain" in shown


def test_an_exact_measurement_has_none():
    with noting() as noted:
        pass
    assert (noted.data, noted.error) == ("", "")


def test_a_mean_of_zero_has_no_share():
    with noting() as noted:
        over_sequences(np.stack([np.zeros((4, 2)), np.eye(4)[:, :2]]))
    assert [len(one) for one in noted.errors] == [1]
