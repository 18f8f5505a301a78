"""Several hidden-Markov tasks, one behind each sequence: is the task inferred, and the belief held?

The three tasks share tokens and emissions. Only the hidden chain differs: it stays, goes round, or goes round
the other way. They are one hidden chain that changes its task with a probability of 1e-6 a step, so that the
exact filter over task and state is that of `HiddenMarkov`.
"""

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float
from mechmarkov.probes.belief.claims import is_carried, is_used
from mechmarkov.probes.belief.measure import measure

import mechmarkov as mm
from experiments.claims import Finding, holds, share
from experiments.figures import bands, titled
from experiments.harness import Measured, evaluation, exact, over_seeds, predictions, trained
from experiments.order_and_lag.shared import RECIPES
from experiments.sampling_error import over_sequences
from mechmarkov.theory.kernel import kl

MOVES = (0, 1, 2)  # of the hidden state in each task, modulo 3
LIKELY, EMITTED = 0.9, 0.9  # probability of that move, and of the token that belongs to the hidden state
SWITCH = 1e-6  # probability a step of another task
SEQUENCES = 256
PROBED = 64  # sequences for the probe `belief`
LEFT = 0.25  # of the excess of a predictor that does not infer the task
SEEN = (1, 4, 8, 16, 32)  # tokens


def task(move: int) -> mm.HiddenMarkov:
    """One task by itself."""
    other = (1 - LIKELY) / 2
    rows = other + (LIKELY - other) * np.roll(np.eye(3), move, axis=1)
    return mm.HiddenMarkov(transitions=rows.tolist(), emissions=mm.HiddenMarkov.mess3(a=EMITTED).emissions)


def tasks() -> mm.HiddenMarkov:
    """All tasks as one hidden chain; hidden state `3 task + state`."""
    blocks = [task(move) for move in MOVES]
    n = len(blocks)
    T = np.zeros((3 * n, 3 * n))
    for i, block in enumerate(blocks):
        for j in range(n):
            T[3 * i : 3 * i + 3, 3 * j : 3 * j + 3] = block.T * (1 - SWITCH if i == j else SWITCH / (n - 1))
    emissions = np.concatenate([block.E for block in blocks])
    return mm.HiddenMarkov(transitions=T.tolist(), emissions=emissions.tolist())


def without_inference(tokens: np.ndarray) -> Float[np.ndarray, "batch position state"]:
    """Each task's exact filter, the tasks weighed alike at every position."""
    return np.mean([task(move).best().probabilities(tokens) for move in MOVES], axis=0)


def hidden_tasks(quick: bool) -> Measured:
    """Train on all tasks; distance from the exact filter by position, and what the stream holds."""
    seeds = 2 if quick else 48
    data = tasks().model_dump(mode="json")
    recipe = mm.load_recipe(RECIPES / "hidden-tasks.toml").replace(**{"source": data})
    (runs,) = trained([recipe], range(seeds))
    tokens = evaluation(runs[0].source, SEQUENCES, recipe.model.n_ctx)
    laws = exact(runs[0].source, tokens)
    best, blind = laws["forward_filter"], without_inference(tokens.numpy())
    final = np.stack([predictions(run, tokens)[-1] for run in runs])
    excess = kl(best[None], final).mean(1)  # [seed, position]
    late = slice(recipe.model.n_ctx // 2, None)
    of_blind = kl(best, blind).mean(0)
    left = over_sequences(kl(best[None], final)[..., late]) / over_sequences(kl(best, blind)[:, late])
    inferred = int((left < LEFT).sum())
    at = [n for n in SEEN if n <= recipe.model.n_ctx]
    by_position = ", ".join(f"{n}: {np.median(excess[:, n - 1]):.3g} ({of_blind[n - 1]:.3g})" for n in at)
    how = (
        f"{seeds} seeds, {recipe.model.n_layers} layers, d_model {recipe.model.d_model}, T = "
        f"{recipe.model.n_ctx}, batch {recipe.data.batch}, {recipe.steps} steps of AdamW; late: the second "
        f"half of {SEQUENCES} fresh sequences"
    )
    claims = [
        Finding(
            "task_inferred",
            f"{share(inferred, seeds)} seeds; late {over_seeds(left)} of the KL without inference is left; "
            f"loss above the exact filter's, nats (without inference) by tokens seen: {by_position}",
            holds(inferred == seeds),
            f"{how}; below {LEFT:g} of the KL from the exact filter of {of_blind[late].mean():.3g} nats",
            "trained at another",
            (inferred, seeds),
        ),
        *_belief(runs, how),
    ]
    figure = go.Figure()
    curves = {
        "trained": excess,
        "task not inferred": of_blind[None],
        "bigram": kl(best, laws["bigram"]).mean(0)[None],
    }
    bands(figure, np.arange(1, recipe.model.n_ctx + 1), curves)
    title = "Three hidden-Markov tasks: distance from the exact filter"
    return Measured(claims, {"hidden_tasks": titled(figure, title, "tokens seen", "KL (nats)")})


def _belief(runs: list[mm.Run], how: str) -> list[Finding]:
    """What the probe `belief` finds, before training (the null) and after it."""
    seeds = len(runs)
    found = [
        measure(mm.Subject.of(run, steps=[int(run.steps[0]), int(run.steps[-1])], sequences=PROBED))
        for run in runs
    ]
    last = [data.isel(step=-1) for data in found]
    of_last = [data.r2.isel(stream=-1).values for data in found]
    r2 = np.stack(of_last)  # [seed, step]
    beyond = [float(one.beyond.isel(stream=-1)) for one in last]
    clean, forced, random = (
        [float(one[f"{name}_kl"].mean()) for one in last] for name in ("clean", "forced", "random")
    )
    carried, used = (sum(is_it(one) is True for one in last) for is_it in (is_carried, is_used))
    return [
        Finding(
            "belief_carried",
            f"{share(carried, seeds)} seeds; last stream R² {over_seeds(r2[:, 1])}, "
            f"untrained {over_seeds(r2[:, 0])}; "
            f"beyond predictions and tokens {over_seeds(beyond)}",
            holds(2 * carried > seeds),
            f"{how}; probe `belief` over 9 pairs of task and state, {PROBED} sequences: R² surely of at "
            "least 0.9 and at least half of what the law of the next token and the last 8 tokens leave open",
            "trained at another",
            (carried, seeds),
        ),
        Finding(
            "belief_used",
            f"{share(used, seeds)} seeds; KL to the law of a forced state {over_seeds(forced)} nats, clean "
            f"{over_seeds(clean)}, random directions {over_seeds(random)}",
            holds(2 * used > seeds),
            f"{how}; probe `belief`: forced below half of the smaller of the other two",
            "trained at another",
            (used, seeds),
        ),
    ]
