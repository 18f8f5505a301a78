"""Another way to the bigram: a first layer that looks anywhere but at the previous token."""

from collections.abc import Sequence

import numpy as np
import torch

import mechmarkov as mm
from experiments.claims import Claim
from experiments.induction_heads.shared import (
    BIGRAM,
    EVALUATION_SEED,
    UNIGRAM,
    claim,
    holds,
    middle,
    share,
)
from mechmarkov.theory.kernel import kl

HALF = 0.5


def look(run: mm.Run) -> dict[str, float]:
    """One run at its last step, late in the context.

    Returns:
        `previous`: layer 1's attention on the previous token, over that of uniform attention; `gained`: the
        share of the bigram's gain over the unigram; `filled`, `cut` (nats): what it costs to make layer 1's
        attention uniform, and to hide layer 1 from layer 2's keys.
    """
    tokens = run.source.sample(128, run.model.n_ctx, generator=torch.Generator().manual_seed(EVALUATION_SEED))
    late = slice(run.model.n_ctx - run.model.n_ctx // 4, None)
    rules = run.source.predictors()
    bigram, unigram = (rules[name].probabilities(tokens.numpy())[:, late] for name in (BIGRAM, UNIGRAM))
    model, name = run.decoder(), "blocks.0.attn.hook_pattern"
    _, cache = model.run_with_cache(tokens, names_filter=[name])
    # Entry j of this diagonal is query j + 1, which uniform attention gives 1 / (j + 2) of.
    before = cache[name].diagonal(offset=-1, dim1=-2, dim2=-1) * torch.arange(2, run.model.n_ctx + 1)

    def excess() -> float:
        with torch.no_grad():
            return float(kl(bigram, model(tokens).double().softmax(-1).numpy()[:, late]).mean())

    intact = excess()
    with mm.attend(model, "L0H0", to="uniform"):
        filled = excess()
    with mm.ablate_path(model, "L0H0", "L1H0.K", kind="mean"):
        cut = excess()
    return {
        "previous": float(before[..., late].mean()),
        "gained": 1 - intact / float(kl(bigram, unigram).mean()),
        "filled": filled - intact,
        "cut": cut - intact,
    }


def hole_claim(symbols: str, seen: Sequence[dict[str, float]], how: str) -> Claim:
    """Whether the models that reach the bigram look at the previous token at all."""
    there = [run for run in seen if run["gained"] > HALF]
    holes = [run for run in there if run["previous"] < HALF]
    measured = "no run is there"
    if there:
        previous = middle(np.array([run["previous"] for run in there]))
        kept = share(len(there) - len(holes), len(there))
        measured = f"{kept} runs; attention on it over uniform attention's: {previous}"
    if holes:
        filled, cut = (middle(np.array([run[name] for run in holes])) for name in ("filled", "cut"))
        measured += (
            f"; where they avoid it, making layer 1's attention uniform costs {filled} nats, hiding layer "
            "1 from "
            f"layer 2's keys {cut}"
        )
    return claim(
        "phases",
        f"With {symbols}, models that reach the bigram attend to the previous token",
        "finding 1 of the code's page",
        "yes",
        measured,
        holds(bool(there) and not holes),
        "runs with half of the bigram's gain; avoiding is less than half of what uniform attention "
        "gives; last "
        f"quarter of positions; {how}",
    )
