"""Another way to the bigram: a first layer that looks anywhere but at the previous token."""

from collections.abc import Sequence

import numpy as np
import torch

import mechmarkov as mm
from experiments.claims import Evidence, Finding, holds, share
from experiments.harness import evaluation, exact, over_seeds
from experiments.induction_heads.shared import BIGRAM, UNIGRAM
from experiments.sampling_error import over_sequences
from mechmarkov.theory.kernel import kl

HALF = 0.5


def look(run: mm.Run) -> dict[str, float]:
    """One run at its last step, late in the context.

    Returns:
        `previous`: layer 1's attention on the previous token, over that of uniform attention; `gained`: the
        share of the bigram's gain over the unigram; `filled`, `cut` (nats): what it costs to make layer 1's
        attention uniform, and to hide layer 1 from layer 2's keys.
    """
    tokens = evaluation(run.source, 128, run.config.n_ctx)
    late = slice(run.config.n_ctx - run.config.n_ctx // 4, None)
    laws = exact(run.source, tokens)
    bigram, unigram = laws[BIGRAM][:, late], laws[UNIGRAM][:, late]
    model, name = run.model(), "blocks.0.attn.hook_pattern"
    _, cache = model.run_with_cache(tokens, names_filter=[name])
    # Entry j of this diagonal is query j + 1, which uniform attention gives 1 / (j + 2) of.
    before = cache[name].diagonal(offset=-1, dim1=-2, dim2=-1) * torch.arange(2, run.config.n_ctx + 1)

    def excess() -> float:
        with torch.no_grad():
            return float(over_sequences(kl(bigram, model(tokens).double().softmax(-1).numpy()[:, late])))

    intact = excess()
    with mm.override_attention(model, "L0H0", to="uniform"):
        filled = excess()
    with mm.ablate_path(model, "L0H0", "L1H0.K", kind="mean"):
        cut = excess()
    return {
        "previous": float(before[..., late].mean()),
        "gained": 1 - intact / float(over_sequences(kl(bigram, unigram))),
        "filled": filled - intact,
        "cut": cut - intact,
    }


def previous_claim(
    symbols: str, seen: Sequence[dict[str, float]], how: str, evidence: Evidence = "trained at another"
) -> Finding:
    """Whether the models that reach the bigram look at the previous token at all."""
    there = [run for run in seen if run["gained"] > HALF]
    holes = [run for run in there if run["previous"] < HALF]
    measured = "no run is there"
    if there:
        previous = over_seeds(np.array([run["previous"] for run in there]))
        kept = share(len(there) - len(holes), len(there) or 1)
        measured = f"{kept} runs; attention on it over uniform attention's: {previous}"
    if holes:
        filled, cut = (over_seeds(np.array([run[name] for run in holes])) for name in ("filled", "cut"))
        measured += (
            f"; where they avoid it, making layer 1's attention uniform costs {filled} nats, hiding layer 1 "
            f"from layer 2's keys {cut}"
        )
    return Finding(
        "attends_previous",
        measured,
        holds(bool(there) and not holes),
        "runs with half of the bigram's gain; avoiding is less than half of what uniform attention gives; "
        f"last quarter of positions; {how}",
        evidence,
        (len(there) - len(holes), len(there) or 1),
        case=symbols,
    )
