"""How degenerate is the loss at the model? Its learning coefficient, next to what is known exactly."""

from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from scipy.special import stdtrit
from torch import Tensor

from mechmarkov.claims.claim import MODEL, RISE, Claim, Condition, Status
from mechmarkov.curvature.devinterp import devinterp_coefficient
from mechmarkov.curvature.learning_coefficient import Chains, Losses, learning_coefficient
from mechmarkov.curvature.loss_surface import SOLVED_NATS, LossSurface, loss_surface
from mechmarkov.curvature.trainable_vector import Coordinates
from mechmarkov.interventions.belief import streams
from mechmarkov.models.constructions.lookup_tables import direct_table
from mechmarkov.probing import Probe, Subject
from mechmarkov.probing.dataset import last_model, variables
from mechmarkov.probing.figure import Figure
from mechmarkov.probing.score import Score
from mechmarkov.report.figures import bars
from mechmarkov.report.probe_figures import over_training
from mechmarkov.sources import FixedChain, Observed
from mechmarkov.theory.learning_coefficient import of_bigram_table, of_canonical_line, of_tied_plateau

MISS = 0.2  # of the exact value: a calibration that misses by more does not calibrate
MAX_COORDINATES = 512  # more parameters take more steps than are made
HALF = 0.5  # of the way, from which the bigram counts as come
MAX_STEPS = 8  # checkpoints that are measured; the others are NaN
SEQUENCES = 64  # on which a stream is looked at
CHAINS, BURN_IN, DRAWS = 8, 500, 1000
EARLIER = 4  # chains at steps before the last are this many times shorter
ROUNDING = 1e-9  # of a learning coefficient
PLATEAU_NATS = 1e-6  # a model farther from the unigram, KL on average, is not at its plateau
NO_DEGENERACY, EXACT = "no degeneracy: half the parameters", "the exact value"
TABLE = ("unembed.W_U", "unembed.b_U")
TIED = ("embed.W_E", "unembed.b_U")
CANONICAL = (*TIED, "blocks.0.mlp.W_in", "blocks.0.mlp.W_out")


def applies(subject: Subject) -> str | None:
    """Returns one line why not, or None: it needs an exact loss, a cross-entropy, and few parameters."""
    if not isinstance(subject.source, FixedChain):
        if isinstance(subject.source, Observed) and subject.source.order == 1:
            return (
                "the source's law is an estimate: as mm.Chain(source.P) its expected loss has a closed form"
            )
        return "the source is not one first-order chain, so the expected loss has no closed form"
    if subject.source.P.min() <= 0:
        return "some transitions are impossible: the loss has no minimum to be degenerate at"
    if subject.objective.kind != "cross_entropy":
        return (
            f"the objective is {subject.objective.kind}, expected a cross-entropy, which is a log likelihood"
        )
    size = Coordinates.of(subject.run).size
    if size > MAX_COORDINATES:
        return f"{size} parameters are trained, expected at most {MAX_COORDINATES}: chains would not mix"
    return None


def measure(subject: Subject) -> xr.Dataset:
    """Learning coefficients at up to 8 steps, the last among them, and of the calibration.

    The calibration is the source's own bigram table, free logits at the chain, at the same nβ.

    Returns:
        `llc` [axis, chain], one of each chain, `llc_half` [axis, half] and `distance_half` [axis, half], how
        far chains are from the model (squared): NaN at other steps;
        `exact` [axis]: where it is derived, else NaN; `calibration` [chain] and `calibration_exact`;
        `devinterp` and `devinterp_calibration`: that library's estimates at the last step and of the same
        table, or the attribute `no_devinterp`, which says why not;
        `parameters`: how many are trained;
        and of several steps `progress` and `progress_error` [axis, event] of the probe `dynamics`.
    """
    at = np.unique(np.linspace(0, len(subject.coordinates) - 1, MAX_STEPS).astype(int))
    n = len(subject.coordinates)
    by_chain, exact = np.full((n, CHAINS), np.nan), np.full(n, np.nan)
    halves, distances = np.full((2, n, 2), np.nan)
    source: Any = subject.source
    surface = loss_surface(subject)
    predictions = surface.population.targets.numel()
    n_beta = predictions / np.log(predictions)
    with torch.no_grad():
        for i in at:
            shorter = 1 if i == at[-1] else EARLIER
            chains = _sampled(surface.losses, surface.thetas[i], n_beta, shorter)
            by_chain[i], halves[i] = chains.estimates.mean(1), chains.estimates.mean(0)
            distances[i] = chains.distances.mean(0)
            exact[i] = known(subject, surface, int(i)) or np.nan
    theirs = _by_devinterp(subject, surface.coordinates, n_beta)
    axis = subject.axis
    data = xr.Dataset(
        variables("λ", (axis, "chain"), llc=by_chain)
        | variables("λ", (axis, "half"), llc_half=halves)
        | variables("weight²", (axis, "half"), distance_half=distances)
        | variables("λ", axis, exact=exact)
        | variables("λ", "chain", calibration=calibrate(source.P, source.pi, n_beta))
        | variables("λ", (), calibration_exact=of_bigram_table(subject.source.n_states))
        | variables("numbers", (), parameters=surface.coordinates.size),
        coords={axis: subject.coordinates},
    )
    if isinstance(theirs, str):
        data.attrs["no_devinterp"] = theirs
    else:
        data = data.assign(variables("λ", (), **theirs))
    if len(subject.coordinates) == 1:
        return data
    dynamics = subject.result("dynamics")
    return data.assign({name: dynamics[name] for name in ("progress", "progress_error")})


