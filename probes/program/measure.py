"""A model against its program, on sequences that neither has seen."""

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float

from mechmarkov.models.kernels import fast_attention
from mechmarkov.probing.batch import Batch, draw
from mechmarkov.probing.chunking import chunked, width
from mechmarkov.probing.dataset import Variables, variables
from mechmarkov.probing.effects import positions_in_turn, predictions
from mechmarkov.probing.preconditions import has_one_parent, parent_lag
from mechmarkov.probing.subject import Subject
from mechmarkov.theory.bootstrap import mean_after, standard_error
from mechmarkov.theory.kernel import kl
from mechmarkov.utils.threads import threads

from .context import Context
from .extraction import Program, contributions, extract, parts
from .fit import Fitted, Sample, fit, fitted, flat_numbers, refit
from .grammar import placed_terms, terms

# Other sequences than any subject's batch, whose seeds count on from `EVALUATION_SEED`.
FRESH_SEED = 0x5851F42D

# Predictions that vary by less than this from their own mean are float32 rounding: constant.
CONSTANT_NATS = 1e-9

MIN_SEQUENCES = 8
FIT_PREDICTIONS = 4096  # that numbers are fitted to, and as many that terms are chosen by
CHUNK_PAIRS = 1 << 20  # pairs of query and key of a context at once

# What `_left` measures of the program that is read from the weights.
WEIGHTS_NAMES = {
    "kl": "kl_by_weights",
    "kl_mean": "kl_mean",
    "explained": "explained_by_weights",
    "kl_at": "kl_by_weights_at",
    "kl_after": "kl_by_weights_after",
}

# What is measured of each model has no other axis and is in nats, but for these.
DIMS = {
    "kl_at": ("position",),
    "kl_after": ("state_from",),
    "kl_at_error": ("position",),
    "kl_after_error": ("state_from",),
    "kl_by_weights_at": ("position",),
    "kl_by_weights_after": ("state_from",),
    "kl_predictor": ("predictor",),
    "kl_without": ("path",),
}
UNITS = {"explained": "share", "explained_by_weights": "share", "numbers": "numbers"}

Row = dict[str, float | np.ndarray]

WORST_SHOWN = 6  # predictions, and the tokens in front of them, where the program fails most


def measure(subject: Subject) -> xr.Dataset:
    """Each model's program by its weights and the best of the grammar, on sequences that neither has seen.

    Returns, over [axis]:
        what `compare` measures of the program that is read from the weights, and of a run, not of its null:
        `kl` (nats) and its standard error over sequences `kl_error`: KL(model ‖ the fitted program);
        `explained` (share): 1 - kl / kl_mean; negative where the mean by itself does better, NaN where the
        predictions are constant;
        `kl_at` [.., position], `kl_after` [.., state_from] (nats): KL by position and by parent state;
        `kl_at_error`, `kl_after_error` (nats): their standard errors over sequences;
        `kl_predictor` [.., predictor] (nats): KL(model ‖ an exact predictor);
        `numbers`: how many were fitted;
        for the last model, which chose the terms: `kl_terms` [term] (nats), KL on the choosing sequences
        with only the bias and after each term is added, and `numbers_of_term` [term]; `term_table`
        [term, state_from, state_to] (scores): the table of each term that has one of single tokens;
        and `worst_*` [rank]: the predictions where the fitted program fails most, with the last tokens in
        front of them (-1 in front of the first), `worst_model` and `worst_program` (probability).

    Example:
        >>> import mechmarkov as mm
        >>> data = measure(mm.Subject.of(mm.example("walk"), sequences=8))
        >>> data.explained_by_weights.round(2).values.tolist()  # the embeddings and one head are all there is
        [1.0]
    """
    count = len(subject.batch.tokens)
    if count < MIN_SEQUENCES:
        raise ValueError(
            f"sequences is {count}, expected at least {MIN_SEQUENCES}: programs are fitted on one half, and "
            "chosen on the other"
        )
    fresh = draw(subject.source, subject.objective, subject.config, seed=FRESH_SEED, sequences=count)
    models = _model_predictions(subject, fresh)
    data = compare(subject, extract(subject), fresh, models)
    return data if subject.axis == "seed" else data.merge(_fitted(subject, fresh, models))


def _by_model(axis: str, rows: list[Row]) -> Variables:
    """Returns what was measured of each model, as variables over all."""
    columns: Variables = {}
    for name in rows[0]:
        values = np.stack([row[name] for row in rows])
        columns |= variables(UNITS.get(name, "nats"), (axis, *DIMS.get(name, ())), **{name: values})
    return columns


