"""Gradient and curvature of the loss over the population, next to what theory says of the point."""

import dataclasses
from typing import Any, cast

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float, Int
from torch import Tensor

from mechmarkov.curvature.loss_surface import LossSurface, loss_surface
from mechmarkov.curvature.population import population_of
from mechmarkov.curvature.trainable_vector import Symmetry, symmetry_of
from mechmarkov.models.decoder import HookedDecoder, activations
from mechmarkov.probing.dataset import variables
from mechmarkov.probing.rare_states import unseen_nats
from mechmarkov.probing.subject import Subject
from mechmarkov.sources import FixedChain

from .canonical_fit import canonical_fit
from .escape import RATE, escape, step_size
from .hessian_spectrum import DENSE, Ends, hessian_ends, outside_size
from .loss_slice import loss_slice
from .predicted_modes import Predicted, predict, unigram_criterion
from .stationarity import judge

# Eigenvalues kept at the lower end: more than the growing modes of most chains.
LOW_DENSE, LOW_LANCZOS = 20, 4

SLOPE = "nats / weight"
CURVATURE = "nats / weight²"

MIN_SEQUENCES = 8  # half of them judge the others' directions, and a spread of fewer than four is none


def measure(subject: Subject) -> xr.Dataset:
    """Gradient and curvature of the expected loss over the population, in float64.

    The law of each next state is known exactly, and the loss is the expected one under it: only the histories
    are a sample.

    Returns, over [axis]:
        `grad_norm`, `grad_outside`, `drift` (nats / weight): norms of the gradient and of its parts
        outside and inside the symmetric subspace.
    And of the last model, unless it is a null's:
        `eigenvalue` [low] and `hessian_max` (nats / weight²): ends of the Hessian's spectrum
        outside the symmetric subspace; `eigenvector` [low, coordinate]; `spectrum` [rank] where it was
        written out; `smallest`, `largest` [end]: of the population, measured on sequences that did not
        choose their directions, with 95 % intervals (`value`, `low`, `high`);
        `resolution`, `least_curvature`, `flat_limit`: below what size eigenvalues are zero up to rounding,
        from what size negative ones are sure to grow, and up to what size they are flat;
        `nats_away`, `sampling_nats` (nats): how far the loss is from the stationary point of its quadratic
        model, and what sampling makes of it; `excess` (nats): KL from the exact law of the next state;
        `descent` (nats): by how much a few steps lower the loss, where a minimum with flat directions was in
        question;
        `predicted_spectrum` [rank], `growth` [mode], `overlap` (share of the lowest eigenvectors in the
        predicted modes) where theory knows the point;
        `amplitude`, `predicted_amplitude` [kept_step] of a run under plain gradient descent;
        `unigram_curvature` [pattern]: the Hessian along embeddings that the unigram point of this model has,
        inside the symmetric subspace too;
        `slice` [across, along] (nats): the loss over the plane through run, unigram and bigram point, with
        `path` [checkpoint, plane] and `way` [way, plane] of `loss_slice`.
    And of binary tied one-layer models, over [axis]: `canonical_e`, `canonical_w`, `fit_error`,
        `log_odds_sd`, `rank_one`, `energy`, `basin` (mechmarkov.probes.landscape.canonical_fit).

    Example:
        >>> import mechmarkov as mm
        >>> data = measure(mm.Subject.of(mm.example("trap"), sequences=8))
        >>> data.attrs["kind"], data.eigenvalue[:2].round(1).values.tolist()
        ('saddle', [-5.0, -5.0])
    """
    axis = subject.axis
    batch = subject.batch
    half = max(1, len(batch.tokens) // 2)
    population = population_of(subject, batch.head(half))
    if not population.exact and len(batch.tokens) < MIN_SEQUENCES:
        raise ValueError(
            f"sequences is {len(batch.tokens)}, expected at least {MIN_SEQUENCES}: half judge the others"
        )
    surface = loss_surface(subject, population)
    whole = symmetry_of(subject.run)
    symmetry = whole.at(surface.thetas[-1])
    gradients = surface.gradients()
    outside = symmetry.outside(gradients)
    mean, mean_outside = gradients.mean(1), outside.mean(1)
    parts = {"grad_norm": mean, "grad_outside": mean_outside, "drift": mean - mean_outside}
    norms = {name: gradient.norm(dim=-1).numpy() for name, gradient in parts.items()}
    data = xr.Dataset(
        variables(SLOPE, axis, **norms),
        coords={axis: subject.coordinates},
        attrs={
            "source": subject.source.title(),
            "population": population.describe(),
            "sampled": not population.exact,
            "numbers": surface.coordinates.size,
            "outside": outside_size(symmetry, surface.coordinates.size),
            "projected": not symmetry.trivial,
            "loss_unit": subject.objective.unit,
            "objective": subject.objective.kind,
        },
    )
    if axis != "step":
        return _in_its_unit(data)
    fresh = None
    if not population.exact:
        others = population_of(subject, batch.part(slice(half, None)))
        fresh = dataclasses.replace(surface, population=others)
    datasets = [data, *_of_last_model(subject, surface, fresh, symmetry, gradients[-1])]
    if (way_out := escape(subject, surface, whole)) is not None:
        datasets.append(way_out)
    if not isinstance(fit := canonical_fit(subject), str):
        datasets.append(fit)
    return _in_its_unit(xr.merge(datasets, combine_attrs="no_conflicts"))


def _in_its_unit(data: xr.Dataset) -> xr.Dataset:
    """Gradients and curvatures in the unit of the training loss; what predictions miss stays in nats."""
    loss = data.attrs["loss_unit"]
    units = {"nats": loss, SLOPE: f"{loss} / weight", CURVATURE: f"{loss} / weight²"}
    for name in set(data) - {"excess", "unseen"}:
        unit = data[name].attrs.get("unit", "")
        data[name].attrs["unit"] = units.get(unit, unit)
    return data


def _of_last_model(
    subject: Subject,
    surface: LossSurface,
    fresh: LossSurface | None,
    symmetry: Symmetry,
    gradients: Float[Tensor, "group coordinate"],
) -> list[xr.Dataset]:
    """The Hessian of the last model, the kind of point it is at, and what theory says of that point."""
    last, size = len(subject.coordinates) - 1, surface.coordinates.size
    hessian = surface.hessian_at(last)
    low = LOW_DENSE if size <= DENSE else LOW_LANCZOS
    ends = hessian_ends(hessian, symmetry, low=min(low, max(1, size - 2)))
    kink = _has_kink(subject.decoder[-1], subject)
    unseen = 0.0 if surface.population.exact else float(unseen_nats(subject)[last])
    judged = judge(surface, last, gradients, ends, hessian, symmetry, fresh, at_kink=kink, unseen=unseen)
    eta = step_size(subject)
    rate = {"no_rate": eta} if isinstance(eta, str) else {"step_size": eta}
    nats = {"nats_away": judged.nats_away, "sampling_nats": judged.noise, "excess": judged.excess}
    nats |= {"descent": judged.descent, "unseen": unseen}
    limits = {name: getattr(judged, name) for name in ("resolution", "least_curvature", "flat_limit")}
    parts = [
        _spectrum(ends).assign_attrs(
            kind=judged.kind, why=judged.why, kink=int(judged.kink), method=ends.method, **rate
        ),
        xr.Dataset(
            variables("nats", (), **nats)
            | variables(CURVATURE, "end", smallest=list(judged.min), largest=list(judged.max))
            | variables(CURVATURE, (), **limits),
            coords={"end": ["value", "low", "high"]},
        ),
    ]
    predicted = predict(subject, surface, symmetry, last) if judged.kind != "not stationary" else None
    if predicted is not None:
        parts.append(_predicted(predicted, ends))
    # Of the whole model: a mode that the symmetries leave unchanged is a way out too.
    criterion = unigram_criterion(subject, dataclasses.replace(symmetry, acts=False))
    if criterion is not None:
        attrs = {"unigram_growth": criterion.growth, "tied": subject.config.tied}
        if subject.source.n_states == 2 and isinstance(subject.source, FixedChain):
            attrs["binary_eigenvalue"] = float(np.trace(np.array(subject.source.P))) - 1
        curvature = variables(CURVATURE, "pattern", unigram_curvature=criterion.embedding)
        parts.append(xr.Dataset(curvature, attrs=attrs))
    grows = ends.low < -judged.least_curvature if judged.kind == "saddle" else np.zeros(len(ends.low), bool)
    return [*parts, loss_slice(subject, surface, last, torch.from_numpy(ends.low_vectors[:, grows]))]


@torch.no_grad()
def _has_kink(model: HookedDecoder, subject: Subject) -> bool:
    """Returns whether a ReLU that is read, or could be, is at zero for some token.

    The loss has no second derivative there.
    """
    tokens, trainable = subject.batch.head(MIN_SEQUENCES).tokens, subject.run.trainable
    if subject.config.conv_act_fn == "relu" and _convolution_at_zero(model, tokens):
        return True
    if subject.config.attn_only or subject.config.act_fn != "relu":
        return False
    names = [f"blocks.{layer}.mlp" for layer in range(subject.config.n_layers)]
    hooks = [f"{name}.hook_pre" for name in names]
    seen = activations(model, tokens, hooks)
    for name, hook in zip(names, hooks, strict=True):
        at_zero = (seen[hook] == 0).flatten(0, -2).any(0)
        trained = trainable is None or f"{name}.W_out" in trainable
        if at_zero[model.get_parameter(f"{name}.W_out").any(-1) | trained].any():
            return True
    return False


def _convolution_at_zero(model: HookedDecoder, tokens: Int[Tensor, "batch position"]) -> bool:
    """Returns whether what some convolution of a state space hands to its ReLU is zero for some token."""
    at_zero, mixers = list[bool](), list[Any](block.attn for block in cast("Any", model.blocks))
    acts = [mixer.act_fn for mixer in mixers]

    def watched(x: Tensor) -> Tensor:
        at_zero.append(bool((x == 0).any()))
        return x.relu()

    try:
        for mixer in mixers:
            mixer.act_fn = watched
        model(tokens)
    finally:
        for mixer, act in zip(mixers, acts, strict=True):
            mixer.act_fn = act
    return any(at_zero)


def _spectrum(ends: Ends) -> xr.Dataset:
    """The ends of the Hessian's spectrum, and all of it where it was written out."""
    values = variables(CURVATURE, "low", eigenvalue=ends.low)
    values |= variables("weight", ("low", "coordinate"), eigenvector=ends.low_vectors.T)
    values |= variables(CURVATURE, (), hessian_max=float(ends.high[-1]))
    if ends.spectrum is not None:
        values |= variables(CURVATURE, "rank", spectrum=ends.spectrum)
    return xr.Dataset(values)


def _predicted(predicted: Predicted, ends: Ends) -> xr.Dataset:
    """Returns what theory says of the spectrum, and the measured one's distance, if that has all paths."""
    if not predicted.applies:
        return xr.Dataset(attrs={"point": predicted.point, "other_paths": predicted.others})
    values = variables(CURVATURE, (), predicted_min=predicted.low)
    apart = abs(predicted.low - float(ends.low[0]))
    if predicted.spectrum is not None and ends.spectrum is not None:
        values |= variables(CURVATURE, "rank", predicted_spectrum=predicted.spectrum)
        apart = float(np.abs(predicted.spectrum - ends.spectrum).max())
    share = apart / predicted.size if predicted.size else apart
    values |= variables("share of the largest predicted", (), disagreement=share)
    modes = predicted.modes
    if modes.shape[1]:
        # As many of the lowest eigenvectors as theory gives this eigenvalue, or as there are.
        measured = ends.low_vectors[:, : modes.shape[1]]
        shared = float(((modes.T @ measured) ** 2).sum()) / measured.shape[1]
        values |= variables("share", (), overlap=shared)
    values |= variables(RATE, "mode", growth=list(predicted.rates.values()))
    return xr.Dataset(values, coords={"mode": list(predicted.rates)}, attrs={"point": predicted.point})
