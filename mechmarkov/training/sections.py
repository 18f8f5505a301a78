"""The tables of a recipe but its model: start, optimiser, data, checkpoints."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from mechmarkov.models.init import Scheme
from mechmarkov.utils.config import Fields, Integer, Number, Truth

MAX_CHECKPOINTS = 100_000
Rate = Annotated[Number, Field(gt=0, le=1e6)]
Fraction = Annotated[Number, Field(ge=0, lt=1)]
Count = Annotated[Integer, Field(ge=1, le=1_000_000_000)]


def _check_one(example: str, **given: Any) -> None:
    """Refuse fields of which not exactly one is given."""
    if sum(value is not None and value is not False for value in given.values()) != 1:
        fields = ", ".join(f"{name} is {value}" for name, value in given.items())
        raise ValueError(f"{fields}: expected exactly one of them, as in {example}")


class Init(Fields):
    """The start of weights (`mechmarkov.models.init`); other models than `decoder` take `zero` or `normal`.

    Attributes:
        scheme: `normal` draws every weight from N(0, std²), `gpt2` those that write into the residual stream
            from a narrower law. `zero`, `guideline` and `rank_one` are described in `mechmarkov.models.init`.
        std: The standard deviation of weights.
        zero: Parameters that start at zero whatever the scheme, as in `["blocks.1.attn.W_O"]`.
    """

    scheme: Scheme = "gpt2"
    std: Number = Field(default=0.02, ge=0, le=1e3)
    zero: tuple[str, ...] = ()


class GradientDescent(Fields):
    """Plain gradient descent, `x - lr * gradient`.

    Attributes:
        lr: The learning rate.
    """

    kind: Literal["gd"] = "gd"
    lr: Rate = 1.0


class AdamW(Fields):
    """AdamW; the defaults are Makkuva et al.'s (arXiv 2402.04161, their code).

    Attributes:
        lr: The learning rate, at its highest.
        betas: How slowly the means of gradients and of their squares forget, a number below 1 each.
        eps: Added to the root of the mean square, by which a step is divided.
        weight_decay: The rate for matrices; other parameters do not decay (`is_decayed`).
        schedule: `one_cycle` is torch's `OneCycleLR` without its momentum cycle: a cosine from
            `lr / div_factor` up to `lr` over the fraction `warmup` of the steps, then a cosine down to
            `lr / div_factor / final_div_factor`. `constant_with_warmup` is torch's `LinearLR`: a line from
            `lr / div_factor` up to `lr` over that fraction, then `lr`. `constant` is `lr` at every step.
        warmup: The fraction of the steps over which the rate rises; not for `constant`.
        div_factor: How many times lower the rate starts; not for `constant`.
        final_div_factor: How many times lower than it started the rate ends, for `one_cycle`.
        max_grad_norm: A longer gradient of all parameters together is shortened to it, as by
            `torch.nn.utils.clip_grad_norm_`.
    """

    kind: Literal["adamw"] = "adamw"
    lr: Rate = 2e-3
    betas: tuple[Fraction, Fraction] = (0.9, 0.95)
    eps: Number = Field(default=1e-8, gt=0, le=1)
    weight_decay: Number = Field(default=1e-3, ge=0, le=1e3)
    schedule: Literal["one_cycle", "constant_with_warmup", "constant"] = "one_cycle"
    warmup: Fraction = 0.02
    div_factor: Number = Field(default=100.0, ge=1, le=1e9)
    final_div_factor: Number = Field(default=0.05, gt=0, le=1e9)
    max_grad_norm: Number | None = Field(default=None, gt=0, le=1e6)


Optimiser = Annotated[GradientDescent | AdamW, Field(discriminator="kind")]


class Data(Fields):
    """The data that a step trains on; exactly one of `batch`, `n_train` and `population`.

    Attributes:
        batch: That many fresh sequences every step.
        n_train: A fixed set of that many sequences, all of it every step.
        groups: In how many equal parts a fresh batch is read, 2 or more. Their spread gives the standard
            errors of loss and gradient, the metrics `loss_error` and `gradient_norm_error` of every step.
        population: All sequences of a fixed chain, each weighted by its probability, every step: the exact
            loss and gradient. What the model cannot tell apart is read once; at most 65,536 sequences
            (`mechmarkov.population`).
    """

    batch: Count | None = None
    n_train: Count | None = None
    population: Truth = False
    groups: Annotated[Integer, Field(ge=2, le=1 << 16)] | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> "Data":
        given = {"batch": self.batch, "n_train": self.n_train, "population": self.population}
        _check_one("data = { batch = 16 }", **given)
        if self.groups is not None and (self.batch is None or self.batch % self.groups):
            raise ValueError(
                f"groups is {self.groups}, batch is {self.batch}: expected fresh batches of a multiple, as "
                "in data = { batch = 64, groups = 16 }"
            )
        return self


class Checkpoints(Fields):
    """At which steps weights are kept, as well as the first and the last; exactly one of the three.

    Attributes:
        log: About that many steps, spaced evenly in the logarithm.
        every: Steps from one to the next.
        at: These steps, those beyond the last left out; a bare list in TOML.
    """

    log: Annotated[Integer, Field(ge=1, le=MAX_CHECKPOINTS)] | None = None
    every: Count | None = None
    at: tuple[Annotated[Integer, Field(ge=0)], ...] | None = None

    @model_validator(mode="before")
    @classmethod
    def _bare_list(cls, data: Any) -> Any:
        return {"at": data} if isinstance(data, list | tuple) else data

    @model_validator(mode="after")
    def _exactly_one(self) -> "Checkpoints":
        _check_one("checkpoints = { log = 20 }", log=self.log, every=self.every, at=self.at)
        return self

    def steps(self, last: int) -> list[int]:
        """Returns the steps at which weights are kept, ascending, 0 and `last` (all steps) among them.

        Raises:
            ValueError: There are more than 100 000.

        Example:
            >>> Checkpoints(log=5).steps(1000)
            [0, 1, 6, 32, 178, 1000]
        """
        if self.log is not None:
            spaced = {round(last ** (i / max(1, self.log - 1))) for i in range(self.log)}
        elif self.every is not None:
            if last // self.every > MAX_CHECKPOINTS:
                raise ValueError(
                    f"checkpoints.every is {self.every}, which keeps {last // self.every:,} steps, "
                    f"expected at most {MAX_CHECKPOINTS:,}"
                )
            spaced = set(range(0, last, self.every))
        else:
            spaced = set(self.at or ())
        return sorted(step for step in spaced | {0, last} if step <= last)
