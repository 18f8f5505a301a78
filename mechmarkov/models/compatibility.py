"""Which tools of other people run on a `HookedDecoder`: what was tried, on what, with which versions."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from mechmarkov.models.lens.left_out import LEFT_OUT
from mechmarkov.utils.text import fact_table

DECODER = "run.model()"
AS_LENS = "run.model().as_lens()"
BRIDGE_ONLY = "no: takes a TransformerBridge only"

BOTH_LEGS = ("transformer-lens 3.9", "transformer-lens 4.3")
ANALYSIS = ("transformer-lens 4.3",)  # tools.analysis came with 4
NNSIGHT = ("nnsight 0.8",)


@dataclass(frozen=True)
class Trial:
    """One tool of other people on our model, as a row of `mm.compat()`; each has a test.

    Attributes:
        tried: The use that was tried, once in the table.
        runs_on: The model that the tool takes, or why it takes none.
        versions: Distributions and their minor versions that it was tried with, one of each named.
    """

    tried: str
    runs_on: str
    versions: tuple[str, ...]

    @property
    def distributions(self) -> dict[str, list[str]]:
        """Returns the minor versions that were tried, by distribution."""
        found: dict[str, list[str]] = {}
        for name, minor in (entry.split() for entry in self.versions):
            found.setdefault(name, []).append(minor)
        return found

    def differs(self) -> str | None:
        """Returns what is installed otherwise than tried, or None: `nnsight is not installed`."""
        for name, tried in self.distributions.items():
            try:
                found = version(name)
            except PackageNotFoundError:
                return f"{name} is not installed"
            if ".".join(found.split(".")[:2]) not in tried:
                return f"{name} {found} is installed, tried with {' and '.join(tried)}"
        return None


TRIALS = (
    Trial("ActivationCache: the parts of the residual stream", DECODER, BOTH_LEGS),
    Trial("FactoredMatrix: eigenvalues of a head's value circuit", DECODER, BOTH_LEGS),
    Trial("patching: the residual stream at each position", DECODER, BOTH_LEGS),
    Trial("logit_lens", DECODER, ANALYSIS),
    Trial("direct_logit_attribution", DECODER, ANALYSIS),
    Trial("attribution_patch: nodes", DECODER, ANALYSIS),
    Trial("attribution_patch: nodes, attention only", AS_LENS, ANALYSIS),
    Trial("attribution_patch: edges", AS_LENS, ANALYSIS),
    Trial("interchange: fit_das, intervened_logits", DECODER, ANALYSIS),
    Trial("fit_sparse_probe on a cache", DECODER, ANALYSIS),
    Trial("JacobianLens.fit", BRIDGE_ONLY, ANALYSIS),
    Trial("devinterp: llc", DECODER, ("devinterp 2.0",)),
    Trial("SAELens: SAETrainer on a cache", DECODER, ("sae-lens 6.54", "transformer-lens 3.9")),
    Trial("nnsight: read and replace the residual stream", DECODER, NNSIGHT),
    Trial("nnsight: read an attention pattern", AS_LENS, NNSIGHT),
)


@dataclass(frozen=True)
class Compatibility:
    """The table that `compat` returns, which shows itself.

    Attributes:
        trials: The tools that were tried.
        left_out: What HookedTransformer has and a HookedDecoder has not, on purpose: what to do instead.
    """

    trials: tuple[Trial, ...]
    left_out: dict[str, str]

    def __repr__(self) -> str:
        tools = [
            ("tried", "runs on", "with", "here"),
            *((t.tried, t.runs_on, ", ".join(t.versions), t.differs() or "as tried") for t in self.trials),
        ]
        left_out = [("left out of HookedTransformer", "instead"), *self.left_out.items()]
        return f"{_columns(tools)}\n\n{_columns(left_out)}"

    def _repr_html_(self) -> str:
        tools = {t.tried: f"{t.runs_on} ({', '.join(t.versions)})" for t in self.trials}
        return fact_table("Tools", tools) + fact_table("Left out of HookedTransformer", self.left_out)


def _columns(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def compat() -> Compatibility:
    """Returns which tools of others run on a run's model, and whether you have the versions that were tried.

    Every row is a test. What is not in the table was not tried. `HookedDecoder.as_lens` says what it adds. A
    second table has what HookedTransformer offers and a HookedDecoder leaves out on purpose.

    Example:
        >>> "nnsight: read an attention pattern  " in repr(compat())
        True
    """
    return Compatibility(TRIALS, LEFT_OUT)
