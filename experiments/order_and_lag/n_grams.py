"""n-gram models set by hand (Svete & Cotterell): by heads, by layers, and as digits, against their tables."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import plotly.graph_objects as go
import torch
from jaxtyping import Float
from torch import Tensor

import mechmarkov as mm
from experiments.claims import Finding, holds
from experiments.exactness import exactly
from experiments.figures import style, titled
from experiments.harness import Measured, every_sequence
from mechmarkov.models.constructions.n_grams import Form, n_gram_error, n_gram_model

ROUNDING = 1e-11  # nats, of a log-probability in float64
LENGTHS = {2: 8, 3: 6, 4: 5}  # of all sequences, by the number of symbols
ORDERS = (1, 2, 3)
SHARPNESS = (6.0, 8.0, 12.0, 16.0, 20.0, 24.0, 28.0)
FORMS: dict[Form, str] = {
    "heads": "n - 1 heads",
    "layers": "n - 1 layers",
    "digits": "one head, digits by softmax",
}


def tables(n: int, order: int) -> Iterator[Float[np.ndarray, "*history state"]]:
    """Uneven tables of laws, and one in which every history rules a symbol out."""
    shape = (n,) * (order + 1)
    laws = [np.exp(2 * np.sin(k * np.arange(n ** (order + 1)) ** 1.5)).reshape(shape) for k in range(1, 5)]
    yield from (law / law.sum(-1, keepdims=True) for law in laws[:3])
    zeros = laws[3]
    np.put_along_axis(zeros, (np.indices(shape[:-1]).sum(0) % n)[..., None], 0, axis=-1)
    yield zeros / zeros.sum(-1, keepdims=True)


def hardmax(scores: Float[Tensor, "... key"]) -> Float[Tensor, "... key"]:
    """All mass on the first of the largest scores: unique hard attention."""
    return torch.nn.functional.one_hot(scores.argmax(-1), scores.shape[-1]).to(scores.dtype)


def sparsemax(scores: Float[Tensor, "... key"]) -> Float[Tensor, "... key"]:
    """The point of the simplex that is nearest to the scores (Martins & Astudillo 2016)."""
    falling = scores.sort(-1, descending=True).values
    ranks = torch.arange(1, scores.shape[-1] + 1)
    excess = falling.cumsum(-1) - 1
    support = (ranks * falling > excess).sum(-1, keepdim=True)
    return (scores - excess.gather(-1, support - 1) / support).clamp_min(0)


LAWS = {"hard attention": hardmax, "sparse attention": sparsemax}


def attention_by(model: mm.HookedDecoder, law: Callable[[Tensor], Tensor]) -> AbstractContextManager[None]:
    """Within it, the pattern of every head is that law of its scores, in place of their softmax."""
    kept: list[Tensor] = []
    hooks: list[Any] = []
    for layer in range(model.config.n_layers):
        at = f"blocks.{layer}.attn.hook_"
        hooks.append((f"{at}attn_scores", lambda scores, hook: kept.append(scores)))
        hooks.append((f"{at}pattern", lambda pattern, hook: law(kept.pop())))
    return model.hooks(hooks)


def error(
    kernel: Float[np.ndarray, "*history state"],
    form: Form,
    sharpness: float = 60.0,
    law: Callable[[Tensor], Tensor] | None = None,
) -> float:
    """The largest difference of a log-probability from the table's (nats), on every sequence.

    A probability of zero counts as one of e^-60, which is what the model has for it.
    """
    n, order = len(kernel), kernel.ndim - 1
    tokens = every_sequence(n, LENGTHS[n])
    model = n_gram_model(kernel, LENGTHS[n], form=form, sharpness=sharpness, dtype=torch.float64)
    with torch.no_grad(), attention_by(model, law) if law else nullcontext():
        said = model(tokens)[:, order - 1 :].log_softmax(-1).numpy()
    windows = np.lib.stride_tricks.sliding_window_view(tokens.numpy(), order, axis=1)
    exact = np.log(kernel[tuple(np.moveaxis(windows, -1, 0))].clip(min=np.exp(-60)))
    return float(np.abs(said - exact).max())


def printed_digits(history: tuple[int, ...], n: int, position: int, number: Callable[[Any], Any]) -> Any:
    """The one-hot history as the authors' code finds it: `[place, symbol]`, the newest token last.

    Tokens are `10^-(t+1)` times their one-hot vector. One head averages the last n - 1 of them; the mean is
    scaled to a fixed sum, and one layer a digit reads it from the first (`ngrams/transform/single.py`).
    """
    k, ten = len(history), number(10)
    x = np.array([[number(0)] * n for _ in range(k)])
    for j, state in enumerate(history):
        x[j, state] = ten ** -(position - k + 1 + j + 1)
    mean = x.sum(0) / number(k)
    total = sum(ten ** -(j + 1) for j in range(k))
    rest = mean / mean.sum() * total if mean.sum() else mean
    digits = []
    for j in range(k):
        above = (rest * ten ** (j + 1) - 1) * ten ** (k + 1) + 1
        digits.append(np.clip(above, number(0), number(1)))
        rest = rest - digits[-1] * ten ** -(j + 1)
    return np.array(digits)


def is_read(history: tuple[int, ...], n: int, position: int, number: Callable[[Any], Any]) -> bool:
    """Whether that finds the history."""
    found = printed_digits(history, n, position, number).astype(float)
    return bool(np.abs(found - np.eye(n)[list(history)]).max() < 1e-3)


@exactly
def n_grams(quick: bool) -> Measured:
    """Hand-set n-gram models against their tables, by hard, sparse and softmax attention."""
    sizes = [(2, 2)] if quick else [*product(LENGTHS, ORDERS)]
    kernels = [kernel for n, order in sizes for kernel in tables(n, order)]
    setting = (
        f"{len(kernels)} tables, a quarter with zeros (as e^-60): n from {min(k for _, k in sizes) + 1} to "
        f"{max(k for _, k in sizes) + 1} on 2 to {max(n for n, _ in sizes)} symbols; all sequences of "
        f"{', '.join(f'{LENGTHS[n]} ({n} symbols)' for n in sorted({n for n, _ in sizes}))}; float64"
    )
    findings = []
    for form, (name, law) in product(("heads", "layers"), LAWS.items()):
        worst = max(error(kernel, form, law=law) for kernel in kernels)
        findings.append(
            Finding(
                f"n_gram_{form}",
                f"at most {worst:.0e} nats from the table in any log-probability",
                holds(worst < ROUNDING),
                f"{setting}; {law.__name__} of scores 60 and 0",
                "computed exactly",
                number=f"off by at most {worst:.0e} nats",
                case=name,
            )
        )
    soft = max(error(kernel, "digits") for kernel in kernels)
    findings.append(
        Finding(
            "n_gram_digits",
            f"at most {soft:.0e} nats from the table in any log-probability",
            holds(soft < ROUNDING),
            f"{setting}; softmax, attention logits 60 + j log K at lag j + 1, 0 elsewhere",
            "computed exactly",
            number=f"off by at most {soft:.0e} nats",
        )
    )
    return Measured([*findings, *_printed(quick), _bounded(kernels, setting)], {"n_grams": _figure()})


def _printed(quick: bool) -> list[Finding]:
    """The printed encoding: in exact fractions, and in floating point from which position on it fails."""
    orders, positions = ORDERS[:2] if quick else ORDERS, (5, 60) if quick else (5, 60, 1000)
    cases = [
        (h, n, t) for n in LENGTHS for k in orders for h in product(range(n), repeat=k) for t in positions
    ]
    read = sum(is_read(*case, Fraction) for case in cases)
    last = {}
    for number, far in ((np.float32, 60), (np.float64, 400)):
        fails = [
            not all(is_read(h, 2, t, number) for h in product(range(2), repeat=2)) for t in range(2, far)
        ]
        last[number.__name__] = 2 + fails.index(True) if any(fails) else None
    return [
        Finding(
            "n_gram_one_head",
            f"{read} of {len(cases)} histories read without error",
            holds(read == len(cases)),
            f"every history of n - 1 = {orders[0]} to {orders[-1]} tokens on 2 to 4 symbols, at positions "
            f"{', '.join(map(str, positions))}; exact fractions",
            "computed exactly",
            number=f"{read} of {len(cases)} histories",
        ),
        Finding(
            "one_head_anywhere",
            "a history of two tokens is lost from position "
            + ", ".join(f"{t} in {name}" for name, t in last.items()),
            holds(not any(last.values())),
            "two symbols, n = 3, every history, by position from 2 on; tokens are below the smallest number",
            "computed exactly",
            number=f"lost from position {last['float64']} in float64",
        ),
    ]


def _bounded(kernels: list[Float[np.ndarray, "*history state"]], setting: str) -> Finding:
    """By how much softmax attention misses, of what it may."""
    used = []
    for kernel, form, sharpness in product(kernels, FORMS, SHARPNESS[1:4]):
        bound = n_gram_error(kernel, LENGTHS[len(kernel)], form=form, sharpness=sharpness)
        used.append(error(kernel, form, sharpness) / bound)
    return Finding(
        "n_gram_softmax",
        f"errors are {min(used):.1g} to {max(used):.2g} of the bound",
        holds(max(used) <= 1),
        f"{setting}; attention logits of {', '.join(f'{s:g}' for s in SHARPNESS[1:4])}",
        "computed exactly",
        number=f"at most {max(used):.2g} of the bound",
    )


def _figure() -> go.Figure:
    """Error and bound over sharpness, of one table."""
    figure, kernel = go.Figure(), next(tables(3, 2))
    for i, (form, name) in enumerate(FORMS.items()):
        bounds = [n_gram_error(kernel, LENGTHS[3], form=form, sharpness=s) for s in SHARPNESS]
        figure.add_scatter(
            x=SHARPNESS, y=[error(kernel, form, s) for s in SHARPNESS], name=name, line=style(i)
        )
        figure.add_scatter(
            x=SHARPNESS, y=bounds, name=f"{name}: bound", mode="lines", line=style(i, dash="dot", width=1)
        )
    title = "A 3-gram model on three symbols: what softmax attention misses"
    return titled(figure, title, "attention logit", "largest error (nats)", yaxis_type="log")
