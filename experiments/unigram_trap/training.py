"""Which runs stay at the unigram, for how long, and what lets them go."""

import numpy as np
import plotly.graph_objects as go
from jaxtyping import Float
from mechmarkov.probes.landscape.canonical_fit import canonical_fit
from mechmarkov.probes.storage.measure import shares
from plotly.subplots import make_subplots

import mechmarkov as mm
from experiments.claims import Finding, holds, share
from experiments.figures import REFERENCE, style
from experiments.harness import Measured
from experiments.unigram_trap.fates import Fate, fate, fates, share_bars, varied
from mechmarkov.theory.canonical import CANCELS

REDUCED = (
    "T = 64 where the paper has 1024, else its settings (AdamW, one cycle, 400 steps, d = 8, batch 16), no "
    "norm"
)
BELOW = ((0.2, 0.2), (0.5, 0.2), (0.2, 0.5))
ABOVE = ((0.8, 0.8), (0.5, 0.8), (0.8, 0.5))


def _recipe(p: float, q: float, *changes: str) -> mm.Recipe:
    return varied("binary-p05-q08-tied", f"source.p={p}", f"source.q={q}", *changes)


def phase(quick: bool) -> Measured:
    """Stuck fractions over (p, q), tied and untied."""
    seeds = 2 if quick else 8
    cells = (BELOW[0], ABOVE[1]) if quick else BELOW + ABOVE
    where = [(p, q, tied) for tied in (True, False) for p, q in cells]
    ends = fates([_recipe(p, q, f"model.tied={str(tied).lower()}") for p, q, tied in where], seeds)
    found = dict(zip(where, ends, strict=True))
    claims = []
    for key, chosen, stuck in (
        (
            "tied_above",
            _part(found, True, above=True),
            True,
        ),
        ("tied_below", _part(found, True, above=False), False),
        ("untied_learn", _part(found, False), False),
    ):
        hits, total = sum(end.stuck for end in chosen.values()), sum(end.n for end in chosen.values())
        each = ", ".join(f"({p:g}, {q:g}) {end.stuck}/{end.n}" for (p, q, _), end in chosen.items())
        how = (
            f"{seeds} seeds each; stuck: less than half of what lies between unigram and bigram is learned; "
            f"{REDUCED}"
        )
        if stuck:
            how += ". The rest has left within the 400 steps; how long the others stay says `--only leaving`"
        claims.append(
            Finding(
                key,
                f"stuck {share(hits, total)}: {each}",
                holds(hits > total / 2 if stuck else hits == 0),
                how,
                "trained at another",
                (total - hits, total) if not stuck else (hits, total),
            )
        )
    return Measured(claims, {"phase": _phase_figure(found)})


def _part(
    found: dict[tuple[float, float, bool], Fate], tied: bool, above: bool | None = None
) -> dict[tuple[float, float, bool], Fate]:
    return {
        (p, q, t): end
        for (p, q, t), end in found.items()
        if t == tied and (above is None or (p + q > 1) == above)
    }


def _phase_figure(found: dict[tuple[float, float, bool], Fate]) -> go.Figure:
    groups = {
        name: {f"({p:g}, {q:g})": end for (p, q, _), end in _part(found, tied).items()}
        for name, tied in (("tied", True), ("untied", False))
    }
    figure = share_bars("Runs that end at the unigram, by (p, q) and weight tying", "(p, q)", groups)
    return figure.add_vline(x=len(found) / 4 - 0.5, line=REFERENCE, annotation_text="p + q = 1")


MOVED = 0.1  # of the bigram's slope: a run has left when its log-odds depend on the state by so much


def leaving(quick: bool) -> Measured:
    """How long tied runs above p + q = 1 stay, under which optimiser, and where the wall has its gap."""
    seeds = 2 if quick else 6
    cells = ((0.8, 0.8),) if quick else ((0.8, 0.8), (0.5, 0.8))
    steps = 800 if quick else 1600
    short = ["model.n_ctx=32"] if quick else []
    kept = ["checkpoints={every=20}", *short]
    adam = [_recipe(p, q, f"steps={steps}", *kept) for p, q in cells]
    calm = [_recipe(*cells[0], "optimiser.eps=1e-3", f"steps={steps}", *short)]
    plain = [
        varied("binary-p08-q08-tied-gd", f"source.p={p}", f"source.q={q}", f"steps={steps}", *short)
        for p, q in cells
    ]
    walking, staying, still = (fates(recipes, seeds) for recipes in (adam, plain, calm))
    early, late = 200 if quick else 400, steps
    at_first = [fate(end.runs, early) for end in walking]
    rows = [
        (f"AdamW, step {early} of {late}", at_first),
        (f"AdamW, step {late}", walking),
        ("plain gradient descent, lr 1", staying),
        ("AdamW with eps = 1e-3, which leaves small gradients small", still),
    ]
    hits = [(sum(end.stuck for end in ends), sum(end.n for end in ends)) for _, ends in rows]
    told = "; ".join(f"{label}: stuck {share(h, n)}" for (label, _), (h, n) in zip(rows, hits, strict=True))
    gone, trapped = hits[1][0] < hits[1][1] / 2, all(h == n for h, n in hits[2:])
    walks = [_Walk(run) for end in walking for run in end.runs]
    places = ", ".join(f"({p:g}, {q:g})" for p, q in cells)
    where = f"{seeds} seeds at each of {places}; T = {32 if quick else 64}"
    claims = [
        Finding(
            "adamw_leaves",
            told,
            holds(trapped and not gone, corrected=trapped),
            f"{where}. A local minimum holds gradient descent, and AdamW too where its eps keeps it from "
            "scaling up gradients that are next to nothing. At eps = 1e-8 it scales sampling noise up to "
            "steps of the learning rate, and the MLP's weights walk at random along the flat directions of "
            "the minimum",
            "trained at another",
            (hits[1][1] - hits[1][0], hits[1][1]),
        ),
        _crossing(walks, where),
    ]
    return Measured(claims, {"leaving": _walk_figure(walks)})


