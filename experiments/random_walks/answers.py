"""What the authors answered to reviewers, as far as it can be computed: factors of W, a residual."""

import torch

import mechmarkov as mm
from experiments.claims import Finding, holds
from experiments.exactness import exactly
from experiments.harness import Measured, trained
from experiments.random_walks.population import EPS
from mechmarkov.sources import Circle
from mechmarkov.sources.sampling.whole_law import whole_law

PROOF = "experiments/random_walks/README.md#factors-of-w-and-a-residual"


@exactly
def factors(quick: bool) -> Measured:
    """`W_Kᵀ W_Q` in place of `W`: the gradient of both at zero, whatever V is."""
    N, M, worst, tables = 7, 12, 0.0, 0
    for K in (5,) if quick else (5, 6):
        for p in (0.5, 0.7, 1.0):
            tokens, law = whole_law(Circle(n_states=K, p=p), N)
            X = torch.nn.functional.one_hot(tokens[:, :-1], K).double()
            X = torch.cat([X, torch.zeros(len(X), 1, K, dtype=torch.float64)], 1)
            places = torch.eye(N, M, dtype=torch.float64).expand(len(X), -1, -1)
            whole = torch.cat([X, places], 2)
            for V in (torch.zeros(K, K), torch.ones(K, K), torch.arange(K * K).reshape(K, K) / K**2):
                W_Q, W_K = (
                    torch.zeros(K + M, K + M, dtype=torch.float64, requires_grad=True) for _ in range(2)
                )
                seen = (whole @ W_K.T @ W_Q @ whole[0, -1]).softmax(-1)
                score = (torch.einsum("bn,bnk->bk", seen, X) @ V.double().T).gather(1, tokens[:, -1:])
                loss = -(law * (score[:, 0] + EPS).log()).sum()
                worst = max(worst, *(float(g.abs().max()) for g in torch.autograd.grad(loss, (W_Q, W_K))))
                tables += 1
    return Measured(
        [
            Finding(
                "separate_qk_zero",
                f"largest entry of the gradients of W_Q and W_K at zero: {worst:.0e}, for {tables} "
                "pairs of V and p",
                holds(worst == 0),
                f"K = 5 and 6, N = {N}, all walks at p = 0.5, 0.7 and 1, three tables V, float64",
                "proved",
                number=f"gradient {worst:.0e}",
                proof=PROOF,
            )
        ]
    )


@exactly
def residual_stream(quick: bool) -> Measured:
    """A residual connection in the paper's model, whose query is a zero token."""
    del quick
    ((run,),) = trained([mm.load_recipe("walk-k6-trap").with_set(["steps=2", "checkpoints=[2]"])], [0])
    K, N, decoder = run.source.n_states, run.config.n_ctx, run.model()
    tokens = torch.cat([torch.arange(N - 1)[None] % K, torch.tensor([[K]])], 1)
    with torch.no_grad():
        _, cache = decoder.run_with_cache(tokens)
        stream = cache["blocks.0.hook_resid_pre"][0, -1] @ decoder.unembed.W_U
    largest = float(stream.abs().max())
    return Measured(
        [
            Finding(
                "residual_void",
                f"largest score from the query's own stream: {largest:.0e}",
                holds(largest == 0),
                "the walk model as a decoder, which has the residual stream; two steps at p = 1",
                "proved",
                number=f"{largest:.0e}",
                proof=PROOF,
            )
        ]
    )
