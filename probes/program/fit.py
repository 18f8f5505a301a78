"""Fitting a program of the grammar to a model: the term that leaves least is added, then the next."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise

import numpy as np
import scipy.optimize
import torch
from jaxtyping import Float
from torch import Tensor

from mechmarkov.theory.kernel import FLOOR

from .context import Context, Scores
from .grammar import Parameters, Term

MAX_TERMS = 5
SCREEN_STEPS, JOINT_STEPS = 8, 40  # of L-BFGS
RIDGE = 1e-7  # unseen rows of a table stay 0

# A term has to take off this many nats, or this share of what there is to explain; below the other two there
# is nothing left to explain.
MIN_GAIN_NATS, MIN_GAIN_SHARE = 5e-4, 2e-3
DONE_NATS, DONE_SHARE = 2e-4, 2e-4

# Of terms that leave nearly as little as the best, at most this many times as much, that with the fewest
# numbers is taken.
NEARLY = 1.1
# A program that leaves this share of what there is to explain may begin with a table that changes over
# positions: if that leaves less than half as much.
POOR_SHARE, MUCH_LESS = 0.02, 0.5

# A term with fewer numbers that takes off nearly this share of what the best does is tried with all refitted:
# by itself it cannot undo the bias.
WORTH_A_REFIT = 0.9


@dataclass(frozen=True, eq=False)
class Fitted:
    """A program of the grammar with its numbers.

    Attributes:
        terms: Its terms, in the order that they were added.
        bias: A score for each state.
        parameters: The numbers of each term.
        left: KL on the sequences that chose the terms, in nats: with only the bias, and after each term.
    """

    terms: tuple[Term, ...]
    bias: Float[Tensor, " state"]
    parameters: tuple[Parameters, ...]
    left: tuple[float, ...]

    @property
    def numbers(self) -> int:
        """Returns how many numbers it has."""
        return self.bias.numel() + sum(p.numel() for term in self.parameters for p in term)

    def predict(self, context: Context) -> Scores:
        """Its predictions (probability) `[batch, read, state]`."""
        return _total(self.terms, flat_numbers(self), context).softmax(-1)


@dataclass(frozen=True, eq=False)
class Sample:
    """Contexts and what the model predicts after them."""

    context: Context
    law: Scores

    @cached_property  # a fit asks hundreds of times
    def _entropy(self) -> Float[Tensor, "batch read"]:
        return torch.special.entr(self.law).sum(-1)

    def kl(self, scores: Scores) -> Float[Tensor, ""]:
        """Mean KL from the model to a program with these scores, in nats."""
        return (-self._entropy - (self.law * scores.log_softmax(-1)).sum(-1)).mean()


def _total(terms: Sequence[Term], flat: Sequence[Tensor], context: Context) -> Scores:
    """The scores of a program whose numbers are in a row: its bias, then those of its terms."""
    scores = flat[0].expand(*context.token(1).shape, -1)
    for term, own in zip(terms, _by_term(terms, flat), strict=True):
        scores = scores + term.scores(context, own)
    return scores


def _by_term(terms: Sequence[Term], flat: Sequence[Tensor]) -> list[Parameters]:
    """The numbers of each term, of a program whose numbers are in a row behind its bias."""
    ends = accumulate((term.tensors for term in terms), initial=1)
    return [list(flat[start:stop]) for start, stop in pairwise(ends)]


def _minimise(loss: Callable[[list[Tensor]], Tensor], start: Sequence[Tensor], steps: int) -> list[Tensor]:
    """L-BFGS from a start, with a small ridge."""
    shapes = [p.shape for p in start]

    def tensors(x: np.ndarray) -> list[Tensor]:
        parts = torch.split(torch.from_numpy(x), [shape.numel() for shape in shapes])
        return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]

    def value(x: np.ndarray) -> tuple[float, np.ndarray]:
        with torch.enable_grad():
            numbers = [p.clone().requires_grad_() for p in tensors(x)]
            total = loss(numbers) + RIDGE * torch.stack([p.square().sum() for p in numbers]).sum()
            slopes = torch.autograd.grad(total, numbers)
        return float(total.detach()), torch.cat([slope.flatten() for slope in slopes]).numpy()

    first = torch.cat([p.flatten() for p in start]).numpy()
    options = {"maxiter": steps, "ftol": 1e-12, "gtol": 1e-9}
    return tensors(scipy.optimize.minimize(value, first, jac=True, method="L-BFGS-B", options=options).x)


def fit(candidates: Sequence[Term], train: Sample, judge: Sample, first: Sequence[Term] = ()) -> Fitted:
    """The best program that adding one term after the other finds.

    Args:
        candidates: The terms of the grammar: `terms(n_states, length)`.
        train: The contexts, and the model's predictions, that numbers are fitted to.
        judge: Those that terms are chosen by: of other sequences.
        first: Terms that it may begin with where programs of the others leave much.
    """
    best = _grown(candidates, train, judge, _Grown.empty(train, judge))
    if best.left[-1] > POOR_SHARE * best.left[0]:
        begun = [_Grown.empty(train, judge).with_term(term, train, judge) for term in first]
        least = min((one.left[-1] for one in begun), default=np.inf)
        if least < MUCH_LESS * best.left[-1]:
            near = NEARLY * least + max(DONE_NATS, DONE_SHARE * best.left[0])
            simplest = min((one for one in begun if one.left[-1] <= near), key=lambda one: one.numbers)
            best = _grown(candidates, train, judge, simplest)
    return fitted(best.terms, best.flat, best.left)


@dataclass(frozen=True, eq=False)
class _Grown:
    """Terms chosen so far, their numbers in a row, and what they left on the sequences that chose them."""

    terms: list[Term]
    flat: list[Tensor]
    left: list[float]

    @staticmethod
    def empty(train: Sample, judge: Sample) -> "_Grown":
        constant = train.law.mean((0, 1)).clamp_min(FLOOR).log()  # the model's mean prediction
        return _Grown([], [constant], [float(judge.kl(constant.expand_as(judge.law)))])

    @property
    def numbers(self) -> int:
        return sum(p.numel() for p in self.flat)

    def with_term(self, term: Term, train: Sample, judge: Sample) -> "_Grown":
        own = _screen(term, train, _total(self.terms, self.flat, train.context))
        terms = [*self.terms, term]
        flat = refit(terms, [*self.flat, *own], train)
        return _Grown(terms, flat, [*self.left, float(judge.kl(_total(terms, flat, judge.context)))])


def _grown(candidates: Sequence[Term], train: Sample, judge: Sample, start: _Grown) -> _Grown:
    """Returns a program with more terms, as long as each takes off enough."""
    flat, chosen, left = list(start.flat), list(start.terms), list(start.left)
    whole = left[0]
    done = max(DONE_NATS, DONE_SHARE * whole)
    worth = dict.fromkeys(candidates, np.inf)  # what each took off when it was last tried
    while len(chosen) < MAX_TERMS and left[-1] > done:
        offset, judged = (_total(chosen, flat, sample.context) for sample in (train, judge))
        fits: list[tuple[float, int, Term, Parameters]] = []
        least = left[-1]
        # A term seldom takes off more than it did before: those that cannot be the best are not tried again
        # (lazy greedy search, Minoux 1978). The simple ones come first.
        for term in sorted((term for term in candidates if term not in chosen), key=lambda t: -worth[t]):
            if least <= done or worth[term] < left[-1] - least:
                break
            own = _screen(term, train, offset)
            after = float(judge.kl(judged + term.scores(judge.context, own)))
            fits.append((after, sum(p.numel() for p in own), term, own))
            worth[term], least = left[-1] - after, min(least, after)
        if left[-1] - least < max(MIN_GAIN_NATS, MIN_GAIN_SHARE * whole):
            break
        near = NEARLY * least + done
        most = min(numbers for after, numbers, _, _ in fits if after <= near)
        bound = max(near, left[-1] - WORTH_A_REFIT * (left[-1] - least))
        tried = [f for f in fits if (f[0] <= near and f[1] == most) or (f[0] <= bound and f[1] < most)]
        for _, numbers, term, own in sorted(tried, key=lambda f: f[1]):
            terms, refitted = [*chosen, term], refit([*chosen, term], [*flat, *own], train)
            after = float(judge.kl(_total(terms, refitted, judge.context)))
            if numbers == most or after <= near:
                break
        chosen, flat = terms, refitted
        left.append(after)
    return _Grown(chosen, flat, left)


def _screen(term: Term, train: Sample, offset: Scores) -> Parameters:
    """A term's numbers with the rest of the program as it is."""
    start = term.start(train.context, train.law, offset.softmax(-1))
    return _minimise(lambda own: train.kl(offset + term.scores(train.context, own)), start, SCREEN_STEPS)


def refit(terms: Sequence[Term], start: Sequence[Tensor], train: Sample) -> list[Tensor]:
    """All numbers of a program together, from a start: KL from the model is least on some sequences.

    Args:
        terms: The program's terms.
        start: The bias, then each term's tensors, in their order.
        train: The contexts, and the model's predictions, that numbers are fitted to.
    """
    return _minimise(lambda flat: train.kl(_total(terms, flat, train.context)), start, JOINT_STEPS)


def fitted(terms: Sequence[Term], flat: Sequence[Tensor], left: Sequence[float]) -> Fitted:
    """A program from its numbers in a row.

    Args:
        terms: The program's terms.
        flat: The bias, then each term's tensors, in their order.
        left: KL (nats) with only the bias, and after each term.
    """
    return Fitted(tuple(terms), flat[0], tuple(_by_term(terms, flat)), tuple(left))


def flat_numbers(program: Fitted) -> list[Tensor]:
    """A program's numbers in a row: the bias, then each term's tensors."""
    return [program.bias, *(p for term in program.parameters for p in term)]
