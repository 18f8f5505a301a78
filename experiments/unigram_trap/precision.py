"""Float16 without a gradient scaler, and the layer norm: what the public code trains with."""

from scipy.stats import fisher_exact

import mechmarkov as mm
from experiments.claims import Finding, holds
from experiments.harness import Measured, trained
from experiments.unigram_trap.fates import TIED, Fate, fate, fates, share_bars, varied

PRECISIONS = {
    "float32": [],
    "float16": ["precision='float16'"],
    "float16 with scaler": ["precision='float16'", "grad_scaler=true"],
}
NORM = ["model.normalization_type='LN'", "model.act_fn='gelu'"]
FAST = (
    1e4  # learning rate of one step that moves a weight by more than its rounding wherever it has a gradient
)
BATCHES = (16, 512)  # times 32 tokens: 512 predictions a step, and the paper's 16384
WEIGHTS = 8 * 32  # of the MLP's first matrix
START, PLATEAU = "at the start", "on the plateau"


def vanished(recipe: mm.Recipe, start: mm.Run | None) -> float:
    """The share of the MLP's first weights that one step of plain gradient descent leaves as they are."""
    once = recipe.with_set(["checkpoints=[]", "steps=1", f"optimiser={{kind='gd', lr={FAST}}}"])
    run = mm.train(once, seed=0, start=start, progress=False)
    weight = run.states["blocks.0.mlp.W_in"]
    return float((weight[-1] == weight[0]).float().mean())


def moved(recipe: mm.Recipe, start: mm.Run) -> float:
    """How far AdamW moves the MLP's first weights in 10 steps, root mean square, in learning rates."""
    lr = recipe.optimiser.lr
    on = [
        "checkpoints=[]",
        "steps=10",
        f"optimiser={{kind='adamw', lr={lr}, schedule='constant', weight_decay=0.0}}",
    ]
    weight = mm.train(recipe.with_set(on), seed=0, start=start, progress=False).states["blocks.0.mlp.W_in"]
    return float((weight[-1] - weight[0]).square().mean().sqrt()) / lr


def going_on(recipe: mm.Recipe, start: mm.Run, seeds: int) -> Fate:
    """Where runs end that go on from one and the same start for 200 steps, each with data of its own."""
    on = ["checkpoints=[]", "steps=200", "optimiser={kind='adamw', lr=2e-3, schedule='constant'}"]
    return fate(mm.train(recipe.with_set(on), seeds=range(seeds), start=start, progress=False))


def _at(base: mm.Recipe, name: str, batch: int) -> mm.Recipe:
    return base.with_set([*PRECISIONS[name], f"data.batch={batch}"])


def precision(quick: bool) -> Measured:
    """Float16 without a gradient scaler, and the layer norm: what the public code trains with."""
    seeds, steps = (2, 800) if quick else (16, 800)
    base = varied(TIED, "source.p=0.8", "model.n_ctx=32", f"steps={steps}")
    names = ["float32", "float16"] if quick else [*PRECISIONS]
    ends = dict(zip(names, fates([_at(base, name, 16) for name in names], seeds), strict=True))
    ((plateau,),) = trained([base.with_set(["steps=100"])], [0])
    on = (
        {} if quick else {name: going_on(_at(base, name, 512), plateau, 2) for name in ("float32", "float16")}
    )
    how = (
        f"p = q = 0.8, tied, no norm, T = 32, {seeds} seeds of {steps} steps, on a CPU (the public code "
        "runs on a GPU)"
    )
    groups = {
        f"512 predictions a step, {steps} steps": ends,
        "16384 predictions a step, on from the unigram": on,
    }
    title = "Runs stuck at the unigram, by precision (p = q = 0.8, tied, T = 32)"
    claims = [
        _gradients(base, plateau, how),
        _leave_alike(base, plateau, ends, on, how),
        _with_norm(*((2, 200) if quick else (6, 400))),
    ]
    return Measured(claims, {"precision": share_bars(title, "precision", groups)})