def _fitted(subject: Subject, fresh: Batch, models: np.ndarray) -> xr.Dataset:
    """The fitted programs on fresh sequences, as in `measure`."""
    axis, n = subject.axis, subject.source.n_states
    programs = fit_programs(subject)
    rows: list[Row] = []
    for model, program, known in zip(models, programs, subject.probabilities, strict=True):
        predicted = program_predictions(program, fresh, n)
        nats = np.maximum(kl(model, predicted), 0.0)
        nearest = np.array([kl(known, law).mean() for law in subject.exact.values()])
        left = _left(fresh, nats, model, known.mean((0, 1)))
        rows.append(left | {"kl_predictor": nearest, "numbers": float(program.numbers)})
    last = programs[-1]
    numbers = [n, *(sum(p.numel() for p in own) for own in last.parameters)]
    lags = [(), *(getattr(term, "lags", ()) for term in last.terms)]
    slots = max(map(len, lags)) or 1
    data = xr.Dataset(
        _by_model(axis, rows)
        | variables("nats", "term", kl_terms=np.array(last.left))
        | variables("numbers", "term", numbers_of_term=numbers)
        | variables("lag", ("term", "slot"), term_lags=[[*own, *[0] * (slots - len(own))] for own in lags])
        | variables("tokens", "term", term_order=[0, *(getattr(term, "order", 0) for term in last.terms)])
        | variables("score", ("term", "state_from", "state_to"), term_table=_tables(last, n)),
        coords={
            axis: subject.coordinates,
            "position": fresh.read.numpy(),
            "predictor": list(subject.exact),
            "term": ["bias", *(term.name for term in last.terms)],
            "term_kind": ("term", ["bias", *(type(term).__name__ for term in last.terms)]),
        },
    )
    return data.drop_vars("kl_mean").assign(_worst(fresh, nats, model, predicted))  # `compare` has it


def _tables(program: Fitted, n: int) -> np.ndarray:
    """The tables of single tokens of a program's terms, each row less its mean; NaN for terms without one."""
    shown = np.full((len(program.terms) + 1, n, n), np.nan)
    for i, own in enumerate(program.parameters, 1):
        tables = [p[:n] for p in own if p.ndim == 2 and p.shape in ((n, n), (n + 1, n))]
        if tables:
            shown[i] = (tables[-1] - tables[-1].mean(-1, keepdim=True)).numpy()
    return shown


