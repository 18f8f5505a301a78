"""Results made by hand for the report's tests: an ordinary one and a hostile one."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import xarray as xr

from mechmarkov.claims.claim import Claim, Claims, said_by
from mechmarkov.probing.figure import AttentionView, Figure
from mechmarkov.probing.outcome import Outcome
from mechmarkov.probing.probe import Probe, load_probe
from mechmarkov.probing.score import Score
from mechmarkov.report.figures import bars, heatmap, lines
from mechmarkov.result import Result


def outcome(
    name: str,
    *,
    question: str = "Does it?",
    verdict: str = "It does.",
    scores: dict[str, Score] | None = None,
    figures: Callable[[], list[Figure]] = list,
    cites: str = "A paper (2025), equation 1",
    formula: str = "score = Σ aᵢ / n\na: what is measured < b",
    claims: Sequence[Claim] = (),
) -> Outcome:
    probe = Probe(
        name=name,
        question=question,
        cites=cites,
        applies=lambda subject: None,
        measure=lambda subject: xr.Dataset(),
        scores=lambda data, null: scores or {},
        claims=lambda data, scores: list(claims),
        figures=lambda data: figures(),
        formula=formula,
    )
    return Outcome(
        probe=probe,
        data=xr.Dataset(),
        null=None,
        scores=scores or {},
        claims=Claims(said_by(name, claims)),
        verdict=verdict,
    )


def circle(n_states: int, p: float) -> np.ndarray:
    P = np.zeros((n_states, n_states))
    for state in range(n_states):
        P[state, (state + 1) % n_states] += p
        P[state, (state - 1) % n_states] += 1 - p
    return P


def attention_patterns(n_heads: int, n_tokens: int) -> np.ndarray:
    """Head 0 on the token before, the others ever flatter; causal."""
    lags = np.subtract.outer(np.arange(n_tokens), np.arange(n_tokens)).astype(float)
    sharpness = np.linspace(3.0, 0.0, n_heads)[:, None, None]
    weights = np.where(lags < 0, 0.0, np.exp(-sharpness * np.abs(lags - 1)))
    return weights / weights.sum(axis=-1, keepdims=True)


def walk_result() -> Result:
    """A report of ordinary size: what the three first probes say of a circle walk."""
    P = circle(6, 0.5)
    value = np.sqrt(P) + np.random.default_rng(0).normal(0, 0.02, P.shape)
    fresh = "fresh models"
    tokens = [str(state % 6) for state in range(24)]
    steps = np.array([0.0, 1, 2, 3, 5, 10, 20, 50])
    rise = 1 - np.exp(-steps / 2)

    def behaviour() -> list[Figure]:
        curves = {"uniform": 0.69 * rise, "unigram": 0.6931 * rise, "bigram": 0.6931 * (1 - rise) + 0.002}
        kl = lines(
            steps,
            curves,
            title="KL by step",
            x_title="training step",
            y_title="KL from predictor to model (nats)",
        )
        loss = bars(
            ["uniform", "unigram", "bigram", "2-step"],
            np.array([1.79, 1.79, 0.694, 1.1]),
            title="Loss of each predictor",
            x_title="predictor",
            y_title="cross-entropy (nats)",
            references={"this model": 0.6951},
        )
        return [
            Figure("Distance to each exact predictor", "The curve that reaches zero tells.", "plotly", kl),
            Figure("Loss of each exact predictor", "The model against the exact predictors.", "plotly", loss),
        ]

    def attention() -> list[Figure]:
        heads = [f"L0H{head}" for head in range(3)]
        view = AttentionView(tokens, attention_patterns(3, 24), heads)
        lags = np.arange(1.0, 13.0)
        mass = {"L0H0": np.exp(-3 * (lags - 1)), "null": np.full(12, 1 / 24)}
        band = {"null": (np.full(12, 0.02), np.full(12, 0.07))}
        by_lag = lines(
            lags, mass, title="Mass by lag", x_title="lag (1 = parent)", y_title="attention mass", bands=band
        )
        return [
            Figure("Attention on one sequence", "Rows are queries. Choose a head.", "attention", view),
            Figure("Attention by lag", "The band is the range of 20 fresh models.", "plotly", by_lag),
        ]

    def alignment() -> list[Figure]:
        return [
            Figure(
                "Value circuit of L0H0",
                "Centred logits for the next state (column) given the attended state (row).",
                "plotly",
                heatmap(
                    value - value.mean(axis=1, keepdims=True),
                    title="Value circuit",
                    row_title="attended state",
                    column_title="next state",
                    value_title="logit",
                    diverging=True,
                ),
            ),
            Figure(
                "The chain's own kernel",
                "P, from row to column.",
                "plotly",
                heatmap(
                    P,
                    row_title="from",
                    column_title="to",
                    value_title="probability",
                    limits=(0.0, 1.0),
                    title="P",
                ),
            ),
        ]

    return Result(
        metadata={
            "title": "Circle walk on 6 states, p = 0.5",
            "source": "a circle walk on 6 states with p = 0.5",
            "model": "the one-layer walk model, 103 dimensions, one head",
            "objective": "the loss −log(z + 0.1), read at the last position",
            "seed": 0,
            "steps": "8 checkpoints, 0 to 50",
            "provenance": {"mechmarkov": "0.1.0", "torch": "2.13.0", "device": "cpu", "wall_seconds": 3.2154},
        },
        steps=[int(step) for step in steps],
        outcomes={
            "behaviour": outcome(
                "behaviour",
                question="Which exact predictor does it imitate?",
                verdict="It predicts as the bigram does, to 0.0021 nats; the unigram is 0.69 nats away.",
                scores={
                    "nearest_predictor": Score("bigram", ""),
                    "kl_uniform": Score(1.0973, "nats", (0.011, 0.031, 0.062), (1.09, 1.11), fresh),
                    "kl_unigram": Score(1.0973, "nats", (0.012, 0.031, 0.06), (1.09, 1.11), fresh),
                    "kl_bigram": Score(0.00214, "nats", (1.08, 1.11, 1.16), (0.0019, 0.0024), fresh),
                    "accuracy": Score(0.5021, "probability", 1 / 6, (0.4923, 0.5119), "guessing"),
                    "optimal_accuracy": Score(0.5, "probability"),
                },
                figures=behaviour,
            ),
            "attention": outcome(
                "attention",
                question="Where does each head look, and does it find the parent?",
                verdict="L0H0 puts 0.9993 of its attention on the parent; a fresh model puts 0.0103 there.",
                scores={
                    "parent_score": Score(
                        0.99931, "probability", (0.0098, 0.0103, 0.0109), (0.9991, 0.9995), fresh
                    ),
                    "parent_head": Score("L0H0", ""),
                    "best_lag": Score(1.0, ""),
                    "effective_tokens": Score(1.004, "tokens", 97.0, None, "uniform attention"),
                    "spread": Score(0.0000123, "probability", 0.0, None, "uniform attention"),
                },
                figures=attention,
            ),
            "alignment": outcome(
                "alignment",
                question="Does the value circuit hold the chain's kernel?",
                verdict="The value circuit of L0H0 points along √P with cosine 0.998.",
                scores={
                    "path": Score("L0H0 value", ""),
                    "kernel_cosine": Score(0.9981, "cosine", (-0.41, 0.02, 0.38), None, fresh),
                    "kernel_slope": Score(None, "", reason="only defined under softmax"),
                    "recall": Score(True, ""),
                    "target": Score("sqrt P", ""),
                },
                figures=alignment,
            ),
        },
        skipped={"induction": "the source keeps one chain, so there is nothing to infer in context"},
        failed={},
    )


RUN = "owned.push('ran')"
PAYLOADS = (
    f"</script><script>{RUN}</script>",
    f'<img src=x onerror="{RUN}">',
    f'"><svg onload="{RUN}">',
    f'<a href="javascript:{RUN}">b</a><b>bold</b>',
    "{{7*7}}{% raw %}",
    "\u202egnp.exe",
    "nul\x00 tab\t line\n sep\u2028 half\ud800",
    "&lt;i&gt; %{x} $x^2$",
    "x" * 10_000,
)
# A probe's words are refused where JSON and NetCDF cannot hold them; labels and a run's texts are not.
WRITABLE = tuple(re.sub("[\x00\ud800]", "?", payload) for payload in PAYLOADS)


def hostile_result() -> Result:
    """Every place that a file can fill with text of its own holds every payload."""
    everything = " ".join(PAYLOADS)
    said = " ".join(WRITABLE)
    labels = list(PAYLOADS)
    n = len(labels)
    patterns = attention_patterns(n, n)

    def figures() -> list[Figure]:
        matrix = np.linspace(-1.0, 1.0, n * n).reshape(n, n)
        x = np.arange(float(n))
        everywhere = {"title": PAYLOADS[1], "x_title": PAYLOADS[1], "y_title": PAYLOADS[2]}
        names = {"title": PAYLOADS[1], "row_title": PAYLOADS[0], "column_title": PAYLOADS[2]}
        raw = heatmap(matrix, diverging=True)  # as a probe that does not use our helpers would
        raw.update_layout(xaxis_ticktext=labels, xaxis_title_text=PAYLOADS[1], title=PAYLOADS[1])
        raw.add_annotation(text=PAYLOADS[3], x=1, y=1)
        return [
            Figure(PAYLOADS[1], said, "attention", AttentionView(labels, patterns, labels)),
            Figure(
                PAYLOADS[0], said, "plotly", heatmap(matrix, labels, labels, value_title=PAYLOADS[1], **names)
            ),
            Figure(
                PAYLOADS[2],
                said,
                "plotly",
                lines(x, {label: x * i for i, label in enumerate(labels)}, **everywhere),
            ),
            Figure(PAYLOADS[3], said, "plotly", bars(labels, x, references={PAYLOADS[1]: 1.0}, **everywhere)),
            Figure(PAYLOADS[4], said, "plotly", raw),
        ]

    scores = {text: Score(text, text, null_kind=text, null=0.5) for text in WRITABLE} | {
        "none": Score(None, "", reason=said),
        "number": Score(0.5, PAYLOADS[1], null=0.1, null_kind=PAYLOADS[1]),
    }

    def broken() -> list[Figure]:
        raise RuntimeError(everything)

    outcomes = {
        PAYLOADS[1]: outcome(
            PAYLOADS[1],
            question=said,
            verdict=said,
            scores=scores,
            figures=figures,
            cites=said,
            formula="\n".join([said] * 20),
        ),
        PAYLOADS[0]: outcome(PAYLOADS[0], verdict=PAYLOADS[0], figures=broken),
    }
    run = dict.fromkeys(("title", "source", "model", "objective", "seed", *PAYLOADS), everything)
    return Result(
        metadata={
            **run,
            "title": PAYLOADS[0] + everything,
            "provenance": dict.fromkeys(PAYLOADS, everything),
        },
        steps=[50],
        outcomes=outcomes,
        skipped=dict.fromkeys(PAYLOADS, everything),
        failed=dict.fromkeys(PAYLOADS, everything),
    )


def moving_result() -> Result:
    """Three steps with figures that differ at each: a heat map and attention; and one over all steps."""
    steps = np.array([0, 10, 50])
    matrix = np.stack([np.eye(2), 2 * np.eye(2), 4 * np.eye(2)])
    patterns = np.stack([attention_patterns(1, 4), np.tril(np.ones((1, 4, 4))) / 4, np.eye(4)[None]])
    data = xr.Dataset(
        {"matrix": (("step", "row", "column"), matrix), "pattern": (("step", "head", "q", "k"), patterns)},
        coords={"step": steps},
    )

    def figures(data: xr.Dataset) -> list[Figure]:
        now = data.isel(step=-1)
        other = AttentionView(list("efgh"), now["pattern"].values[:, ::-1, ::-1].copy(), ["L0H0"])
        view = AttentionView(list("abcd"), now["pattern"].values, ["L0H0"], others=(other,))
        found = [
            Figure("Matrix", "At a step.", "plotly", heatmap(now["matrix"].values)),
            Figure("Pattern", "At a step.", "attention", view),
        ]
        if data.sizes["step"] > 1:
            rise = {"=trace, one": data["matrix"].values[:, 0, 0]}
            found.append(
                Figure("Rise", "Over all.", "plotly", lines(data["step"].values.astype(float), rise))
            )
        return found

    made = outcome("moving")
    probe = replace(made.probe, figures=figures)
    moving = replace(made, probe=probe, data=data, verdict="It moves.")
    return Result(metadata={"title": "t"}, steps=steps.tolist(), outcomes={"moving": moving})


def renamed_result() -> Result:
    """Two steps: a figure that names the head of its step, one of the first step alone, one of the last."""
    data = xr.Dataset({"level": ("step", np.array([1.0, 4.0]))}, coords={"step": [0, 10]})

    def figures(data: xr.Dataset) -> list[Figure]:
        level = float(data["level"][-1])
        matrix = heatmap(level * np.eye(2))
        first = level == 1
        title, caption = ("Head L0H0", "Level 1.") if first else ("Head L0H1", "Level 4.")
        only = "First only" if first else "Last only"
        return [
            Figure(title, caption, "plotly", matrix, key="head"),
            Figure(only, "At one step.", "plotly", matrix),
        ]

    made = outcome("renamed")
    found = replace(made, probe=replace(made.probe, figures=figures), data=data, verdict="It is renamed.")
    return Result(metadata={"title": "t"}, steps=[0, 10], outcomes={"renamed": found})


def with_paths(effects: dict[tuple[str, str], tuple[float, float]], **others: list[Claim]) -> Result:
    """A result whose `ablation` has these path effects, {(sender, receiver): (mean, zero)} in nats, and whose
    other probes say these claims.
    """
    senders, receivers = zip(*effects, strict=True)
    data = xr.Dataset(
        {
            "path_effect": (
                ("step", "path", "path_kind", "measure"),
                np.array([[[[value, 9.0] for value in pair] for pair in effects.values()]]),
            )
        },
        coords={
            "step": [0],
            "path_kind": ["mean", "zero"],
            "measure": ["loss", "kl_bigram"],
            "sender": ("path", list(senders)),
            "receiver": ("path", list(receivers)),
        },
    )
    outcomes = {name: outcome(name, claims=claims) for name, claims in others.items()}
    for name, made in outcomes.items():
        outcomes[name] = replace(made, probe=replace(made.probe, headline=load_probe(name).headline))
    outcomes["ablation"] = replace(outcome("ablation"), data=data)
    return Result(metadata={"title": "t"}, steps=[0], outcomes=outcomes)


def holds(home: str, **shares: float) -> list[Claim]:
    """What `storage` says where one part is the home: its claim, and the shares of parts."""
    of_parts = [Claim((name,), "holds_share", ("bigram",), share) for name, share in shares.items()]
    return [Claim((home,), "stores", ("bigram",), shares.get(home)), *of_parts]
