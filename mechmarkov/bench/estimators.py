"""The white-box track: the expected loss of a model, or an ablation's effect on it, in few forward passes.

The law of the sequences is known. So a program that reads only position and parent has an expected loss in
closed form, and where it is read off the weights it takes no pass. Over a sample its loss moves with the
model's: it is a control variate (Lavenberg & Welch 1981). Sampling is the baseline. The exact value is a sum
over all sequences.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mechmarkov.bench.counterfactuals import law_of
from mechmarkov.certify.bounds.ball import EXACT
from mechmarkov.certify.bounds.every import bounds, why_no_bounds
from mechmarkov.certify.bounds.layer import Layer
from mechmarkov.certify.contexts import Contexts
from mechmarkov.certify.programs import middle
from mechmarkov.objectives import evaluated_length
from mechmarkov.probing.batch import Batch, batch_of, draw
from mechmarkov.probing.subject import check_run
from mechmarkov.runs.run import Run
from mechmarkov.sources.sampling.whole_law import check_fixed, whole_law
from mechmarkov.theory.kernel import FLOOR

SECONDS = 20.0  # budget of reading a program off
SPARE = 3  # sequences for each coefficient that is fitted, and for the mean
RANK_TOLERANCE = 1e-9  # of controls' singular values: programs may be one and the same
Program = Float[np.ndarray, "read parent state"]


@dataclass(frozen=True)
class Estimated:
    """An estimate in nats.

    Attributes:
        value: The estimate.
        error: Its standard error.
        passes: Sequences that went through a model.
    """

    value: float
    error: float
    passes: int


def read_program(run: Run) -> Program | str:
    """The law after each parent at each position, read off the weights; or why none can be read.

    It is the middle of the log odds that the weights allow in any context (`mechmarkov.certify`): no sequence
    is drawn and no pass is taken. Where these have no bound it is uniform. Any table is a valid control.

    Raises:
        TypeError: It is not a run.
        ValueError: The source is not a fixed chain.
    """
    check_run(run)
    check_fixed(run.source)
    contexts = Contexts.of(run.source, run.objective, run.config)
    softmax = run.objective.kind == "cross_entropy"
    if (why := why_no_bounds(run.config, contexts.n_states, softmax)) is not None:
        return why
    if run.config.n_layers > 1:
        return f"it has {run.config.n_layers} layers, and what bounds say of these is no closed form"
    weights = {name: value.double().numpy() for name, value in run.model(-1).state_dict().items()}
    try:
        found = bounds(Layer(run.config, weights, EXACT), contexts, softmax, SECONDS)
    except (TimeoutError, ValueError) as error:
        return str(error)
    table = np.full((len(contexts.reads), contexts.n_states, contexts.n_states), 1 / contexts.n_states)
    for read, parent in np.argwhere(found.exists):
        if (law := middle(found.log_odds[read, parent][None])) is not None:
            table[read, parent] = law.clip(FLOOR)
    return table


def exact_loss(run: Run) -> float:
    """The expected loss of a model under the law of its source, as a sum over all sequences (nats).

    Raises:
        TypeError: It is not a run.
        ValueError: The sum has too many terms, or the source is not a fixed chain.

    Example:
        >>> import mechmarkov as mm
        >>> from mechmarkov.models.constructions.lookup_tables import value_table
        >>> source = mm.Binary(p=0.2, q=0.3)
        >>> model = value_table(torch.tensor(source.P).log().float(), n_ctx=4)
        >>> run = mm.Run.from_model(model, source=source)
        >>> round(exact_loss(run), 4) == round(source.entropy_rate, 4)  # it predicts by the chain itself
        True
    """
    check_run(run)
    length = evaluated_length(run.source, run.objective, run.config.n_ctx) - 1  # the last state is a target
    states, weights = whole_law(run.source, length)
    batch = batch_of(torch.cat([states, states[:, :1]], 1), run.source.n_states, run.objective, run.config)
    return float(_losses(run, batch) @ weights)


def estimate(
    run: Run, sequences: int, *, seed: int, ablated: Run | None = None, programs: Sequence[Program] = ()
) -> Estimated:
    """Estimate the expected loss of a model, or how much larger it is for another one (nats).

    Args:
        run: A run whose source has a known best law.
        sequences: How many are drawn.
        seed: What they are drawn with.
        ablated: The other model: the same with a part at zero, for the effect of that part.
        programs: Control variates: of either model, from `read_program`. Without any it is the sample's mean.

    Raises:
        TypeError: It is not a run.
        ValueError: Fewer sequences than programs and three, no best law, or, with programs, a source that is
            not a fixed chain.

    Example:
        >>> import mechmarkov as mm
        >>> run = mm.example("walk")
        >>> controlled = estimate(run, 64, seed=0, programs=[read_program(run)])
        >>> controlled.error < estimate(run, 64, seed=0).error
        True
    """
    check_run(run)
    if sequences < (least := len(programs) + SPARE):
        raise ValueError(f"sequences is {sequences}, expected at least {least}")
    batch = draw(run.source, run.objective, run.config, seed=seed, sequences=sequences)
    values = _losses(run, batch)
    if ablated is not None:
        values = _losses(ablated, batch) - values
    known = [_of_program(run, batch, program) for program in programs]
    controls = np.array([control for control, _ in known]).reshape(len(known), sequences)
    value, error = with_controls(values.numpy(), controls, np.array([mean for _, mean in known]))
    return Estimated(value, error, sequences * (1 if ablated is None else 2))


def with_controls(
    values: Float[np.ndarray, " sequence"],
    controls: Float[np.ndarray, "control sequence"],
    means: Float[np.ndarray, " control"],
) -> tuple[float, float]:
    """The mean of values whose controls have known means, and its standard error.

    Coefficients are those of least squares on the same sequences, which leaves a bias of order 1 / n.

    Example:
        >>> control = np.array([0.0, 1.0, 2.0, 3.0])
        >>> value, error = with_controls(1 + 2 * control, control[None], np.array([2.0]))
        >>> round(value, 9), round(error, 9)
        (5.0, 0.0)
    """
    n = len(values)
    off, away = controls.T - controls.mean(1), means - controls.mean(1)
    back = np.linalg.pinv(off, rcond=RANK_TOLERANCE)  # control, sequence
    slopes = back @ (values - values.mean())
    rest = values - values.mean() - off @ slopes
    free = n - 1 - np.linalg.matrix_rank(off)
    # The error of a regression's value where the controls have their means.
    error = np.sqrt(rest @ rest / free * (1 / n + np.square(away @ back).sum()))
    return float(values.mean() + away @ slopes), float(error)


@torch.no_grad()
def _losses(run: Run, batch: Batch) -> Float[Tensor, " batch"]:
    """The loss of each sequence under the exact law of each next state, mean over what is read."""
    scores = run.model(-1).double()(batch.tokens)[:, batch.read]
    return run.objective.expected_loss(scores, law_of(run.source, batch)).mean(1)


def _of_program(run: Run, batch: Batch, program: Program) -> tuple[Float[np.ndarray, " sequence"], float]:
    """The program's expected loss on each sequence, and over all of them."""
    source = check_fixed(run.source)
    loss = -np.einsum("ij,rij->ri", source.P, np.log(program))  # read, parent
    of_sequences = loss[np.arange(len(program)), batch.parents.numpy()].mean(1)
    return of_sequences, float((loss @ source.pi).mean())
