"""What a probe owes the others: an outcome that can be shown and saved, and the models as they were."""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from torch import Tensor
from transformer_lens.hook_points import HookPoint

from mechmarkov.probing.figure import AttentionView
from mechmarkov.probing.outcome import Outcome
from mechmarkov.probing.score import Score
from mechmarkov.probing.subject import Subject

PLAIN = (str, bool, int, float, np.generic)


def check_data(data: xr.Dataset, axis: str, models: int) -> None:
    """Refuse data that cannot be saved.

    Args:
        data: What a probe measured.
        axis: "step", or "seed" of null models.
        models: How many were measured.

    Raises:
        TypeError: They are not a dataset.
        ValueError: An axis, a name, a type or an attribute that NetCDF cannot hold.
    """
    _expect("what was measured", data, xr.Dataset)
    if data.sizes.get(axis) != models:
        raise ValueError(f"data have the axes {dict(data.sizes)}, expected one named {axis!r} of {models}")
    for name, variable in data.variables.items():
        if not isinstance(name, str) or not name or "/" in name:
            raise ValueError(f"a variable is named {name!r}, expected a text without '/'")
        if variable.dtype.kind not in "biufSUO":
            raise ValueError(f"variable {name!r} is of type {variable.dtype}, expected numbers or texts")
        if variable.dtype.kind == "O" and not all(isinstance(value, str) for value in variable.values.flat):
            raise ValueError(f"variable {name!r} holds objects, expected numbers or texts")
        _check_attributes(f"variable {name!r}", variable.attrs)
    _check_attributes("data", data.attrs)


def check_outcome(outcome: Outcome) -> None:
    """Refuse what the report could not show: the figures are drawn once.

    Raises:
        TypeError: A field is not of the type that `Probe` states.
        ValueError: Two figures have one key.
    """
    _expect("verdict", outcome.verdict, str)
    _expect("what scores returned", outcome.scores, dict)
    for name, score in outcome.scores.items():
        _expect("a score's name", name, str)
        _expect(f"score {name!r}", score, Score)
        _expect(f"score {name!r}: its unit", score.unit, str)
        if score.value is not None:
            _expect(f"score {name!r}: its value", score.value, (str, bool, int, float))
    for figure in outcome.figures():
        content = go.Figure if figure.kind == "plotly" else AttentionView
        _expect(f"figure {figure.title!r}: its content", figure.content, content)


def _check_attributes(what: str, attributes: dict[Any, Any]) -> None:
    for key, value in attributes.items():
        values = np.ravel(value).tolist() if isinstance(value, (list, tuple, np.ndarray)) else [value]
        if not all(one is None or isinstance(one, PLAIN) for one in values):
            raise ValueError(
                f"{what}: attribute {key!r} is a {type(value).__name__}, "
                "expected a text, a number or a list of them"
            )


def _expect(what: str, value: Any, kind: type | tuple[type, ...]) -> None:
    if not isinstance(value, kind):
        names = " or ".join(one.__name__ for one in (kind if isinstance(kind, tuple) else (kind,)))
        raise TypeError(f"{what} is a {type(value).__name__}, expected a {names}")


@contextmanager
def unchanged(subject: Subject) -> Iterator[None]:
    """Put the shared models and sequences back where a probe changed them, and say so.

    Raises:
        ValueError: Weights, sequences or hooks differ; the message names the first. They are as before, and
            what was recorded from the changed ones is forgotten.
    """
    subjects = (subject, subject.null)
    tokens = [_sequences(one) for one in subjects]
    before = [_checksums(one) for one in subjects]
    copies = [{name: tensor.clone() for name, tensor in some.items()} for some in tokens]
    try:
        yield
    finally:
        changed = [
            name
            for one, sums in zip(subjects, before, strict=True)
            for name, value in _checksums(one).items()
            if sums[name] != value
        ]
        if changed:
            for one, some, copied in zip(subjects, tokens, copies, strict=True):
                one.restore()
                for name, tensor in some.items():
                    tensor.copy_(copied[name])
    if changed:
        raise ValueError(f"the probe changed {changed[0]} of the shared model, expected it as it was")


def _sequences(subject: Subject) -> dict[str, Tensor]:
    return {name: getattr(subject.batch, name) for name in ("tokens", "history", "following")}


def _checksums(subject: Subject) -> dict[str, int]:
    """Of every weight and sequence, and the number of hooks at every hook point."""
    tensors = {**subject.decoder.state_dict(), **_sequences(subject)}
    found = {name: zlib.crc32(tensor.detach().cpu().numpy().tobytes()) for name, tensor in tensors.items()}
    points = {name: one for name, one in subject.decoder.named_modules() if isinstance(one, HookPoint)}
    return found | {name: len(point.fwd_hooks) + len(point.bwd_hooks) for name, point in points.items()}
