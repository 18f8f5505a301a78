"""How far the logits of a model and of its conversion are apart."""

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mechmarkov.importing.live.disagreement import (
    agreeing,
    first_to_differ,
    not_finite,
    rounded_buffers,
    rounded_logits,
)
from mechmarkov.importing.live.inside import Inside, attribute, is_parallel
from mechmarkov.importing.live.logits import Answer, Form, Tokens, ask, forms
from mechmarkov.importing.live.untouched import our_own_numbers
from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.safe.plain_data import RunFileError

MAX_LOGIT_DIFFERENCE = 1e-4  # of the logits' size: what rounding to float32 may make
SURELY_ROUNDING = 1e-5  # what is above this in float32 is compared in float64, where that can be computed
LOG_OF_ONE = 1e-4  # probabilities of a forward pass that ends in a softmax add up to one as closely
DTYPES = (torch.float32, torch.float64)
DIVERGED = "have its weights grown without bound? a smaller learning rate keeps them small"


@dataclass(frozen=True)
class Difference:
    """The distance between the logits of two models.

    Attributes:
        largest: The largest absolute difference.
        scaled: The largest over the logit's size: its own, or the largest logit's where that is below 1.
    """

    largest: float
    scaled: float

    def is_below(self, bound: float) -> bool:
        """Returns whether it is at most a share of the logits' size; NaN is not."""
        return self.scaled <= bound


def difference(logits: Float[Tensor, "*axes"], ours: Float[Tensor, "*axes"]) -> Difference:
    """Returns how far two models' logits on the same tokens are apart.

    Example:
        >>> difference(torch.tensor([10.0, 0.5]), torch.tensor([11.0, 0.0]))
        Difference(largest=1.0, scaled=0.5)
    """
    theirs = logits.cpu().double()
    apart = (theirs - ours.cpu().double()).abs()
    # Logits of an untrained model may all be 0.01, and a window that is not read changes 1e-4 of them.
    size = theirs.abs().clamp_min(min(1.0, max(float(theirs.abs().max()), 1e-300)))
    return Difference(float(apart.max()), float((apart / size).max()))


def disagree(apart: Difference, who: str, bound: float, advice: str = "") -> RunFileError:
    """Returns the error about logits that differ by more than a share of their size, with both numbers.

    Args:
        apart: The distance, from `difference`.
        who: The beginning of the sentence.
        bound: The share that is allowed.
        advice: The end of the sentence.

    Example:
        >>> str(disagree(Difference(largest=0.5, scaled=0.5), "the two disagree:", 1e-4))
        'the two disagree: logits differ by up to 0.5, 0.5 of their size, expected at most 1e-04'
    """
    return RunFileError(
        f"{who} logits differ by up to {apart.largest:.3g}, {apart.scaled:.1g} of their size, "
        f"expected at most {bound:.0e}{advice}"
    )


@dataclass(frozen=True)
class _Try:
    """Keeps what a model answered in a number type, and how far its conversion is from that."""

    dtype: torch.dtype
    answer: Answer
    apart: Difference


@dataclass(frozen=True)
class Asked:
    """Keeps what a model answered to one form of tokens: in float32 and, where that differs, in float64.

    Attributes:
        name: What is said of the form.
        form: Makes of tokens what the model reads.
        tried: Its answers, one for each number type.
    """

    name: str
    form: Form
    tried: list[_Try]

    @property
    def apart(self) -> Difference:
        """Returns how far its conversion is from that."""
        return self.tried[-1].apart

    @property
    def rounding(self) -> float:
        """Returns how much rounding to float32 makes of the model's own logits, of their size."""
        if len(self.tried) < 2:
            return SURELY_ROUNDING
        own = zip(*(one.answer.candidates for one in self.tried), strict=False)
        return max(difference(exact, rounded).scaled for rounded, exact in own)

    @property
    def bound(self) -> float:
        """Returns how much of their size logits may differ by.

        Where a model rounds to float32 in float64 too, as some norms do, its two answers show how much
        rounding makes: a wrong activation makes more than that.
        """
        if len(self.tried) < 2:
            return MAX_LOGIT_DIFFERENCE
        return min(MAX_LOGIT_DIFFERENCE, max(SURELY_ROUNDING, 4 * self.rounding))

    def agrees(self) -> bool:
        """Returns whether its conversion has these logits."""
        return self.apart.is_below(self.bound)


def _asked(
    model: nn.Module, decoder: HookedDecoder, tokens: Tokens, name: str, form: Form, as_laws: bool = True
) -> Asked:
    """Compare in float32 and, where that differs, in float64; a ValueError where neither can be asked."""
    tried, failure = list[_Try](), None
    for dtype in DTYPES:
        try:
            answer = ask(model, tokens, decoder.config.d_vocab_out, dtype, form)
        except ValueError as error:
            failure = failure or error
            continue
        tried.append(_Try(dtype, answer, _least(answer, _ours(decoder, tokens, dtype), as_laws=as_laws)))
        if tried[-1].apart.is_below(SURELY_ROUNDING):
            break
    if not tried:
        raise failure or AssertionError
    return Asked(name, form, tried)


