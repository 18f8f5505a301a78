"""A lag for every sequence: do models find it as well as Bayes does, and does attention show which it is?"""

import numpy as np
import plotly.graph_objects as go
import torch
from jaxtyping import Bool, Float, Int
from plotly.subplots import make_subplots
from torch import Tensor

import mechmarkov as mm
from experiments.claims import Finding, holds, share, unfinished
from experiments.figures import fill, style, titled
from experiments.harness import Measured, evaluation, exact, over_seeds, predictions, trained
from experiments.order_and_lag.shared import RECIPES, distance
from mechmarkov.models.init import initialise
from mechmarkov.theory.kernel import kl

# (layers, heads in each): depth with a head for every lag, and one head a layer.
SHAPES = ((1, 3), (2, 3), (3, 3), (3, 1))
SEQUENCES = 500
FOUND = 0.2  # of what the rows at all lags lose, mixed by the prior
FRESH = 20  # models of the shape, for the null
Runs = dict[tuple[int, int], list[mm.Run]]  # by layers and heads in each


def by_shape(quick: bool, more: range | None = None) -> Runs:
    """Runs by layers and heads; with `more` seeds of the deepest shape only."""
    recipe = mm.load_recipe(RECIPES / "lag.toml")
    shapes, seeds = SHAPES, tuple(range(6))
    if quick:
        recipe = recipe.with_set(["steps=350", "source.lags=[1, 2]", "model.n_ctx=16"])
        shapes, seeds = ((1, 2), (2, 2)), (0,)
    if more is not None:
        shapes, seeds = (max(shapes),), (0,) if quick else tuple(more)
    recipes = [
        recipe.replace(**{"model.n_layers": layers, "model.n_heads": heads, "model.d_head": 24 // heads})
        for layers, heads in shapes
    ]
    return dict(zip(shapes, trained(recipes, seeds), strict=True))


def lags(quick: bool) -> Measured:
    """The predictions against the posterior over lags; attention against it; what an edit of it does."""
    runs = by_shape(quick)
    deepest = max(runs)  # with a head for every lag
    one = runs[deepest][0]
    tokens = evaluation(one.source, SEQUENCES, one.config.n_ctx)
    laws = exact(one.source, tokens)
    best, unknown = laws["posterior_lag"], mixed(one.source, laws)
    settings = (
        f"a chain on 3 states, lags {', '.join(map(str, one.source.lags))}, attention only, width 24, "
        f"{one.config.n_ctx} tokens, {SEQUENCES} fresh sequences; on a CPU, smaller than the paper's"
    )
    claims = [*_prediction_claims(runs, tokens, best, distance(best, unknown), settings)]
    figures = {
        "lag_posterior": over_positions(runs, tokens, best, unknown),
        "lag_attention": attention_by_lag(one, tokens),
    }
    return Measured(claims, figures)


def _prediction_claims(
    runs: Runs,
    tokens: Int[Tensor, "batch position"],
    best: Float[np.ndarray, "batch position state"],
    gain: float,
    settings: str,
) -> list[Finding]:
    """Whether predictions are those of the posterior; `gain` (nats): what there is to know of the lag."""
    far = {
        shape: [distance(best, predictions(run, tokens)[-1]) for run in group]
        for shape, group in runs.items()
    }
    right = {shape: max(group) < FOUND * gain for shape, group in far.items()}
    shallow, two = ([one for shape, group in far.items() if shape[0] == n for one in group] for n in (1, 2))
    text = "; ".join(f"{_name(shape)}: {over_seeds(group)}" for shape, group in far.items())
    short = sum(one >= FOUND * gain for one in two)
    findings = [
        Finding(
            "picks_lag",
            f"{text} (the lags mixed by the prior: {gain:.3f})",
            holds(right[max(runs)]),
            "KL in nats from the exact mean over lags by their posterior to the model, mean over positions, "
            "median over seeds [smallest, largest]; holds where the deepest, with a head for every lag, are "
            f"below {FOUND} of what the rows at all lags score, mixed by the prior; {settings}",
            "trained at another",
            (sum(one < FOUND * gain for one in far[max(runs)]), len(far[max(runs)])),
        ),
        Finding(
            "one_layer_lag",
            text,
            holds(any(right[shape] for shape in runs if shape[0] == 1)),
            "as above, for one layer",
            "trained at another",
            (sum(one < FOUND * gain for one in shallow), len(shallow)),
        ),
    ]
    if max(runs)[0] > 2:
        findings.append(
            Finding(
                "two_layers_lag",
                f"{text} (the lags mixed by the prior: {gain:.3f})",
                holds(short == len(two)),
                f"two layers do not come below {FOUND} of what the rows at all lags score; {settings}",
                "trained at another",
                (short, len(two)),
            )
        )
    return findings


def lag_attention(quick: bool) -> Measured:
    """Fresh seeds of the deepest shape: whether a head of the last layer attends to the sequence's lag."""
    ((shape, runs),) = by_shape(quick, range(6, 12)).items()
    tokens = evaluation(runs[0].source, SEQUENCES, runs[0].config.n_ctx)
    shown = [selects(run, tokens) for run in runs]
    followed = [selected(run, tokens) for run in runs]
    hits, n = sum(any(each.all(-1)) for each in shown), len(runs)
    most = [int(each.sum(-1).max()) for each in shown]
    leans = sum(value > null for value, null in followed)
    lags = runs[0].source.lags
    finding = Finding(
        "attention_by_posterior",
        f"{share(hits, n)} seeds; lags that the best head selects: {over_seeds(most)} of {len(lags)}; "
        "largest correlation of attention with the posterior "
        f"{over_seeds([value for value, _ in followed])}, above 97.5 % of {FRESH} fresh models in "
        f"{share(leans, n)}",
        holds(hits == n),
        "selects: one head of the last layer gives the most of its attention on the lags to the sequence's "
        f"own, in sequences of each lag, over queries that have every lag; {_name(shape)}; a chain on "
        f"{runs[0].source.n_states} states, lags {', '.join(map(str, lags))}, attention only, width 24, "
        f"{runs[0].config.n_ctx} tokens, {SEQUENCES} fresh sequences; seeds 6 to 11",
        "trained at another",
        (hits, n),
    )
    return Measured(unfinished([finding]) if quick else [finding])


def selects(run: mm.Run, tokens: Int[Tensor, "batch position"]) -> Bool[np.ndarray, "head lag"]:
    """Returns which heads of the last layer attend most to a lag, in sequences that have it."""
    mass = at_lags(run, run.model(), tokens)
    truth = run.source.posterior(tokens.numpy())[:, -1].argmax(-1)
    lags = range(len(run.source.lags))
    return np.array([mass[truth == i].mean((0, 2)).argmax(-1) == i for i in lags]).T


def _name(shape: tuple[int, int]) -> str:
    layers, heads = shape
    return f"{layers} layer{'s' * (layers > 1)} of {heads} head{'s' * (heads > 1)}"


def mixed(
    source: mm.sources.SelectiveLag, laws: dict[str, Float[np.ndarray, "batch position state"]]
) -> Float[np.ndarray, "batch position state"]:
    """The rows at all lags, mixed by the prior: what knows the chain, and nothing of the sequence's lag."""
    return sum(weight * laws[f"lag_{lag}"] for weight, lag in zip(source.prior, source.lags, strict=True))


def at_lags(
    run: mm.Run, decoder: mm.HookedDecoder, tokens: Int[Tensor, "batch position"]
) -> Float[np.ndarray, "*model batch head query lag"]:
    """The last layer's attention at each of the source's lags, for queries that have every lag."""
    lags: tuple[int, ...] = run.source.lags
    name = f"blocks.{run.config.n_layers - 1}.attn.hook_pattern"
    many = tokens if decoder.n_models is None else tokens.expand(decoder.n_models, -1, -1)
    with torch.no_grad():
        _, cache = decoder.run_with_cache(many, names_filter=[name])
    query = torch.arange(max(lags) - 1, tokens.shape[1])
    return torch.stack([cache[name][..., query, query + 1 - lag] for lag in lags], dim=-1).double().numpy()


def selected(run: mm.Run, tokens: Int[Tensor, "batch position"]) -> tuple[float, float]:
    """The last layer's best correlation of attention with the posterior, and the upper end of its null."""
    weight = run.source.posterior(tokens.numpy())[:, max(run.source.lags) - 1 :]
    fresh = mm.HookedDecoder(run.config, n_models=FRESH)
    init = mm.load_recipe(run.recipe).init
    initialise(fresh, list(range(1000, 1000 + FRESH)), scheme=init.scheme, std=init.std)
    null = [correlation(one, weight) for one in at_lags(run, fresh, tokens)]
    return correlation(at_lags(run, run.model(), tokens), weight), float(np.quantile(null, 0.975))


def correlation(
    mass: Float[np.ndarray, "batch head query lag"], weight: Float[np.ndarray, "batch query lag"]
) -> float:
    """The largest correlation over heads, after what each lag has on average is taken off."""
    centred = weight - weight.mean((0, 1))
    best = -1.0
    for head in np.moveaxis(mass, 1, 0):
        own = head - head.mean((0, 1))
        best = max(best, float((own * centred).sum() / np.sqrt((own**2).sum() * (centred**2).sum())))
    return best


def over_positions(
    runs: Runs,
    tokens: Int[Tensor, "batch position"],
    best: Float[np.ndarray, "batch position state"],
    unknown: Float[np.ndarray, "batch position state"],
) -> go.Figure:
    """KL from the Bayesian mean to each model, by position."""
    figure = go.Figure()
    position = list(range(1, tokens.shape[1] + 1))

    def line(law: Float[np.ndarray, "batch position state"], **style: object) -> None:
        figure.add_scatter(x=position, y=kl(best, law).mean(0).clip(1e-5).round(5).tolist(), **style)

    line(unknown, name="lags mixed by the prior", mode="lines", line={"color": "black", "dash": "dot"})
    for i, ((layers, heads), group) in enumerate(runs.items()):
        for run in group:
            line(
                predictions(run, tokens)[-1],
                name=_name((layers, heads)),
                legendgroup=str(i),
                showlegend=run is group[0],
                mode="lines+markers",
                line=style(i),
                marker={"symbol": "circle" if heads > 1 else "diamond"},
            )
    figure.update_yaxes(type="log", range=[-2.5, 0])
    title = "From the Bayesian mean over lags, by position"
    return titled(figure, title, "tokens known", "KL to the model (nats)")


def attention_by_lag(run: mm.Run, tokens: Int[Tensor, "batch position"]) -> go.Figure:
    """Attention of the last layer's heads at each lag, over sequences of each lag."""
    lags = run.source.lags
    mass = at_lags(run, run.model(), tokens)
    truth = run.source.posterior(tokens.numpy())[:, -1].argmax(-1)
    figure = make_subplots(
        cols=mass.shape[1],
        shared_yaxes=True,
        subplot_titles=[f"L{run.config.n_layers - 1}H{head}" for head in range(mass.shape[1])],
    )
    for head in range(mass.shape[1]):
        for i, lag in enumerate(lags):
            figure.add_bar(
                x=[str(one) for one in lags],
                y=mass[truth == i, head].mean((0, 1)).round(4).tolist(),
                name=f"sequences of lag {lag}",
                marker=fill(i),
                showlegend=head == 0,
                row=1,
                col=head + 1,
            )
    figure.update_yaxes(title="mean attention", col=1)
    title = f"Where the last layer looks: {run.config.n_layers} layers of {run.config.n_heads}"
    return titled(figure, title, "lag of the key")
