"""KL from each exact predictor to the model, losses and accuracies, by position, state and temperature."""

import numpy as np
import xarray as xr

from mechmarkov.probing import Subject
from mechmarkov.probing.dataset import Variables, variables
from mechmarkov.probing.preconditions import best_of, has_one_parent, is_determined, parent_lag, predictor_of
from mechmarkov.theory.bootstrap import standard_error
from mechmarkov.theory.kernel import FLOOR

from .after_states import after_states, in_cells
from .compared import Compared
from .contexts import after_pairs
from .losses import accuracies, of_losses
from .tempered import tempered


def measure(subject: Subject) -> xr.Dataset:
    """KL from each exact predictor to the model, losses and accuracies.

    A state of a fixed chain that is rare, and in fewer than 64 of the predictions, is measured in contexts of
    its own and weighted by its stationary probability (`rare_states`).

    Returns:
        `kl` and its standard error over sequences `kl_error` [axis, predictor] (nats);
        `floored` [axis, predictor]: how many probabilities the model gave below 1e-12 to what that predictor
        holds possible, so that its KL is the floor's;
        `further_error` [axis, predictor] (nats): the standard error of its KL less the smallest;
        `kl_at` [axis, predictor, position] and its standard error `kl_at_error` (nats);
        `temperature` [axis, predictor] at which the model is nearest to it, `kl_tempered` and its standard
        error `kl_tempered_error` [axis, predictor] (nats): KL there; not of null models;
        `temperature_after` and `kl_tempered_after` [axis, state_from, predictor] (nats): the same after each
        state, of the best law and the bigram, for three states or more of one chain, and likewise
        `temperature_at` and `kl_tempered_at` [axis, position, predictor]. NaN where it is the law as it is,
        and behind the first place at which it is the law at no temperature;
        `kl_cell` and its standard error `kl_cell_error` [axis, predictor, state_from, position] (nats): KL
        from the best law and the bigram after each state at each position, of one chain, where these are at
        most 2048; NaN where no two sequences have it; `kl_pair` and its standard error `kl_pair_error` [axis,
        predictor, state_before, state_from] (nats): KL after each pair of last tokens, of up to 16 states,
        which the share `share_pair` [state_before, state_from] of the predictions follows; `told_before`
        [axis, state_from] and `told_last` [axis, state_before] (nats): the largest KL of mean predictions
        after a pair from those after its later, or after its earlier state;
        `loss`, `best_loss` and the standard error of their difference `excess_loss_error` [axis], and
        `predictor_loss` [predictor] (nats, on the sampled next states);
        `excess` [axis], `gap` and, with a Bayes-optimal predictor, `predictor_excess` [predictor] (nats):
        what the model, the unigram and each exact predictor lose to the best one, expected
        (without a Bayes-optimal one: on the sampled next states, to the predictor with the lowest loss);
        `left` and its standard error `left_error` [axis]: the first over the second; `above_unigram` and its
        standard error `above_unigram_error` [axis] (nats): the first less the second;
        `accuracy`, `accuracy_error` and `optimal_accuracy` [axis] (probability: exact expectations where the
        Bayes-optimal predictor has a closed form, frequencies otherwise);
        `implied` [axis, state_from, state_to] (probability): the mean prediction after each parent state;
        `kl_after` and its standard error `kl_after_error` [axis, state_from, predictor] (nats), `loss_after`
        [axis, state_from] (nats) and `accuracy_after` [axis, state_from] (probability): the same scores after
        each parent state, which the share `share_after` [state_from] of the predictions follows;
        `varies_after` [state_from, predictor] (nats): KL of each predictor from its mean after a state: 0
        where no other token tells more;
        `kernel` [state_from, state_to] (probability): P, for a source with one chain;
        of tokens `loss_per_symbol` [axis], its standard error and `least_per_symbol` (nats a symbol of their
        source; NaN where its entropy rate has no closed form).

    Example:
        >>> import mechmarkov as mm
        >>> data = measure(mm.Subject.of(mm.example("walk"), sequences=8))
        >>> data.kl.sel(predictor=["unigram", "bigram"]).round(1).values.tolist()  # nats, at its one step
        [[0.5, 0.2]]
    """
    seen, source = Compared.of(subject), subject.source
    measured = _distances(seen) | of_losses(seen) | accuracies(seen) | after_states(seen)
    if subject.axis == "step":
        measured |= tempered(seen) | in_cells(seen) | after_pairs(subject, seen.nats)
    if (P := getattr(source, "P", None)) is not None:
        measured |= variables("probability", ("state_from", "state_to"), kernel=np.array(P))
    before_is_parent = has_one_parent(source) and parent_lag(source) == 1
    return xr.Dataset(
        measured,
        coords={
            subject.axis: subject.coordinates,
            "predictor": list(subject.exact),
            "position": subject.batch.read.numpy(),
        },
        attrs={
            "source": source.title(),
            "n_states": source.n_states,
            "labels": list(source.labels),
            "redraws": int(source.redraws),
            "determined": int(is_determined(source)),
            "sequences": len(seen.onehot),
            "unigram": predictor_of(source, "unigram"),
            "bigram": predictor_of(source, "bigram"),
            "objective": subject.objective.kind,
            "state_before": "parent state" if before_is_parent else "last state",
            # A lone checkpoint from elsewhere has step 0 where its step is not known.
            "starts_untrained": int(subject.run.recipe is not None or subject.run.n_steps > 1),
        }
        | (
            {"no_best": seen.best} if isinstance(seen.best, str) else {"best": best_of(source, subject.exact)}
        ),
    )


def _distances(seen: Compared) -> Variables:
    """KL from each exact predictor (nats), how sure it is, and at each position."""
    axes, exact = (seen.subject.axis, "predictor"), seen.laws
    smallest = seen.kl.mean(-1).argmin(-1)
    further = seen.kl - seen.kl[np.arange(len(seen.model)), smallest][:, None]
    error = np.hypot(standard_error(seen.kl), seen.rare.kl_error)
    floored = np.array([[((q < FLOOR) & (p > 0)).sum() for p in exact] for q in seen.model])
    by_position = {
        "kl_at": seen.nats.mean(-2),
        "kl_at_error": standard_error(seen.nats.swapaxes(-1, -2)),
    }
    return (
        variables("nats", axes, kl=seen.kl.mean(-1), kl_error=error)
        | variables("nats", axes, further_error=standard_error(further))
        | variables("probabilities", axes, floored=floored)
        | variables("nats", (*axes, "position"), **by_position)
    )
