"""Hand-set n-gram models against loops over the table, and over the context."""

import numpy as np
import pytest
import torch

from mechmarkov.models.constructions.n_grams import k_gram_counter, n_gram_error, n_gram_model

LENGTH = 9
FORMS = ("heads", "layers", "digits")
SIZES = [(2, 1), (2, 2), (2, 3), (3, 2), (3, 3), (5, 1), (5, 2)]  # symbols, order


def random_table(n: int, order: int) -> np.ndarray:
    return np.random.default_rng([n, order]).dirichlet(np.ones(n), size=(n,) * order)


def sequences(n: int) -> np.ndarray:
    return np.random.default_rng(n).integers(0, n, (40, LENGTH))


def furthest(model, kernel: np.ndarray) -> float:
    """The largest difference of a log-probability from the table's where k tokens are known (nats)."""
    order, x = kernel.ndim - 1, sequences(len(kernel))
    said = model(torch.from_numpy(x)).log_softmax(-1).detach().double().numpy()
    return max(
        float(np.abs(said[b, t] - np.log(kernel[tuple(row[t - order + 1 : t + 1])])).max())
        for b, row in enumerate(x)
        for t in range(order - 1, LENGTH)
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("n", "order"), SIZES)
def test_the_prediction_is_the_law_of_the_table(form, n, order):
    kernel = random_table(n, order)
    assert furthest(n_gram_model(kernel, LENGTH, form=form, dtype=torch.float64), kernel) < 1e-11
    assert furthest(n_gram_model(kernel, LENGTH, form=form), kernel) < 1e-4
    if order > 1:  # oldest and newest in the wrong order
        wrong = n_gram_model(kernel.swapaxes(0, order - 1), LENGTH, form=form)
        assert furthest(wrong, kernel) > 0.1


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("n", "order"), SIZES)
def test_what_softmax_attention_misses_is_within_its_bound(form, n, order):
    kernel = random_table(n, order)
    bound = n_gram_error(kernel, LENGTH, form=form, sharpness=8)
    missed = furthest(n_gram_model(kernel, LENGTH, form=form, sharpness=8, dtype=torch.float64), kernel)
    assert 1e-3 * bound < missed < bound
    assert n_gram_error(kernel, LENGTH, form=form) < 1e-20


@pytest.mark.parametrize("form", ["heads", "layers"])
def test_every_head_copies_one_token_and_is_needed(form):
    kernel = random_table(3, 3)
    model = n_gram_model(kernel, LENGTH, form=form, dtype=torch.float64)
    _, cache = model.run_with_cache(torch.from_numpy(sequences(3)))
    for j in range(3):
        layer, head, back = (0, j, j) if form == "heads" else (j, 0, min(j, 1))
        pattern = cache[f"blocks.{layer}.attn.hook_pattern"][:, head]
        assert pattern.diagonal(-back, -2, -1).min() > 1 - 1e-12
        weights = model.blocks[layer].attn.W_O.data
        kept = weights[head].clone()
        weights[head] = 0
        assert furthest(model, kernel) > 0.1
        weights[head] = kept
    assert furthest(model, kernel) < 1e-11


def test_a_probability_of_zero_is_below_the_smallest_of_float32():
    kernel = np.array([[0.0, 1.0], [0.25, 0.75]])
    for form in FORMS:
        said = n_gram_model(kernel, 4, form=form)(torch.tensor([[0, 1, 0]])).softmax(-1)[0].detach().numpy()
        assert said == pytest.approx(kernel[[0, 1, 0]], abs=1e-5)
        assert said[0, 0] < 1e-20


@pytest.mark.parametrize(("n", "order"), SIZES)
def test_the_counter_says_how_often_each_state_followed_the_last_tokens(n, order):
    model, x = k_gram_counter(n, LENGTH, order=order, dtype=torch.float64), sequences(n)
    said = model(torch.from_numpy(x)).detach().numpy()
    seen = 0
    for b, row in enumerate(x.tolist()):
        for t in range(order, LENGTH):
            now = row[t - order + 1 : t + 1]
            followed = [row[s] for s in range(order, t + 1) if row[s - order : s] == now]
            if followed:
                seen += 1
                assert said[b, t] == pytest.approx(
                    np.bincount(followed, minlength=n) / len(followed), abs=1e-10
                )
            elif t > order:  # all that have enough predecessors
                assert said[b, t] == pytest.approx(
                    np.bincount(row[order : t + 1], minlength=n) / (t + 1 - order)
                )
    assert seen > 5


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        (np.ones((2, 3)) / 3, r"shape \(2, 3\), expected two or more axes of one length"),
        (np.ones(2) / 2, r"shape \(2,\), expected two or more axes"),
        (np.ones((2, 2)), "does not sum to 1"),
    ],
)
def test_what_is_no_table_is_refused(kernel, said):
    with pytest.raises(ValueError, match=said):
        n_gram_model(kernel, 4)


def test_a_bound_that_holds_nowhere_is_refused():
    with pytest.raises(
        ValueError, match="sharpness is 1, expected more where n_ctx is 100 and the order is 2"
    ):
        n_gram_error(random_table(2, 2), 100, form="heads", sharpness=1)
