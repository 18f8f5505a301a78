"""The lemmas behind theorem 3.1, each computed for all walks of a circle at their probability."""

import numpy as np
import torch

import mechmarkov as mm
from experiments.claims import Finding, holds
from experiments.exactness import exactly
from experiments.harness import Measured
from experiments.random_walks.common import FLOAT64, POPULATION
from experiments.random_walks.population import EPS, ETA, GRID, M, descend, transition
from mechmarkov.sources.sampling.whole_law import whole_law
from mechmarkov.theory.walk.first_step import first_step_profile
from mechmarkov.theory.walk.reduced_walk import value_matrix

ROUNDING = 1e-12
FEWEST, MOST = 5, 20  # states
LENGTHS = (*range(2, 61), 97, 101, 200)


@exactly
def first_step_lemmas(quick: bool) -> Measured:
    """Lemmas C.1 to C.4: what the first steps make of V, against every walk written out."""
    states, lengths = (range(5, 8), range(3, 9)) if quick else (range(FEWEST, 9), range(3, 14))
    worst, largest, turned, cells = 0.0, 0.0, 0.0, 0
    for K in states:
        for N in lengths:
            for p in GRID:
                run = descend(K, N, p, 2)
                V = value_matrix(run.states[1].profile)
                total = sum(np.linalg.matrix_power(transition(K, p).T, N - i) for i in range(1, N))
                closed = value_matrix(first_step_profile(K, p, N)[1] * ETA / (EPS * N * K))
                printed = ETA / (EPS * N * K) * total
                worst = max(worst, float(np.abs(V - printed).max()), float(np.abs(closed - printed).max()))
                turned = max(turned, float(np.abs(printed - np.roll(printed, (1, 1), (0, 1))).max()))
                second = float(np.abs(run.states[2].profile).max())
                largest = max(largest, second / (ETA / (EPS * K) + 2 / (EPS * K**2)))
                cells += 1
    right = wrong = 0
    for K in range(FEWEST, (8 if quick else MOST) + 1):
        for N in LENGTHS:
            for p in GRID:
                profile = first_step_profile(K, p, N)[1]
                first = bool(profile[1] >= profile.max() - ROUNDING * N)
                right, wrong = right + first, wrong + (not first)
    how = f"K = {states[0]} to {states[-1]}, N = {lengths[0]} to {lengths[-1]}, p = 0.5 to 0.95, all walks"
    exact = "computed exactly"
    return Measured(
        [
            Finding(
                "first_step_law",
                f"V(1) differs by at most {worst:.0e} from the sum and one FFT in {cells} cases; W(1) = 0",
                holds(worst < ROUNDING),
                f"{how}; one step of the reduced system, eta = 1, eps = 0.1, float64",
                exact,
                number=f"off by at most {worst:.0e}",
            ),
            Finding(
                "first_step_circulant",
                f"entries with the same i - j differ by at most {turned:.0e}, in {cells} cases",
                holds(turned < ROUNDING),
                f"{how}; the sum of lemma C.1, of powers of a matrix",
                exact,
                number=f"off by at most {turned:.0e}",
            ),
            Finding(
                "first_step_largest",
                f"{right} of {right + wrong} (K, N, p): K = {FEWEST} to {8 if quick else MOST}, N = 2 to 60, "
                "97, 101 and 200, p = 0.5 to 0.95",
                holds(wrong == 0),
                "the closed form of the first step, float64",
                exact,
                number=f"{right} of {right + wrong} (K, N, p)",
            ),
            Finding(
                "second_step_bound",
                f"the largest entry of V(2) is at most {largest:.2f} of the bound, in {cells} cases",
                holds(largest <= 1),
                f"{how}; read as eta / (eps K) + 2 / (eps K^2) at eta = 1, the fraction bars being lost",
                exact,
                number=f"at most {largest:.2f} of the bound",
            ),
        ]
    )


