"""How fast a run under plain gradient descent leaves a saddle, against what linear theory predicts."""

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float, Int

from mechmarkov.curvature.loss_surface import LossSurface
from mechmarkov.curvature.trainable_vector import Coordinates, Symmetry
from mechmarkov.curvature.walk_parts import WalkParts
from mechmarkov.probing.dataset import variables
from mechmarkov.probing.subject import Subject

from .predicted_modes import at_unigram, embeddings, lag_class_modes, trap_at, unigram_criterion, walk_numbers

RATE = "1 / (step size times steps)"

# An amplitude below this is rounding.
MIN_AMPLITUDE = 1e-12
# A run has left when its amplitude is this large.
ESCAPED = 1.0
# Linear theory is extrapolated for this many steps beyond the last one that was kept.
EXTRA_STEPS = 1_000
# Where that ends early.
MAX_AMPLITUDE = 1e3


def step_size(subject: Subject) -> float | str:
    """The step size of plain gradient descent that a run was trained by, or one line why there is none.

    Example:
        >>> import mechmarkov as mm
        >>> step_size(mm.Subject.of(mm.example("walk"), sequences=8))
        1.0
    """
    optimiser = (subject.run.recipe or {}).get("optimiser") or {}
    if optimiser.get("kind") == "gd":
        known = optimiser.get("lr")
        return "the run's step size is unknown" if known is None else float(known)
    if not optimiser:
        return "how the run was trained is unknown"
    return f"the run was trained by {optimiser.get('kind')}, and a rate is that of plain gradient descent"


def escape(subject: Subject, surface: LossSurface, symmetry: Symmetry) -> xr.Dataset | None:
    """The trajectory of a run under plain gradient descent, if it was at a saddle that theory knows.

    It begins at the first kept step for the trap, for the unigram point at the first that is at that point.

    Args:
        subject: The run: `Subject.of(run)`.
        surface: Its expected loss: `loss_surface(subject)`.
        symmetry: The symmetries of the source and the model: `symmetry_of(run)`.

    Returns:
        What `follow` returns; None where the run was trained otherwise, or at no such saddle.
    """
    eta = step_size(subject)
    if isinstance(eta, str) or subject.run.n_steps < 2:
        return None
    coordinates = surface.coordinates
    state = subject.run.model(steps="all").state_dict()
    thetas = coordinates.flatten({name: value.detach().double() for name, value in state.items()}).numpy()
    steps = subject.run.steps.numpy()
    if symmetry.shifts and surface.walk is not None and subject.objective.kind == "raw_log":
        return _from_trap(subject, coordinates, surface.walk, steps, thetas, eta)
    point = unigram_criterion(subject, symmetry)
    if point is None or point.trap:
        return None
    arrived = np.flatnonzero(at_unigram(subject, coordinates, torch.from_numpy(thetas)))
    if not len(arrived):  # then there was no saddle to leave
        return None
    steps, thetas = steps[arrived[0] :], thetas[arrived[0] :]
    patterns = point.modes[point.embedding < 0]
    along = embeddings(subject, coordinates, torch.from_numpy(thetas))
    of_pattern = np.einsum("ms,tsd->tmd", patterns, along)
    growth = 1 - eta * point.embedding[point.embedding < 0][:, None]
    amplitude = np.sqrt((of_pattern**2).sum((1, 2)))
    first = _first_seen(amplitude)
    since = range(int(steps[-1] - steps[first]) + EXTRA_STEPS)
    with np.errstate(over="ignore"):
        path = np.array([np.linalg.norm(of_pattern[first] * growth**t) for t in since])
    # What is neglected is of the order of the logits that the patterns make, the amplitude squared.
    return follow(steps, amplitude, path, eta, linear=0.3)


