"""Parameter decomposition: parts sum to the matrix, and cost no more than the ones that are known by hand."""

import numpy as np
import pytest
import torch

from mechmarkov.bench import CASES, check, run
from mechmarkov.bench import decomposition as parts_of
from mechmarkov.bench.decomposition import PENALTY, POSITIONS, STEPS, decompose, decomposition, needs
from mechmarkov.bench.method import counted_passes

SHARES = np.linspace(0, 1, 2001)


@pytest.fixture
def few_steps(monkeypatch):
    monkeypatch.setattr(parts_of, "STEPS", 3)


def kl(P, scores):
    """KL from rows of laws to the softmax of scores, in numpy."""
    return (P * (np.log(P) - scores)).sum(-1) + np.log(np.exp(scores).sum(-1))


def cost_of_token_parts(P):
    """Returns each token's least KL and price if its row is a part, over a uniform share of it."""
    lost = kl(P, SHARES[:, None, None] * np.log(P))
    mean_above = lost[::-1].cumsum(0)[::-1] / np.arange(len(SHARES), 0, -1)[:, None]
    return (mean_above + PENALTY * SHARES[:, None]).min(0)


@pytest.mark.parametrize("seed", [1, 3])
def test_parts_of_a_table_are_its_rows(seed):
    case = CASES["direct"](seed)
    parts = decompose(case)["embed"]
    reads = parts.reads / parts.reads.norm(dim=0)
    assert (reads.abs().amax(1) > 0.99).all()
    assert sorted(reads.abs().argmax(1).tolist()) == [0, 1, 2, 3]
    assert cost(case, parts) == pytest.approx(cost_of_token_parts(case.source.P)[seen(case)].mean(), rel=0.05)


def seen(case):
    return case.tuning.clean[: POSITIONS // case.model.config.n_ctx].numpy()


def cost(case, parts, draws=60):
    """Returns what the fit pays, from its result, in numpy."""
    random, tokens, need = np.random.default_rng(0), seen(case), parts.needed.numpy()
    read = np.eye(4)[tokens] @ parts.reads.numpy()
    writes = parts.writes.numpy() @ case.model.W_U.detach().numpy()
    moved = [
        kl(case.source.P[tokens], (read * (need + (1 - need) * random.random(need.shape))) @ writes)
        for _ in range(draws)
    ]
    return np.mean(moved) + PENALTY * need.sum(-1).mean()


@pytest.mark.parametrize("name", ["induction", "bundled-induction"])
def test_parts_sum_to_the_matrix(name, few_steps):
    case = CASES[name](0)
    parts = decompose(case)
    heads = {f"L{i}H{j}": case.model.blocks[i].attn.W_O[j] for i in range(2) for j in range(2)}
    for node, matrix in (heads | {"embed": case.model.W_E}).items():
        if node not in parts:
            assert not matrix.any(), node
            continue
        torch.testing.assert_close(parts[node].reads @ parts[node].writes, matrix.double())
        assert ((parts[node].needed >= 0) & (parts[node].needed <= 1)).all()


def test_nothing_is_lost_where_all_is_needed():
    case = CASES["bundled-induction"](0)
    output = case.outputs(case.clean)["L0H1"]
    fit = parts_of._Fit.of(case.model, "L0H1", output, torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert not torch.allclose(fit.masked(output), output, atol=1e-3)
        fit.offset.fill_(1e3)
        torch.testing.assert_close(fit.masked(output), output)


def test_a_decoy_needs_no_part(monkeypatch):
    monkeypatch.setattr(parts_of, "STEPS", 100)
    case = CASES["induction"](0)
    found = needs(case, decompose(case))
    assert found["L0H1"] == 0.0  # its matrix is zero
    assert found["L1H1"] < 0.01  # nothing reads it
    assert min(found[name] for name in ("embed", "L0H0", "L1H0")) > 0.5


def test_the_model_is_left_as_it_was(few_steps):
    case = CASES["bundled-induction"](0)
    before = case.predicted(case.clean)
    decompose(case)
    assert torch.equal(case.predicted(case.clean), before)


def test_a_decomposition_takes_the_passes_it_declares(few_steps):
    case = CASES["bundled-induction"](0)
    with counted_passes() as passes:
        assert set(decomposition.claims(case)) == set(case.nodes)
    assert len(passes) - 3 == decomposition.declared(case) - STEPS


def test_other_models_are_given_a_reason():
    check(decomposition, ["direct", "split", "trigram"])
    reasons = run([decomposition], ["split"], seeds=1).reasons
    assert reasons["reason"].tolist() == ["only models of two attention layers without MLPs are decomposed"]
    with pytest.raises(ValueError, match="case 'split' has MLPs, expected a model of attention only"):
        decompose(CASES["split"](0))