def _by_devinterp(subject: Subject, coordinates: Coordinates, n_beta: float) -> dict[str, float] | str:
    """Devinterp's estimates at the last step and of the table of `calibrate`; or why there are none."""
    if subject.objective.read != "all":
        return "devinterp takes the loss of every position, and here one is read"
    source = cast(FixedChain, subject.source)
    zeros = {name: torch.zeros(shape) for name, shape in coordinates.shapes.items()}
    ones = coordinates.place(torch.ones(coordinates.size), zeros)
    masks = {name: None if bool(mask.all()) else mask for name, mask in ones.items()}
    estimate = devinterp_coefficient(subject.decoder[-1], source, masks, n_beta=n_beta)
    if isinstance(estimate, str):
        return estimate
    table = direct_table(torch.tensor(source.P).log().float(), subject.config.n_ctx)
    known = devinterp_coefficient(table, source, {TABLE[0]: None}, n_beta=n_beta)
    if isinstance(known, str):
        return f"of the source's own bigram table: {known}"
    return {"devinterp": estimate, "devinterp_calibration": known}


def calibrate(
    P: Float[np.ndarray, "state_from state_to"], pi: Float[np.ndarray, " state"], n_beta: float
) -> Float[np.ndarray, " chain"]:
    """The estimate of the learning coefficient of the chain's own table, known to be `K (K - 1) / 2`.

    Args:
        P: The chain's transition matrix.
        pi: Its stationary law.
        n_beta: The inverse temperature times the number of samples, nβ, that the posterior is sampled at.

    Example:
        >>> P, pi = np.array([[0.9, 0.1], [0.2, 0.8]]), np.array([2 / 3, 1 / 3])
        >>> 0.8 < float(calibrate(P, pi, n_beta=1000.0).mean()) < 1.2
        True
    """
    weights = torch.tensor(pi[:, None] * P)

    def losses(w: Tensor) -> Tensor:
        return -(weights * w.view(-1, *P.shape).log_softmax(-1)).sum((-2, -1))

    return np.asarray(_sampled(losses, torch.tensor(np.log(P)).flatten(), n_beta).estimates.mean(1))