def _from_trap(
    subject: Subject,
    coordinates: Coordinates,
    walk: WalkParts,
    steps: Int[np.ndarray, " kept_step"],
    thetas: Float[np.ndarray, "kept_step coordinate"],
    eta: float,
) -> xr.Dataset:
    """By the two numbers of each lag class that grow together, at the couplings the run has at each step."""
    _, logits = walk_numbers(walk, coordinates, torch.from_numpy(thetas))
    attention = np.exp(logits - logits.max(-1, keepdims=True))[..., :-1]
    amplitude = np.ptp(attention, axis=-1) / attention.mean(-1)
    first = _first_seen(amplitude)
    eps = subject.objective.eps
    traps = [trap_at(walk, coordinates, theta, eps)[0] for theta in torch.from_numpy(thetas)]
    coupling, pull = np.array([t.coupling for t in traps]), np.array([t.pull for t in traps])
    bands, classes = lag_class_modes(subject, coordinates, walk)
    by_token = walk_numbers(walk, coordinates, torch.from_numpy(classes))[1][:, :-1]  # logits a unit of each
    band, of_class = bands @ thetas[first], classes @ thetas[first]
    # Attention within a class grows only by its own pull.
    within = logits[first, :-1] - logits[first, :-1].mean() - of_class @ by_token
    path: list[float] = []
    for t in range(int(steps[-1] - steps[first]) + EXTRA_STEPS):
        path.append(float(np.ptp(of_class @ by_token + within)))
        if path[-1] > MAX_AMPLITUDE:
            break
        c, h = (float(np.interp(steps[first] + t, steps, values)) for values in (coupling, pull))
        band, of_class = band + eta * c * of_class, of_class + eta * (c * band + h * of_class)
        within = within * (1 + eta * h)
    return follow(steps, amplitude, np.array(path), eta, linear=0.1)


def _first_seen(amplitude: Float[np.ndarray, " kept_step"]) -> int:
    return int(np.argmax(amplitude > MIN_AMPLITUDE))  # the first step where it never is: then nothing grows


def follow(
    steps: Int[np.ndarray, " kept_step"],
    amplitude: Float[np.ndarray, " kept_step"],
    path: Float[np.ndarray, " step"],
    eta: float,
    linear: float,
) -> xr.Dataset:
    """A run's amplitude next to a predicted one.

    Args:
        steps: The steps the run has kept.
        amplitude: The amplitude of the run at these.
        path: Predicted at every step from the first at which the run's is seen.
        eta: Step size.
        linear: Up to what amplitude linear theory holds.

    Returns:
        `amplitude`, `predicted_amplitude` [kept_step]: how far the run is from the symmetric subspace along
        the growing modes, and the same by linear theory, from the first step at which it is seen on. Walk
        model: the difference in attention of the most and the least attended token against a token's mean
        share; unigram: the size of the growing patterns of the embeddings.
        `observed_rate`, `predicted_rate`: growth per unit of step size times steps, while the amplitude is
        seen and small, and over these steps by linear theory; NaN where these are not three.
        `observed_step`, `predicted_step`: the first kept step at which the run has left, NaN if it has not;
        the same by linear theory, which goes on beyond the last step.

    Example:
        >>> steps, grows = np.arange(5), 1e-3 * 3.0 ** np.arange(20)
        >>> found = follow(steps, grows[:5], grows, eta=1.0, linear=0.1)
        >>> round(float(found.observed_rate), 6), float(found.predicted_step)
        (2.0, 7.0)
    """
    first = _first_seen(amplitude)
    predicted = np.full(len(steps), np.nan)
    if amplitude[first] > MIN_AMPLITUDE:
        since = steps[first:] - steps[first]
        reached = since < len(path)
        predicted[first:][reached] = path[since[reached]]
    gone, will = np.flatnonzero(amplitude >= ESCAPED), np.flatnonzero(path >= ESCAPED)
    small = (amplitude > MIN_AMPLITUDE) & (amplitude < linear)
    until = first + int(np.argmin(np.append(small[first:], False)))  # up to the first that is not
    rates = [np.nan, np.nan]
    if until - first >= 3:
        took = float(steps[until - 1] - steps[first])
        rates = [_rate(way[until - 1] / way[first], took, eta) for way in (amplitude, predicted)]
    left = float(steps[gone[0]]) if len(gone) else np.nan
    leaves = float(steps[first] + will[0]) if len(will) and amplitude[first] > MIN_AMPLITUDE else np.nan
    amplitudes = {"amplitude": amplitude, "predicted_amplitude": predicted}
    return xr.Dataset(
        variables("share of uniform, or weight", "kept_step", **amplitudes)
        | variables(RATE, (), observed_rate=rates[0], predicted_rate=rates[1])
        | variables("step", (), observed_step=left, predicted_step=leaves),
        coords={"kept_step": steps},
    )


def _rate(ratio: float, took: float, eta: float) -> float:
    """The rate whose growth by `1 + eta rate` a step makes a ratio."""
    return float(np.expm1(np.log(ratio) / took) / eta) if ratio > 0 else np.nan
