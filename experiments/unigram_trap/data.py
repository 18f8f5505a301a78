"""What of the data matters: order two, and windows."""

from experiments.claims import Finding, holds
from experiments.harness import Measured
from experiments.unigram_trap.fates import TIED, Fate, fates, share_bars, varied

ORDER_TWO = {"above": (0.5, 0.8), "below": (0.2, 0.3)}  # p + q against 1
WINDOWS = (1, 2, 4, 8)


def order_two(quick: bool) -> Measured:
    """The second-order switch chain on both sides of p + q = 1: depth, tying, and the attention window."""
    seeds, steps = (2, 400) if quick else (4, 600)
    base = varied(TIED, f"steps={steps}", "model.n_ctx=32")
    shapes: dict[str, list[str]] = {
        "depth 1": [],
        "depth 1, untied": ["model.tied=false"],
        "depth 2": ["model.n_layers=2"],
    }
    shapes |= {f"window {window}": [f"model.window={window}"] for window in WINDOWS}
    chains = ORDER_TWO
    if quick:
        shapes = {name: shapes[name] for name in ("depth 1", "window 1")}
        chains = {"above": ORDER_TWO["above"]}
    cells = [(chain, shape) for chain in chains for shape in shapes]
    recipes = [
        base.with_set(shapes[shape]).replace(
            **{"source": {"kind": "switch", "p": chains[chain][0], "q": chains[chain][1], "lag": 2}}
        )
        for chain, shape in cells
    ]
    ends = dict(zip(cells, fates(recipes, seeds), strict=True))
    findings = []
    for chain, (p, q) in chains.items():
        own = {shape: end for (name, shape), end in ends.items() if name == chain}
        how = (
            f"switch chain ({p:g}, {q:g}), lag 2, no norm; {seeds} seeds, {steps} steps, T = 32; a window of "
            "w is the token and the w before it"
        )
        findings += _order_two_findings(own, f"p + q {'>' if p + q > 1 else '<'} 1", how)
    groups = {
        f"({p:g}, {q:g})": {shape: ends[chain, shape] for shape in shapes} for chain, (p, q) in chains.items()
    }
    title = "Second-order chains: depth and the attention window"
    return Measured(findings, {"order-two": share_bars(title, "model", groups)})


def _order_two_findings(ends: dict[str, Fate], case: str, how: str) -> list[Finding]:
    whole = {name: end for name, end in ends.items() if "window" not in name}
    short = {name: end for name, end in ends.items() if "window" in name}
    stuck, runs = sum(end.stuck for end in whole.values()), sum(end.n for end in whole.values())
    narrowest = short["window 1"]
    return [
        Finding(
            "order_two_depth",
            "; ".join(f"{name}: {end}" for name, end in whole.items()),
            holds(stuck == runs),
            how,
            "trained at another",
            (stuck, runs),
            case,
        ),
        Finding(
            "order_two_window",
            "; ".join(f"{name}: {end}" for name, end in short.items()),
            holds(narrowest.stuck == 0),
            f"judged at window 1; {how}",
            "trained at another",
            (narrowest.n - narrowest.stuck, narrowest.n),
            case,
        ),
    ]
