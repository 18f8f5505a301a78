"""A process that no finite hidden chain makes: does the stream hold the belief of its three dimensions?"""

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from jaxtyping import Float
from mechmarkov.probes.belief.carried import held_out
from mechmarkov.probes.belief.forcing import mean_kls
from mechmarkov.probes.belief.measure import measure

import mechmarkov as mm
from experiments.claims import Finding, of_seeds
from experiments.figures import REFERENCE, marker, ranges, titled
from experiments.harness import Measured, evaluation, over_seeds, trained

SEQUENCES = 128
HELD = 0.9  # R² from which on the belief is held
FOLLOWED = 0.25  # of KL without a move, and of moves in random directions
LONGEST = 6  # words of last tokens, and
WORD = 3  # the one that a stream is compared with
CASES = ("one layer", "two layers")


def by_last_tokens(source: mm.sources.GeneralisedHiddenMarkov, length: int) -> Float[np.ndarray, " k"]:
    """Held-out R² of the belief as read from which k tokens came last: `n_states**k` classical states.

    Returns:
        R² for k = 1 to `LONGEST`; before k tokens there are fewer.
    """
    tokens = evaluation(source, 4 * SEQUENCES, length).numpy()
    belief, word = source.beliefs(tokens), np.zeros(tokens.shape, dtype=int)
    spread, r2 = ((belief - belief.mean((0, 1))) ** 2).sum(), []
    for k in range(LONGEST):
        came = np.pad(tokens + 1, ((0, 0), (k, 0)))[:, : tokens.shape[1]]  # 0 where nothing came
        word = word * (source.n_states + 1) + came
        _, number = np.unique(word, return_inverse=True)
        rows = np.eye(number.max() + 1)[number.reshape(word.shape)]
        r2.append(1 - ((held_out(rows, belief) - belief) ** 2).sum() / spread)
    return np.array(r2)


def quantum(quick: bool) -> Measured:
    """Train on tokens of a qubit that is weakly measured and turned."""
    seeds, steps, depths = (range(2), 500, CASES[:1]) if quick else (range(16), 1500, CASES)
    recipe = mm.load_recipe("measured-qubit").with_set(
        [f"steps={steps}", f"checkpoints=[0, {steps}]", "data.batch=64"]
    )
    n_ctx, figure, findings = recipe.model.n_ctx, go.Figure(), list[Finding]()
    words = by_last_tokens(mm.sources.GeneralisedHiddenMarkov.qubit(turn=1.0, strength=0.8), n_ctx)
    for i, case in enumerate(depths):
        (runs,) = trained([recipe.replace(**{"model.n_layers": i + 1})], seeds)
        found = [measure(mm.Subject.of(run, steps=[0, steps], sequences=SEQUENCES)) for run in runs]
        findings += of_models(found, words, case, steps, n_ctx)
        r2 = np.array([data["r2"].values for data in found])  # [seed, step, stream]
        for j, (name, at) in enumerate({"untrained": 0, "trained": -1}.items()):
            figure.add_scatter(
                x=found[0]["stream"].values.tolist(),
                name=f"{case}, {name}",
                mode="lines+markers",
                marker=marker(2 * i + j),
                **ranges(list(r2[:, at].T)),
            )
    for k in range(1, 5):
        text = f"last {k} token{'s' * (k > 1)}: {2**k} states"
        figure.add_hline(words[k - 1], line=REFERENCE, annotation_text=text)
    titled(figure, "Belief of a measured qubit (mean and range over seeds)", "stream", "R² of the belief")
    return Measured(findings[2:] if quick else findings, {"quantum": figure})


def of_models(
    found: list[xr.Dataset], words: Float[np.ndarray, " k"], case: str, steps: int, n_ctx: int
) -> list[Finding]:
    """Findings of models of one depth: the belief, how much last tokens tell of it, and its use."""
    r2 = np.array([data["r2"].values for data in found])
    clean, random, forced = np.array([mean_kls(data.isel(step=-1)) for data in found]).T
    last, untrained = r2[:, -1, -1], r2[:, 0].max(-1)
    at_end = f"R² {over_seeds(last)} after the last block"
    each = ", ".join(f"{x:.3g}" for x in words)
    hits = {
        "quantum_belief": (
            (last > HELD) & (last > untrained),
            f"{at_end}, untrained {over_seeds(untrained)} at best, at the embedding {r2[0, -1, 0]:.3g}",
            f"held: above {HELD:g}, and above every stream of the untrained model",
        ),
        "quantum_beyond_words": (
            last > words[WORD - 1],
            f"{at_end}; from which tokens came last, 1 to {LONGEST}: {each}",
            f"beyond: above what the last {WORD} tokens tell, as {2**WORD} classical states",
        ),
        "quantum_is_used": (
            forced < FOLLOWED * np.minimum(clean, random),
            f"KL {over_seeds(forced)} nats, without a move {over_seeds(clean)}, in random directions "
            f"{over_seeds(random)}",
            f"forced: each of three words' beliefs; followed: KL below {FOLLOWED:g} of both",
        ),
    }
    setting = (
        "a qubit measured with strength 0.8 and turned by 1, three dimensions, 2 tokens; "
        f"{case} of two heads, width 32, an MLP of 64, contexts of {n_ctx}, {steps} steps of AdamW on 64 "
        "sequences"
    )
    return [
        of_seeds(key, true, text, f"{setting}; {rule}", case=case) for key, (true, text, rule) in hits.items()
    ]