@exactly
def auxiliary_lemmas(quick: bool) -> Measured:
    """Lemmas B.1, E.1, E.4 and E.5: gradients, the cycle, visits to a state, positions."""
    most = 10 if quick else MOST
    cycle = positions = 0.0
    for K in range(3, most + 1):
        P = transition(K, 0.0)
        powers = [np.linalg.matrix_power(P, k) for k in range(1, K + 1)]
        parts = (powers[-1] - np.eye(K), P @ P.T - np.eye(K), sum(powers) - 1)
        cycle = max(cycle, *(float(np.abs(part).max()) for part in parts))
    dims = 200 if quick else M
    table = np.sin(np.outer(np.arange(1, dims + 1), np.arange(1, dims + 1)) * np.pi / (dims + 1))
    positions = float(np.abs(table @ table.T - np.eye(dims) * (dims + 1) / 2).max())
    returns, pairs = 0, []
    for K in range(FEWEST, most + 1):
        for p in GRID:
            P, visits, power, back = transition(K, p), np.eye(K), np.eye(K), []
            for _ in range(40):
                returns += not visits[0, 0] >= visits.max() - ROUNDING
                power = power @ P
                visits = visits + power
            power = np.eye(K)
            for _ in range(40):
                power = power @ P.T
                back.append(float((P @ power)[0, 0]))
            rises = np.diff(np.add(back[0::2], back[1::2]))
            pairs += [(float(by), K, p, k) for k, by in enumerate(rises, 1)]
    rising = sum(by > ROUNDING for by, *_ in pairs)
    by, K, p, k = max(pairs)
    exact = "computed exactly"
    return Measured(
        [
            _gradients(5 if quick else 6),
            Finding(
                "cycle_powers",
                f"largest difference {cycle:.0e} for K = 3 to {most}",
                holds(cycle < ROUNDING),
                "matrices of whole numbers",
                exact,
                number=f"off by {cycle:.0e}",
            ),
            Finding(
                "visits_return",
                f"the diagonal of Γ(N) is largest in all but {returns} cases: K = {FEWEST} to {most}, "
                "N = 2 to 41, p = 0.5 to 0.95",
                holds(returns == 0),
                "sums of powers of Π, float64",
                exact,
                number=f"{returns} exceptions",
            ),
            Finding(
                "pairs_fall",
                f"K = {K}, p = {p:g}, k = {k}: the pair after it is larger by {by:.3f}; {rising} of "
                f"{len(pairs)} pairs are, K = {FEWEST} to {most}, p = 0.5 to 0.95",
                holds(rising == 0),
                "Γ₂(k) = Π (Πᵀ)^k; on an odd circle the walk comes round after K steps, most often where p "
                "is near 1",
                exact,
                number=f"{rising} of {len(pairs)} pairs rise",
            ),
            Finding(
                "positions_orthogonal",
                f"largest difference {positions:.0e} from (M + 1) / 2 times the identity, M = {dims}",
                holds(positions < 1e-9),
                "all M positions, float64",
                exact,
                number=f"off by {positions:.0e}",
            ),
        ]
    )


def _gradients(K: int) -> Finding:
    """Lemma B.1, and what follows of the blocks of W, at weights two steps from zero."""
    N = 7
    source = mm.Circle(n_states=K, p=0.7)
    changes = [f"source.n_states={K}", "source.p=0.7", f"model.n_ctx={N}", "model.n_positions=20"]
    changes += [
        "model.positions='sine'",
        "steps=2",
        "checkpoints=[2]",
        POPULATION,
        FLOAT64,
        "model.form='full'",
    ]
    run = mm.train(mm.load_recipe("walk-k6-half").with_set(changes), seed=0, progress=False)
    tokens, law = whole_law(source, N)
    V = run.states["blocks.0.attn.W_O"][-1, 0, :K, :K].double().T
    X = torch.nn.functional.one_hot(tokens[:, :-1], K).double()
    X = torch.cat([X, torch.zeros(len(X), 1, K, dtype=torch.float64)], 1)
    table = torch.sin(torch.outer(torch.arange(1, N + 1), torch.arange(1, 21)) * torch.pi / 21).double()
    whole = torch.cat([X, table.expand(len(X), -1, -1)], 2)  # X~ of each walk
    W = torch.zeros(K + 20, K + 20, dtype=torch.float64, requires_grad=True)
    V = V.clone().requires_grad_()
    seen = (whole @ W @ whole[0, -1]).softmax(-1)
    read = torch.einsum("bn,bnk->bk", seen, X)
    score = (read @ V.T).gather(1, tokens[:, -1:])[:, 0]
    loss = -(law * (score + EPS).log()).sum()
    dV, dW = torch.autograd.grad(loss, (V, W))
    with torch.no_grad():
        slope = -law / (score + EPS)
        label = torch.nn.functional.one_hot(tokens[:, -1], K).double()
        by_V = torch.einsum("b,by,bk->yk", slope, label, read)
        inside = torch.diag_embed(seen) - seen[:, :, None] * seen[:, None]
        by_W = torch.einsum("b,bnd,bnm,bmk,ky,by,e->de", slope, whole, inside, X, V.T, label, whole[0, -1])
    off = float(max((dV - by_V).abs().max(), (dW - by_W).abs().max()))
    blocks = float(dW[:, :K].abs().max())
    return Finding(
        "gradients_B1",
        f"differ from autograd by at most {off:.0e}; the gradient of W_11 and W_21 is {blocks:.0e}",
        holds(off < ROUNDING and blocks == 0),
        f"V after two steps at p = 0.7, K = {K}, N = {N}, 20 sine positions, all walks, float64",
        "computed exactly",
        number=f"off by {off:.0e}",
    )