def _crossing(walks: list["_Walk"], where: str) -> Finding:
    """Whether runs leave when w has gone below -1/sqrt 2."""
    left = [walk for walk in walks if walk.leaves is not None]
    others = [walk for walk in left if walk.head > 0.5]
    by_mlp = [walk for walk in left if walk.head <= 0.5]
    after = [walk for walk in by_mlp if walk.lag is not None and walk.lag >= 0]
    lag = float(np.median([walk.lag for walk in after])) if after else float("nan")
    most = max((abs(walk.slope_at_crossing) for walk in after), default=float("nan"))
    return Finding(
        "crossing",
        f"{share(len(after), max(1, len(by_mlp)))} of the runs that left crossed w = -1/sqrt 2 first, "
        f"{lag:.0f} steps before (median), when their log-odds had at most {most:.3f} of the bigram's "
        f"slope; {len(others)} more left through the head, which (e, w) do not describe",
        holds(by_mlp and len(after) == len(by_mlp) and most < MOVED),
        f"{where}; w from `2 w |w|`, what the MLP gives back of the embedding; the curvature along "
        "embeddings is 4 pi0 pi1 (p + q - 1)(1 + 2 w |w|), which changes sign there. A run has left when "
        f"its slope is {MOVED:g} of the bigram's; through the head if that holds more than half of what it "
        "has learned at the end (Shapley). Weights are kept every 20 steps",
        "trained at another",
        (len(after), max(1, len(by_mlp))),
    )


class _Walk:
    """One run in canonical coordinates.

    Attributes:
        steps: Kept steps.
        w: What the MLP gives back of the embedding, at each.
        slope: Of the log-odds, as a share of the bigram's, at each.
        leaves: The first kept step at which the slope is a tenth of the bigram's, or None.
        lag: How many steps before w went below -1/sqrt 2 and stayed there until then; None if it did not.
        slope_at_crossing: The share at that step.
        head: The head's share of what is learned at the end; 0 where that is next to nothing.
    """

    def __init__(self, run: mm.Run) -> None:
        subject = mm.Subject.of(run, "all", sequences=16)
        fit = canonical_fit(subject)
        if isinstance(fit, str):
            raise ValueError(fit)
        odds = np.diff(np.log(run.source.P), axis=1)[:, 0]
        self.steps, self.w = run.steps.numpy(), fit["canonical_w"].values
        log_odds, after = np.diff(np.log(subject.probabilities))[..., 0], subject.batch.parents.numpy() == 1
        slope = log_odds[:, after].mean(-1) - log_odds[:, ~after].mean(-1)
        self.slope: Float[np.ndarray, " step"] = slope / float(odds[1] - odds[0])
        share = shares(mm.Subject.of(run, sequences=64))["share"].sel(path="L0H0")
        self.head = float(np.nan_to_num(share[-1]))
        moved = np.flatnonzero(self.slope > MOVED)
        self.leaves = int(self.steps[moved[0]]) if len(moved) else None
        self.lag, self.slope_at_crossing = None, float("nan")
        if self.leaves is not None:
            inside = np.flatnonzero(~(self.w[: moved[0] + 1] < CANCELS))  # NaN, no embedding, is inside
            first = int(inside[-1]) + 1 if len(inside) else 0
            if first <= moved[0]:
                self.lag = self.leaves - int(self.steps[first])
                self.slope_at_crossing = float(self.slope[first])


def _walk_figure(walks: list[_Walk]) -> go.Figure:
    figure = make_subplots(
        rows=1, cols=2, subplot_titles=("what the MLP gives back of the embedding", "what is learned")
    )
    for number, walk in enumerate(walks[:4]):  # more lines than four tell nothing more
        line = style(number)
        words = {"name": f"run {number}", "legendgroup": str(number), "line": line, "mode": "lines"}
        figure.add_scatter(x=walk.steps, y=walk.w.round(4), row=1, col=1, **words)
        figure.add_scatter(x=walk.steps, y=walk.slope.round(4), row=1, col=2, showlegend=False, **words)
    figure.add_hline(
        y=float(CANCELS),
        line=REFERENCE,
        annotation_text="-1/√2: the wall ends",
        row=1,
        col=1,
    )
    figure.add_hline(y=1, line=REFERENCE, annotation_text="bigram", row=1, col=2)
    figure.update_xaxes(title_text="training step")
    figure.update_yaxes(title_text="w", row=1, col=1)
    figure.update_yaxes(title_text="slope, share of the bigram's", row=1, col=2)
    return figure.update_layout(
        template="plotly_white",
        title="AdamW at the unigram, tied: w walks until the minimum is none (p = q = 0.8)",
    )