def _sampled(losses: Losses, at: Tensor, n_beta: float, shorter: int = 1) -> Chains:
    length = {"chains": CHAINS, "burn_in": BURN_IN // shorter, "draws": DRAWS // (2 * shorter) * 2}
    return learning_coefficient(losses, at, n_beta=n_beta, seed=0, **length)


def known(subject: Subject, surface: LossSurface, member: int) -> float | None:
    """The exact learning coefficient at a model, or None where it is not derived.

    No derivation covers a norm, or a parameter of which a part is trained.

    Args:
        subject: The models: `Subject.of(run)`.
        surface: Their expected loss: `loss_surface(subject)`.
        member: The index of the model.
    """
    coordinates, config = surface.coordinates, subject.config
    trained = set(coordinates.spans)
    whole = all(coordinates.part(name) == shape for name, shape in coordinates.shapes.items())
    if not whole or config.normalization_type is not None:
        return None
    model, source = subject.decoder[member], cast(Any, subject.source)
    weights = model.state_dict()
    silent = {name for name, value in weights.items() if bool((value == 0).all())}
    at_plateau = config.tied and float(model.embed.W_E.abs().max()) < 1e-3
    at_plateau &= surface.kl_from(source.pi, member) < PLATEAU_NATS
    heads, mlps = ({name for name in weights if name.endswith(end)} for end in ("attn.W_O", "mlp.W_out"))
    if at_plateau and trained == set(TIED) and heads | mlps <= silent:
        return of_tied_plateau(source.P, source.pi, config.d_model)
    biases = {name for name in weights if name.endswith(("attn.b_O", "mlp.b_in", "mlp.b_out"))}
    one_wide = (config.n_layers, config.d_model, source.n_states, config.act_fn) == (1, 1, 2, "relu")
    if at_plateau and trained == set(CANONICAL) and one_wide and heads | biases <= silent:
        w_in, w_out = (weights[name].double().flatten() for name in CANONICAL[2:])
        above, below = (float((w_out * (sign * w_in).relu()).sum()) for sign in (1, -1))
        return of_canonical_line(source.P, (1 + above, 1 - below))
    if not trained <= set(TABLE) or TABLE[0] not in trained or surface.excess(member) > SOLVED_NATS**2:
        return None
    stream = list(streams(model, subject.batch.tokens[:SEQUENCES]).values())[-1]
    vectors = np.unique(stream.reshape(-1, stream.shape[-1]).round(6), axis=0)
    K = source.n_states  # one vector a token, and independent: unembedded they are a free table
    free = len(vectors) == K == np.linalg.matrix_rank(vectors)
    return of_bigram_table(K) if free else None


def is_calibrated(data: xr.Dataset, name: str = "calibration") -> bool:
    """Returns whether the estimates of the calibration are within 20 % of the exact value.

    Args:
        data: What `measure` returned.
        name: "calibration", ours, or "devinterp_calibration", that library's.
    """
    return abs(float(data[name].mean() / data["calibration_exact"]) - 1) <= MISS


def scores(data: xr.Dataset, _: xr.Dataset | None) -> dict[str, Score]:
    """The learning coefficient at the last step, its exact value, and whether the estimator is calibrated."""

    def estimate(name: str, null: float, kind: str) -> Score:
        if name not in data:
            return Score(None, "λ", reason=data.attrs["no_devinterp"])
        return Score(float(data[name].mean()), "λ", null, null_kind=kind)

    last = last_model(data)
    value, exact = float(last["llc"].mean()), float(last["exact"])
    chains = last.sizes["chain"]
    error = stdtrit(chains - 1, 0.975) * float(last["llc"].std(ddof=1)) / np.sqrt(chains)
    # What the estimator misses of a table that is known, it may miss here: chains do not show it.
    missed = abs(value) * abs(float(data["calibration_exact"] / data["calibration"].mean()) - 1)
    reach = error + missed
    half, of_table = float(last["parameters"]) / 2, float(data["calibration_exact"])
    why = "no derivation covers this model"
    return {
        "llc": Score(value, "λ", half, (value - reach, value + reach), NO_DEGENERACY),
        "llc_exact": Score(exact, "λ") if np.isfinite(exact) else Score(None, "λ", reason=why),
        "calibration": estimate("calibration", of_table, EXACT),
        "calibrated": Score(is_calibrated(data), ""),
        "mixed": Score(_is_mixed(last), ""),
        "devinterp": estimate("devinterp", half, NO_DEGENERACY),
        "devinterp_calibration": estimate("devinterp_calibration", of_table, EXACT),
    }


def _is_mixed(last: xr.Dataset) -> bool:
    """Returns whether both halves of the chains agree within 20 %, in estimate and distance; and moved."""
    (first, second), (near, far) = last["llc_half"].values, last["distance_half"].values
    return _agree(first, second, MISS) and far > 0 and _agree(near, far, 0.0)


def _agree(first: float, second: float, least: float) -> bool:
    return bool(abs(second - first) <= MISS * max(abs(first), abs(second), least))


def claims(data: xr.Dataset, scores: dict[str, Score]) -> list[Claim]:
    """Claims about the coefficient next to half the parameters, its exact value, and the estimator."""
    last, llc = last_model(data), scores["llc"]
    exact, size = float(last["exact"]), int(data["parameters"])
    calibrated, mixed = is_calibrated(data), _is_mixed(last)
    value = float(last["llc"].mean())
    falls = value < -ROUNDING
    premises = [Condition("parameters", value=size)]
    premises += [Condition("exactly", value=exact)] * bool(np.isfinite(exact))
    premises += [
        Condition("estimate of a bigram table", calibrated, float(data["calibration"].mean())),
        Condition("exact for that table", value=float(data["calibration_exact"])),
        Condition("chains agree", mixed),
        Condition("below the loss here", falls),
    ]
    if "devinterp" in data:
        theirs, of_table = float(data["devinterp"]), float(data["devinterp_calibration"])
        premises.append(Condition("devinterp gives", value=theirs))
        premises.append(
            Condition(
                "devinterp's estimate of that table", is_calibrated(data, "devinterp_calibration"), of_table
            )
        )
    status: Status = "shown" if calibrated and mixed and not falls else "open"
    coefficient = Claim(
        (MODEL,), "has_learning_coefficient", (), value, llc.interval, llc.null, "λ", status,
        because=tuple(premises),
    )  # fmt: skip
    return [coefficient, *(_over_training(data) if "progress" in data else [])]


def _over_training(data: xr.Dataset) -> Iterator[Claim]:
    """Between which measured steps the coefficient rises most beyond the chains' error, or may."""
    llc, progress = data["llc"].dropna("step"), data["progress"].sel(event="bigram")
    if llc.sizes["step"] < 2 or not (progress > HALF).any():
        return
    steps, contrasts = llc["step"].values, np.diff(np.eye(llc.sizes["step"]), axis=0)
    rise = contrasts @ llc.mean("chain").values
    squared = llc.var("chain", ddof=1).values / llc.sizes["chain"]
    # The largest of them is named: all intervals hold at once (Bonferroni).
    margin = stdtrit(2 * (llc.sizes["chain"] - 1), 1 - 0.025 / len(rise))
    rises = rise > margin * np.sqrt(contrasts**2 @ squared)
    subject, what = (MODEL,), (RISE,)
    if not rises.any():
        yield Claim(subject, "came_by", what, status="excluded")
        return
    largest = int(np.where(rises, rise, 0).argmax())
    error = np.sqrt((contrasts[largest] - contrasts) ** 2 @ squared)
    most = np.flatnonzero(rise[largest] - rise <= margin * error)
    around = (float(steps[most[0]]), float(steps[most[-1] + 1]))
    yield Claim(
        subject, "came_by", what, float(steps[largest + 1]), around, unit="step",
        status="shown" if len(most) == 1 else "open",
    )  # fmt: skip


def figures(data: xr.Dataset) -> list[Figure]:
    """Figures of estimates next to exact values, and over training."""
    last = last_model(data)
    values = {
        "this model": float(last["llc"].mean()),
        "exact": float(last["exact"]),
        "half the parameters": float(data["parameters"]) / 2,
        "bigram table": float(data["calibration"].mean()),
        "bigram table, exact": float(data["calibration_exact"]),
    }
    names = [name for name, value in values.items() if np.isfinite(value)]
    picture = bars(names, np.array([values[name] for name in names]), y_title="λ")
    measured = data.dropna(data["llc"].dims[0], subset=["llc"])
    return [
        Figure(
            "The learning coefficient", "The bigram table shows the estimator's own error.", "plotly", picture
        ),
        *over_training(
            "The learning coefficient over training",
            f"Mean over the chains. Before the last step these are {EARLIER} times shorter.",
            measured,
            {"estimate": measured["llc"].mean("chain").values},
            "λ",
        ),
    ]


probe = Probe(
    name="degeneracy",
    question="How degenerate is the loss at the model, by its local learning coefficient?",
    cites="Lau et al. 2023 (arXiv 2308.12108); exact values: Watanabe 2009",
    applies=applies, measure=measure, scores=scores, claims=claims, figures=figures,
    formula="λ = nβ (E[L(w)] − L(w*)), w from exp(−nβ L(w) − γ/2 |w − w*|²), γ = 1, nβ = n / log n, n the "
    "predictions of the evaluation sequences; MALA on the expected loss under the exact law\n"
    "bigram table: K (K − 1) / 2 · tied unigram plateau: (d + 1)(K − 1) / 2 · canonical e = 0: 1",
    formulas={
        "llc": "λ, mean over the chains",
        "llc_exact": "λ where a derivation covers the model",
        "calibration": "λ by the same chains on the source's own bigram table",
        "calibrated": "whether that is within 20 % of the exact value",
        "mixed": "whether both halves of the chains agree within 20 %, in λ and in distance from the model",
        "devinterp": "λ by devinterp's stochastic-gradient chains, its defaults, a step of 0.001 and our nβ",
        "devinterp_calibration": "the same of the source's own bigram table",
    },
    has_null=lambda _: False,
    on_request=True,
)  # fmt: skip
