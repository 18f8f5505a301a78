"""Every path's value circuit against the target that the loss gives it, at the lag the path looks at."""

from collections.abc import Sequence
from itertools import islice

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float
from scipy.spatial.distance import cdist

from mechmarkov.models.components import head_index
from mechmarkov.probing.dataset import IMITATION_NATS, variables
from mechmarkov.probing.preconditions import has_one_parent, parent_lag
from mechmarkov.probing.recording import ATTENTION, SCORES
from mechmarkov.probing.subject import Subject
from mechmarkov.probing.value_circuits import path_tables
from mechmarkov.sources import FixedChain, SelectiveLag, Stationary
from mechmarkov.theory import kernel as k
from mechmarkov.theory.fitted_rows import left_of_rows

# A circuit whose state-dependent part is this small against the whole says nothing of the state: float32
# weights carry a relative rounding of 6e-8, and a K-term sum of them a few times that.
CONSTANT_SHARE = 1e-6

# Laws of m steps, and gains in nats, this close are one: float64 rounding is 1e-15.
TIE = 1e-9

# A table that is further from the target's direction is another one.
MIN_COSINE = 0.8

OFTEN = 0.5  # of the attention on the most attended token

# A table has a law, but for some rows, if more than this share of the time its row is the law's; rows that
# are nearer to the unigram than the second say nothing.
MOSTLY, TELLING_NATS = 0.5, 0.05

UNITS = {
    "kernel_cosine": "cosine",
    "directional_distance": "",
    "kernel_slope": "",
    "kernel_kl": "nats",
    "gain": "nats",
    "recall": "probability",
    "best_lag": "lag",
    "lag_margin": "",
}


def measure(subject: Subject) -> xr.Dataset:
    """Every path's value circuit against the target at the lag the path looks at.

    P^m is here the law of m steps: of the state given only the one m before. Where each sequence has a lag
    of its own, it is the law of that lag for a path that is nearer to it.

    Returns, over [axis, path]:
        `circuit` [.., state_from, state_to] (score units): the full circuit;
        `attended_lag`, `attended_mass` (lag; probability): where the path's head looks, with its attention
        on all lags that the chain cannot tell from that one, as P^m repeats (1 and 1 for other paths);
        `lags_alike`: how many those are;
        `kernel_cosine` (cosine), `directional_distance`: centred circuit against the centred target;
        `kernel_slope` (1 is exact; NaN where the objective or P has none);
        `kernel_kl` (nats): KL from P^m at that lag, with all other paths at their data mean; `row_kl`
        [.., state_from]: that of each row (NaN for a state that never comes);
        `row_left` [.., state_from] (nats): the same at the slope and mean output that fit best, of a softmax;
        `gain` (nats): by how much that is better than the unigram is at P^m; it ranks the paths;
        `best_lag`, `lag_margin`: the m, of the first few lags and where the path looks, whose P^m the circuit
        is nearest to, and by how much (NaN: constant);
        `recall` (probability); `circulant_share` (circle sources);
        `unigram` [.., state_to]: the state-independent part of the circuit, which is left out of the above.
        `constant`: whether the circuit says nothing of the state;
        `of_own_lag`: whether its target is the law of a sequence whose lag it reads.
        `kernel` [state_from, state_to]: P; `law` [path, state_from, state_to]: P^m where the last model's
        path looks; `unigram_kl` (nats): how far the unigram is from P^m at the lag that tells most.

    Example:
        >>> import mechmarkov as mm
        >>> data = measure(mm.Subject.of(mm.example("walk"), sequences=8))
        >>> data.best_lag.values.tolist(), data.kernel_cosine.round(1).values.tolist()  # step, path
        ([[1.0]], [[1.0]])
    """
    source, axis = subject.source, subject.axis
    assert isinstance(source, Stationary)
    P, pi = np.array(source.P), np.array(source.pi)
    tables = path_tables(subject)
    circuit = np.stack(list(tables.values()), axis=1)
    first = range(1, min(subject.batch.history.shape[1], max(4, source.n_states, source.order or 0)) + 1)
    same = _same_lags(source, subject.recorded(ATTENTION).lag_mass.shape[-1])
    lag, mass = _attended(subject, list(tables), same)
    powers = {m: source.step_law(m) for m in sorted({*first, *lag.ravel().tolist()})}
    variation = np.abs(k.double_centred(circuit)).max((-2, -1))
    constant = variation <= CONSTANT_SHARE * np.maximum(np.abs(circuit).max((-2, -1)), 1e-30)
    compared, rows, target = _compare(subject, circuit, constant, lag, mass, powers, first)
    of_own_lag = np.array([[one is not powers[int(m)] for one, m in zip(*row, strict=True)]
                           for row in zip(target, lag, strict=True)])  # fmt: skip
    per_path, table = (axis, "path"), ("state_from", "state_to")
    unigram_kl = max(k.kernel_kl(np.broadcast_to(pi, P.shape), powers[m], pi) for m in first)
    data = xr.Dataset(
        {name: (per_path, value, {"unit": UNITS[name]}) for name, value in compared.items()}
        | variables("score", (*per_path, *table), circuit=circuit)
        | variables("score", (*per_path, "state_to"), unigram=np.einsum("i,apij->apj", pi, circuit))
        | variables("lag", per_path, attended_lag=lag)
        | variables("probability", per_path, attended_mass=mass)
        | variables("lags", per_path, lags_alike=same.sum(-1)[lag])
        | variables("yes or no", per_path, constant=constant.astype(int), of_own_lag=of_own_lag.astype(int))
        | variables("probability", table, kernel=P)
        | variables("nats", (*per_path, "state_from"), **rows)
        | variables("probability", ("path", *table), law=np.stack(target[-1]))
        | variables("nats", (), unigram_kl=unigram_kl),
        coords={axis: subject.coordinates, "path": list(tables)},
        attrs={
            "source": source.title(),
            "labels": list(source.labels),
            "objective": subject.objective.kind,
            "n_states": source.n_states,
            "query_shift": subject.batch.parent_lag,
            "source_lag": parent_lag(source) * has_one_parent(source),
            "first_order": isinstance(source, FixedChain),
            "has_norm": int(subject.config.normalization_type is not None),
        },
    )
    if source.kind == "circle":
        seen = k.row_centred(circuit) if subject.objective.kind == "cross_entropy" else circuit
        data = data.assign(variables("share", per_path, circulant_share=k.circulant_share(seen)))
    return data