def fit_programs(subject: Subject) -> list[Fitted]:
    """The best program of the grammar for each model; its terms are chosen for the last one.

    Numbers are fitted to the first half of the subject's sequences, terms chosen on the second. Earlier
    models have the same terms with numbers of their own.

    Example:
        >>> import mechmarkov as mm
        >>> subject = mm.Subject.of(mm.example("walk"), sequences=8)
        >>> [program] = fit_programs(subject)
        >>> program.left[0] > program.left[-1]  # nats, of the bias by itself and of all terms
        True
        >>> program_predictions(program, subject.batch, n_states=6).shape
        (8, 1, 6)
    """
    batch, n = subject.batch, subject.source.n_states
    half = len(batch.tokens) // 2
    count = max(1, min(len(batch.read), FIT_PREDICTIONS // half))
    reads = positions_in_turn(count, len(batch.read)).sort().values
    halves = slice(0, half), slice(half, 2 * half)
    contexts = [Context.of(batch.part(part), n, reads) for part in halves]

    def samples(member: int) -> list[Sample]:
        law = torch.from_numpy(subject.probabilities[member])[:, reads]
        return [Sample(context, law[part]) for context, part in zip(contexts, halves, strict=True)]

    train, judge = samples(len(subject.coordinates) - 1)
    with threads(1):  # small passes: threads would wait for each other
        length = batch.history.shape[1]
        last = fit(terms(n, length), train, judge, placed_terms(n, length))
        programs, numbers = [last], flat_numbers(last)
        for member in reversed(range(len(subject.coordinates) - 1)):
            numbers = refit(last.terms, numbers, samples(member)[0])
            programs.append(fitted(last.terms, numbers, ()))
    return programs[::-1]


def program_predictions(
    program: Fitted, batch: Batch, n_states: int
) -> Float[np.ndarray, "batch read state"]:
    """A fitted program's predictions on a batch (probability), in chunks of bounded memory.

    Args:
        program: One of `fit_programs(subject)`.
        batch: The sequences.
        n_states: The number of states of the source.
    """
    each = max(1, CHUNK_PAIRS // (len(batch.read) * batch.history.shape[1]))
    parts = [batch.part(slice(first, first + each)) for first in range(0, len(batch.tokens), each)]
    return torch.cat([program.predict(Context.of(part, n_states)) for part in parts]).numpy()


def compare(subject: Subject, program: Program, fresh: Batch, models: np.ndarray | None = None) -> xr.Dataset:
    """The models against programs that were read from their weights, on a batch.

    Args:
        subject: The models.
        program: Their programs.
        fresh: The batch.
        models: The models' predictions on it, if they are known.

    Returns, over [axis]:
        `kl_by_weights` (nats): KL(model ‖ program);
        `kl_mean` (nats): KL(model ‖ its mean prediction), what there is to explain;
        `explained_by_weights` (share): 1 - kl_by_weights / kl_mean;
        `kl_by_weights_at` [.., position], `kl_by_weights_after` [.., state_from] (nats): by position and by
        parent state;
        `kl_without` [.., path] (nats): KL of the program with that path at its mean over the batch that the
        program is from (not on null models);
        `lag_weight` [.., layer, head, lag], `match_bonus` [.., layer, head] (log odds): the selectors;
        `table` [.., path, state_from, state_to], `base` [.., state_to] (scores).
    """
    axis = subject.axis
    mean = subject.probabilities.mean((1, 2))
    models = _model_predictions(subject, fresh) if models is None else models
    rows: list[Row] = []
    for member, model in enumerate(models):
        nats, without = [], []
        for where, part in parts(fresh):
            added = list(contributions(program, part, member))
            total = program.base[member] + sum(added)
            nats.append(kl(model[where], _predict(subject, total)))
            if axis == "step":
                means = (path_mean[member] for path_mean in program.means.values())
                rest = (total - path + path_mean for path, path_mean in zip(added, means, strict=True))
                without.append([kl(model[where], _predict(subject, scores)).sum() for scores in rest])
        # Equal laws: rounding either way.
        left = _left(fresh, np.maximum(np.concatenate(nats), 0.0), model, mean[member])
        row = {WEIGHTS_NAMES[name]: value for name, value in left.items() if name in WEIGHTS_NAMES}
        if axis == "step":
            row["kl_without"] = np.sum(without, axis=0) / fresh.parents.numel()
        rows.append(row)
    per_head, tables = (axis, "layer", "head"), np.stack(list(program.tables.values()), axis=1)
    return xr.Dataset(
        _by_model(axis, rows)
        | variables("weight", (*per_head, "lag"), lag_weight=program.lag_weight)
        | variables("log odds", per_head, match_bonus=program.match_bonus)
        | variables("score", (axis, "path", "state_from", "state_to"), table=tables)
        | variables("score", (axis, "state_to"), base=program.base),
        coords={
            axis: subject.coordinates,
            "position": fresh.read.numpy(),
            "path": list(program.tables),
            "lag": np.arange(program.lag_weight.shape[-1]),
        },
        attrs={
            "source": subject.source.title(),
            "labels": list(subject.source.labels),
            "query_shift": subject.batch.parent_lag,
            "source_lag": parent_lag(subject.source) * has_one_parent(subject.source),
        },
    )


def _predict(subject: Subject, scores: np.ndarray) -> np.ndarray:
    return np.asarray(subject.objective.predict(torch.from_numpy(scores)).numpy())


def _left(fresh: Batch, nats: np.ndarray, model: np.ndarray, mean: np.ndarray) -> Row:
    """Returns what a program leaves of its model, from KL(model ‖ program) `[batch, read]`."""
    after, after_error = mean_after(fresh.parents.numpy(), nats, len(mean))
    left = float(nats.mean())
    kl_mean = max(0.0, float(kl(model, mean).mean()))
    return {
        "kl": left,
        "kl_error": float(standard_error(nats.mean(-1))),
        "kl_mean": kl_mean,
        "explained": 1 - left / kl_mean if kl_mean > CONSTANT_NATS else np.nan,
        "kl_at": nats.mean(0),
        "kl_after": after,
        "kl_at_error": standard_error(nats.T),
        "kl_after_error": after_error,
    }


def _worst(
    fresh: Batch, nats: np.ndarray, model: np.ndarray, predicted: np.ndarray
) -> dict[str, xr.Variable]:
    """The predictions with the largest KL, at most one for each run of tokens in front of them."""
    places: dict[tuple[int, ...], tuple[int, int]] = {}
    for flat in np.argsort(-nats, axis=None, kind="stable"):
        b, read = (int(i) for i in np.unravel_index(flat, nats.shape))
        known = int(fresh.known[read])
        tokens = fresh.history[b, max(0, known + 1 - WORST_SHOWN) : known + 1].tolist()
        places.setdefault((*[-1] * (WORST_SHOWN - len(tokens)), *tokens), (b, read))
        if len(places) == WORST_SHOWN:
            break
    index = tuple(np.array(list(places.values())).T)
    read = fresh.read.numpy()[index[1]]
    return {
        "worst_kl": xr.Variable("rank", nats[index], {"unit": "nats"}),
        "worst_position": xr.Variable("rank", read, {"unit": "position"}),
        "worst_tokens": xr.Variable(("rank", "token"), np.array(list(places)), {"unit": "state"}),
        "worst_model": xr.Variable(("rank", "state_to"), model[index], {"unit": "probability"}),
        "worst_program": xr.Variable(("rank", "state_to"), predicted[index], {"unit": "probability"}),
    }


def _model_predictions(subject: Subject, batch: Batch) -> Float[np.ndarray, "member batch read state"]:
    """The predictions of each model on a batch, run in chunks of bounded memory."""
    laws = np.empty((len(subject.decoder), *batch.targets.shape, subject.source.n_states))
    per_token = width(subject.config)
    for chunk in chunked(subject.decoder, batch.tokens, subject.chunk_elements, per_token=per_token):
        with fast_attention(chunk.model, batch.tokens):
            laws[chunk.members, chunk.sequences] = predictions(subject, chunk.model, batch, chunk.tokens)
    return laws
