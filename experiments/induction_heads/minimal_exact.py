"""What is exact of the minimal model: its first gradient, and the released code's unused mask."""

import torch

from experiments.claims import Finding, holds
from experiments.exactness import exactly
from experiments.harness import Measured, every_sequence
from experiments.induction_heads import minimal

ROUNDING = 1e-12
STATES, LENGTH = 3, 6


@exactly
def minimal_exact(quick: bool) -> Measured:
    """The gradient where W is constant, and the released model with its last token changed."""
    del quick
    tokens = every_sequence(STATES, LENGTH)[None]
    v = torch.sin(torch.arange(LENGTH, dtype=torch.float64))[None].requires_grad_()
    W = torch.full((1, STATES, STATES), 0.01, dtype=torch.float64, requires_grad=True)
    said = minimal.logits(v, W, tokens[..., :-1], True).log_softmax(-1)
    loss = -said.gather(-1, tokens[..., 1:, None]).mean()
    by_v, by_W = (float(g.abs().max()) for g in torch.autograd.grad(loss, (v, W)))
    sequence = torch.tensor([[[0, 1, 2, 0, 1, 2, 0, 1]]])
    other = sequence.clone()
    other[..., -1] = 2
    v8, eye = torch.zeros(1, 8, dtype=torch.float64), torch.eye(STATES, dtype=torch.float64)[None]
    moved = {}
    for masked in (True, False):
        change = minimal.logits(v8, eye, sequence, masked) - minimal.logits(v8, eye, other, masked)
        moved[masked] = float(change[..., :-1, :].abs().max())
    return Measured(
        [
            Finding(
                "first_gradient",
                f"largest entry of the gradient: v {by_v:.0e}, W {by_W:.2g}",
                holds(by_v < ROUNDING < 1e-3 < by_W),
                f"W = 0.01 everywhere, v not zero, all {STATES**LENGTH} sequences of {LENGTH} alike, "
                "float64. Where W "
                "is constant a score does not depend on what layer 1 mixes, for the mix sums to one",
                "computed exactly",
                number=f"v {by_v:.0e}, W {by_W:.2g}",
            ),
            Finding(
                "released_causal",
                f"changing the last token moves earlier logits by {moved[False]:.2g} as released, "
                f"{moved[True]:.0e} with the mask used",
                holds(moved[False] < ROUNDING),
                "the code computes `masked_fill` and drops its result: keys mix in every later token, "
                "with the "
                "weight of lag 0 (at the last position, where the paper's curves are read, nothing is "
                "ahead); "
                "v = 0, W the identity, a sequence of eight",
                "computed exactly",
                number=f"moves by {moved[False]:.2g}",
            ),
        ]
    )