def mostly_right(
    law: Float[np.ndarray, "state_from state_to"],
    row_kl: Float[np.ndarray, " state_from"],
    weight: Float[np.ndarray, " state_from"],
    unigram: Float[np.ndarray, " state_to"],
) -> bool:
    """Returns whether a table's rows are the law's most of the time, whatever a cosine over all says.

    One row that is far off, as of a transition that never comes, decides a cosine.

    Args:
        law: The law.
        row_kl: How far the table's rows are from it (nats).
        weight: How likely each of its states is.
        unigram: The stationary law of all states.
    """
    right = (k.kl(law, unigram) > TELLING_NATS) & (row_kl < IMITATION_NATS)
    return bool(right.sum() > 1 and weight[right].sum() > MOSTLY * weight.sum())


def _compare(
    subject: Subject,
    circuit: np.ndarray,
    constant: np.ndarray,
    lag: np.ndarray,
    mass: np.ndarray,
    powers: dict[int, np.ndarray],
    first: Sequence[int],
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], list[list[np.ndarray]]]:
    """Each circuit `[member, path, state_from, state_to]` against the law of its lag, by name of `UNITS`.

    Returns also KL by row, and that law, of each path of each member.
    """
    kind, softmax = subject.objective.kind, subject.objective.kind == "cross_entropy"
    assert isinstance(subject.source, Stationary)
    pi = np.array(subject.source.pi)
    seen = pi > 0  # a table says what it likes of states that never come
    predicted, biases = _predictions(subject, circuit, lag, mass, max(powers))
    values = {name: np.full(circuit.shape[:2], np.nan) for name in UNITS}
    rows = {name: np.full(circuit.shape[:3], np.nan) for name in ("row_kl", "row_left")}
    source, targets = subject.source, [[pi] * circuit.shape[1] for _ in circuit]
    for where in np.ndindex(circuit.shape[:2]):
        table, law, by_itself = circuit[where], powers[int(lag[where])], predicted[where]
        nats = k.kernel_kl(by_itself, law, pi)
        if isinstance(source, SelectiveLag) and int(lag[where]) in source.lags:
            of_lag = k.kernel_kl(by_itself, source.lag_law, pi)
            is_of_lag = _is_nearer(table, source.lag_law, law, kind) if len(law) > 2 else of_lag < nats
            law, nats = (source.lag_law, of_lag) if is_of_lag else (law, nats)
        targets[where[0]][where[1]] = law
        values["kernel_kl"][where] = nats
        values["gain"][where] = k.kernel_kl(np.broadcast_to(pi, law.shape), law, pi) - nats
        table, law, by_itself = table[seen], law[seen], by_itself[seen]
        name, target = k.target_for(kind, law)
        rows["row_kl"][where][seen] = k.kl(law, by_itself)
        compared = by_itself if softmax and name == "P" else table
        centred = k.double_centred(target)
        cosine = 0.0 if constant[where] else k.cosine(k.double_centred(compared), centred)
        values["kernel_cosine"][where] = cosine
        has_rows = mostly_right(law, rows["row_kl"][where][seen], pi[seen], pi)
        if softmax and subject.axis == "step" and (cosine >= MIN_COSINE or len(law) < 3 or has_rows):
            rows["row_left"][where][seen] = left_of_rows(table, law, biases[where])
        values["directional_distance"][where] = np.sqrt(2 - 2 * cosine)  # cosines are clipped
        if name == "log P":
            values["kernel_slope"][where] = k.slope(k.double_centred(mass[where] * table), centred)
        values["recall"][where] = k.chance_recall(law) if constant[where] else k.recall(table, law)
        if not constant[where]:
            lags = sorted({*first, int(lag[where])})
            distances = _distances(table, by_itself, [powers[m][seen] for m in lags], kind, pi[seen])
            nearest = int((distances <= distances.min() + TIE).argmax())  # the first: P^m may repeat
            distinct = distances[np.abs(distances - distances[nearest]) > TIE]
            values["best_lag"][where] = lags[nearest]
            if distinct.size:
                values["lag_margin"][where] = distinct.min() - distances[nearest]
    return values, rows, targets