def _forms(decoder: HookedDecoder, tokens: Tokens) -> dict[str, Form]:
    """Returns what a model may read, where no position of it is beyond a context."""
    return forms(decoder.config.d_vocab, position_first=len(tokens) <= decoder.config.n_ctx)


def _disagreement(
    live: Inside,
    asked: nn.Module,
    decoder: HookedDecoder,
    tokens: Tokens,
    ways: Sequence[Asked],
    advice: str,
    modules: Mapping[str, str],
    as_laws: bool,
) -> RunFileError:
    """Returns the error about logits that differ, with what makes them differ as far as that is seen."""
    reached = [first_to_differ(live.model, decoder, tokens, way.form, modules) for way in ways]
    furthest = max(range(len(ways)), key=lambda number: reached[number][0])  # the plainest of several
    way, (_, inside) = ways[furthest], reached[furthest]
    dtype, answer, bound = way.tried[-1].dtype, way.tried[-1].answer, way.bound

    def agrees(other: HookedDecoder) -> bool:
        return _least(answer, _ours(other, tokens, dtype), as_laws=as_laws).is_below(bound)

    read = f", read as {way.name}," if way.name else ""
    who = f"{live.kind()}{read} and its conversion disagree:"
    if asked is not live.model:
        who = f"{type(asked).__name__}{read} and the conversion of the {live.kind()} that it holds disagree:"
        advice = f"; if that {live.kind()} is meant, pass {attribute(live.path)}{advice}"
    why = not_finite(answer) or _random(asked, tokens, way.form, decoder) or rounded_logits(answer)
    if not why:
        field = agreeing(decoder, agrees)
        why = f"; with given={field} they agree" if field else rounded_buffers(asked) + inside + advice
    return disagree(way.tried[0].apart, who, bound, why)