def _gradients(base: mm.Recipe, plateau: mm.Run, how: str) -> Finding:
    """Which gradients are exactly zero."""
    lost = {
        (name, batch, place): vanished(_at(base, name, batch), start)
        for name in PRECISIONS
        for batch in BATCHES
        for place, start in ((START, None), (PLATEAU, plateau))
    }
    shown = [
        f"{name}: "
        + ", ".join(
            f"{place} {lost[name, 16, place]:.2f} and {lost[name, 512, place]:.2f}"
            for place in (START, PLATEAU)
        )
        for name in PRECISIONS
    ]
    return Finding(
        "float16_gradients",
        "; ".join(shown),
        holds(lost["float16", 512, START] < 0.02),
        "share of the MLP's first weights whose gradient is exactly zero, with 512 and with the paper's "
        "16384 predictions a step; on the plateau, after 100 steps of AdamW at the unigram, some ReLUs are "
        "dead in any precision. A mean over 16384 predictions gives each a gradient of 6e-5, and what is "
        f"multiplied by small weights from there on is below the smallest float16, 6e-8. {how}",
        "sampled",
        (round((1 - lost["float16", 512, START]) * WEIGHTS), WEIGHTS),
    )


def _leave_alike(
    base: mm.Recipe, plateau: mm.Run, ends: dict[str, Fate], on: dict[str, Fate], how: str
) -> Finding:
    """Whether precision decides who leaves: ends at 512 predictions a step, moves and ends at 16384."""
    walked = {
        (name, batch): moved(_at(base, name, batch), plateau) for name in PRECISIONS for batch in BATCHES
    }
    whole, half = ends["float32"], ends["float16"]
    table = [[whole.stuck, whole.n - whole.stuck], [half.stuck, half.n - half.stuck]]
    chance = float(fisher_exact(table).pvalue)
    alike = chance > 0.05 and walked["float16", 16] > 0.5 * walked["float32", 16]
    frozen = walked["float16", 512] < 0.1 * walked["float32", 512]
    if on:  # and so it should be seen to stay
        frozen = frozen and on["float32"].stuck < on["float16"].stuck
    return Finding(
        "float16_leaves",
        "; ".join(f"{name}: {end}" for name, end in ends.items())
        + "; in 10 steps on the plateau AdamW moves the MLP's first weights by, in learning rates, "
        + "; ".join(f"{name}: {walked[name, 16]:.2g} and {walked[name, 512]:.2g}" for name in PRECISIONS)
        + "".join(f"; 200 steps on from there, {name}: {end}" for name, end in on.items()),
        holds(alike and not frozen, corrected=alike),
        "stuck fractions at 512 predictions a step (Fisher's exact test of float16 against float32: p = "
        f"{chance:.2f}), moves at 512 and at 16384, then runs on from the plateau at 16384. With 512 "
        "float16 makes no difference; with the paper's 16384 it stops the walk by which AdamW leaves "
        f"(`--only leaving`). {how}",
        "trained at another",
        (half.n - half.stuck, half.n),
    )


def _with_norm(seeds: int, steps: int) -> Finding:
    """Layer norm and GELU."""
    cells = ((0.5, 0.8), (0.8, 0.8))
    recipes = [varied(TIED, f"source.p={p}", f"source.q={q}", f"steps={steps}", *NORM) for p, q in cells]
    ends = dict(zip(cells, fates(recipes, seeds), strict=True))
    return Finding(
        "with_norm",
        "; ".join(f"({p:g}, {q:g}): {end}" for (p, q), end in ends.items()),
        holds(sum(end.stuck for end in ends.values()) > sum(end.n for end in ends.values()) / 2),
        f"float32, T = 64, {steps} steps. Behind a final norm the stream has size one however small the "
        "embedding is, so that logits are linear in a tied embedding, and the unigram is left as in untied "
        "models",
        "trained at another",
        (sum(end.stuck for end in ends.values()), sum(end.n for end in ends.values())),
    )