def _is_nearer(table: np.ndarray, one: np.ndarray, other: np.ndarray, kind: str) -> bool:
    """Returns whether a table points along one law more than along another, at whatever scale."""
    seen = k.double_centred(table)
    towards = [k.cosine(seen, k.double_centred(k.target_for(kind, law)[1])) for law in (one, other)]
    return bool(towards[0] > towards[1])


def _predictions(
    subject: Subject, circuit: np.ndarray, lag: np.ndarray, mass: np.ndarray, n_lags: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns what each path by itself predicts after each state, all others at their mean here.

    Returns also the biases that it may differ by: the mean scores of all, and of the path.
    """
    mean_scores = subject.recorded(SCORES).mean((1, 2))[:, None, None, :]
    own_mean = np.einsum("api,apij->apj", _frequencies(subject, n_lags)[lag - 1], circuit)
    scores = mass[..., None, None] * circuit - (mass[..., None] * own_mean)[:, :, None, :] + mean_scores
    biases = np.stack([np.broadcast_to(mean_scores[:, :, 0], own_mean.shape), own_mean], axis=2)
    return np.asarray(subject.objective.predict(torch.from_numpy(scores)).numpy()), biases


def _attended(subject: Subject, paths: list[str], same: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns where each path reads, and with what attention: a head's most attended lag, else the parent.

    A lag that few predictions reach counts as little as they are: a head that always looks at the first
    token looks at no lag. Of a lagged source, one that often reads the parent is judged by its law: other
    tokens tell nothing. Lags with one and the same P^m tell the same, so that their attention adds up.
    """
    lag_mass = subject.recorded(ATTENTION).lag_mass
    over_all = lag_mass * subject.batch.reach.numpy()
    lag = np.ones((lag_mass.shape[0], len(paths)), dtype=int)
    mass = np.ones(lag.shape)
    members, parent = np.arange(len(lag)), parent_lag(subject.source) * has_one_parent(subject.source)
    for i, head in enumerate(map(head_index, paths)):
        if head is not None:
            whole = over_all[:, *head]
            m = whole[:, 1:].argmax(-1) + 1
            if 1 < parent < whole.shape[-1]:
                m = np.where(whole[:, parent] >= OFTEN * whole[members, m], parent, m)
            others = (whole * same[m]).sum(-1) - whole[members, m]
            attended = lag_mass[members, *head, m] + others  # NaN for a layer without attention weights
            lag[:, i], mass[:, i] = m, np.where(np.isnan(attended), 1.0, np.minimum(1.0, attended))
    return lag, mass


def _same_lags(source: Stationary, n_lags: int) -> np.ndarray:
    """Returns which of lags 0, 1, … have the same law of m steps, `[lag, lag]`; 0, the query, has none."""
    laws = np.stack(list(islice(source.step_laws(), n_lags))).reshape(n_lags, -1)
    same = cdist(laws, laws, "chebyshev") < TIE
    same[0] = same[:, 0] = False
    return np.asarray(same)


def _frequencies(subject: Subject, n_lags: int) -> np.ndarray:
    """Returns each state's frequency at each first lag of predictions that reach it, `[lag, state]`."""
    history, known = subject.batch.history, subject.batch.known
    states = [history[:, known[known >= m - 1] - (m - 1)].flatten() for m in range(1, n_lags + 1)]
    return np.stack([np.bincount(x.numpy(), minlength=subject.source.n_states) / len(x) for x in states])


def _distances(
    circuit: np.ndarray, predicted: np.ndarray, powers: Sequence[np.ndarray], kind: str, pi: np.ndarray
) -> np.ndarray:
    """Distance to each P^m: in nats where scale is meaning (softmax), by direction where it is not."""
    if kind == "cross_entropy":
        return np.array([k.kernel_kl(predicted, power, pi) for power in powers])
    targets = [k.double_centred(k.target_for(kind, power)[1]) for power in powers]
    centred = k.double_centred(circuit)
    return np.array([k.directional_distance(centred, target) for target in targets])