def compare(
    live: Inside,
    decoder: HookedDecoder,
    tokens: Tokens,
    advice: str = "",
    *,
    as_laws: bool = True,
    modules: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Compare a live model with its conversion, on the same tokens.

    Both compute in float32, without autocast. Where that fails, or differs by more than 1e-5 of the logits'
    size (a forward pass with autocast of its own, TF32), both compute in float64, which is free of these.

    Args:
        live: The model, from `inside`. What holds it is asked, where that gives logits too.
        decoder: The conversion.
        tokens: What both read.
        advice: The end of the sentence about a difference.
        as_laws: Whether the model's law is the softmax of the decoder's logits: a forward pass may then end
            in one.
        modules: The path of the module that holds each weight, by HookedTransformer's name, where known.

    Returns:
        Entries of a run's provenance: `logit_difference`, and how it was measured.

    Raises:
        ValueError: The model gives no logits, or others; one line.

    Example:
        >>> from mechmarkov.importing.live.inside import inside
        >>> from mechmarkov.models import DecoderConfig
        >>> config = DecoderConfig(n_layers=1, d_model=4, n_ctx=6, d_head=4, d_vocab=2, attn_only=True)
        >>> compare(inside(HookedDecoder(config)), HookedDecoder(config), torch.zeros(1, 6, dtype=torch.long))
        {'logit_difference': 0.0}
    """
    asked, width = live.model, decoder.config.d_vocab_out
    if live.path and not is_parallel(live.holder):
        with suppress(ValueError):  # a LightningModule may have no forward pass, or take batches
            if not ask(live.holder, tokens, width, torch.float32).last:
                asked = live.holder
    ways, failure = list[Asked](), None
    for name, form in _forms(decoder, tokens).items():  # the plainest first; others where it disagrees
        try:
            ways.append(_asked(asked, decoder, tokens, name, form, as_laws))
        except ValueError as error:
            failure = failure or error
        if ways and ways[-1].agrees():
            break
    if not ways:
        raise failure or AssertionError
    if not (way := ways[-1]).agrees():
        raise _disagreement(live, asked, decoder, tokens, ways, advice, modules or {}, as_laws)
    dtype, answer, least = way.tried[-1].dtype, way.tried[-1].answer, way.apart
    if not math.isfinite(way.tried[0].apart.largest):
        raise RunFileError(
            f"the logits of {live.kind()} are finite in float64 only, expected so in float32: {DIVERGED}"
        )
    provenance: dict[str, Any] = {"logit_difference": least.largest}
    if dtype is torch.float64:
        provenance["compared_in"] = "float64"
        if len(way.tried) > 1:  # what its own forward pass makes of float32 weights
            provenance["logit_difference_of_its_forward"] = way.tried[0].apart.largest
    if least.scaled < _least(answer, _ours(decoder, tokens, dtype), as_laws=False).scaled:
        provenance["compared_as"] = "log probabilities"
    if answer.last:
        provenance["compared_at"] = "the last position"
    if way.name:
        provenance["reads"] = way.name
    if live.path:
        provenance["attribute"] = live.path
    return provenance


def nearest(live: Inside, decoders: Iterable[HookedDecoder]) -> tuple[int, int | None, HookedDecoder]:
    """Returns which of several conversions has a live model's logits, for the same sequences of tokens.

    They are compared in float64 where the model can: it tells gelu from its tanh form at small weights too.

    Returns:
        The number of the nearest, that of another that is as near or None, and the nearest itself.

    Raises:
        ValueError: The model gives no logits.
    """
    answers = list[Answer]()
    scaled, best, runner_up = list[float](), 0, 0
    nearest_two: dict[int, HookedDecoder] = {}  # the two nearest
    for number, decoder in enumerate(decoders):
        if not answers:
            config, drawn = decoder.config, torch.Generator("cpu").manual_seed(0)
            tokens = torch.randint(config.d_vocab, (2, config.n_ctx), generator=drawn, device="cpu")
            answers, dtype = _answers(live.model, decoder, tokens, torch.float64), torch.float64
            if not answers:
                answers, dtype = _answers(live.model, decoder, tokens, torch.float32), torch.float32
            if not answers:
                ask(live.model, tokens, config.d_vocab_out, dtype)  # which says why
        ours = _ours(decoder, tokens, dtype)
        scaled.append(min(_least(answer, ours).scaled for answer in answers))
        nearest_two[number] = decoder
        best, runner_up = (
            sorted(nearest_two, key=scaled.__getitem__)[:2] if len(nearest_two) > 1 else (number, number)
        )
        nearest_two = {one: nearest_two[one] for one in (best, runner_up)}
    is_tie = scaled[runner_up] <= min(10 * scaled[best], SURELY_ROUNDING)
    return best, runner_up if is_tie else None, nearest_two[best]


def nearest_form(model: nn.Module, decoder: HookedDecoder, tokens: Tokens) -> Asked | None:
    """Returns what a model answered to the form of tokens by which logits are nearest.

    None where it cannot be asked, as one that takes another length only.
    """
    ways = list[Asked]()
    for name, form in _forms(decoder, tokens).items():
        with suppress(ValueError):
            ways.append(_asked(model, decoder, tokens, name, form))
            if ways[-1].apart.is_below(MAX_LOGIT_DIFFERENCE):
                break
    return min(ways, key=lambda way: way.apart.scaled, default=None)


def _answers(model: nn.Module, decoder: HookedDecoder, tokens: Tokens, dtype: torch.dtype) -> list[Answer]:
    """Returns what a model answers to each form of tokens that it takes."""
    answers = []
    for form in _forms(decoder, tokens).values():
        with suppress(ValueError):
            answers.append(ask(model, tokens, decoder.config.d_vocab_out, dtype, form))
    return answers


def _least(
    answer: Answer, ours: Float[Tensor, "batch position d_vocab_out"], *, as_laws: bool = True
) -> Difference:
    """The difference of the tensor that is nearest: one that agrees by chance is not to be feared.

    What looks like log probabilities may be logits that nearly add up to one: they are compared as both. So
    are probabilities, of which the logarithm is.
    """
    ours = ours[:, -1:] if answer.last else ours
    distances = [difference(one, ours) for one in answer.candidates]
    laws = [one for one in answer.candidates if as_laws and _are_log_probabilities(one)]
    laws += [one.log() for one in answer.candidates if as_laws and _are_probabilities(one)]
    distances += [difference(one, ours.log_softmax(-1)) for one in laws]
    return min(distances, key=lambda distance: distance.scaled)


def _are_log_probabilities(logits: Tensor) -> bool:
    """Returns whether a forward pass ends in `log_softmax`, which changes no law."""
    return bool((logits.logsumexp(-1).abs() <= LOG_OF_ONE).all())


def _are_probabilities(logits: Tensor) -> bool:
    """Returns whether a forward pass ends in `softmax`."""
    return bool((logits >= 0).all()) and bool(((logits.sum(-1) - 1).abs() <= LOG_OF_ONE).all())


def _random(model: nn.Module, tokens: Tokens, form: Form, decoder: HookedDecoder) -> str:
    """Returns advice where a model gives other logits each time, else nothing."""
    width = decoder.config.d_vocab_out
    with suppress(ValueError):
        one, two = (ask(model, tokens, width, torch.float32, form).candidates[0] for _ in range(2))
        if not difference(one, two.to(one)).is_below(SURELY_ROUNDING):
            return (
                "; it gives other logits each time, in evaluation mode too: is a dropout left on, "
                "`dropout_p=self.dropout` for `dropout_p=self.dropout if self.training else 0.0`?"
            )
    return ""


def _ours(
    decoder: HookedDecoder, tokens: Tokens, dtype: torch.dtype
) -> Float[Tensor, "batch position d_vocab_out"]:
    with our_own_numbers(), torch.no_grad():
        try:
            return decoder.to(dtype)(tokens)
        finally:
            decoder.float()  # which changes no bit of float32 weights
