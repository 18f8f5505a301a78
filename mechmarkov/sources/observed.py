"""A source that is known only by its sequences: its law is an estimate."""

import os
import warnings
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, ClassVar, Literal

import numpy as np
from jaxtyping import Bool, Float, Int
from pydantic import ConfigDict, Field, PrivateAttr, model_validator
from scipy.special import betaincinv

from mechmarkov.sources.base.source import Count, Predictor, Real, check_request
from mechmarkov.sources.base.stationary import check_steps, read_only
from mechmarkov.sources.estimation import files, stored, stretches
from mechmarkov.sources.estimation.encode import REST, encode, without_zero
from mechmarkov.sources.estimation.estimate import MAX_ORDER, Blocks, Choice, Estimate, choose
from mechmarkov.sources.estimation.homogeneity import Homogeneity, OneLawWarning, homogeneity
from mechmarkov.sources.estimation.sequences import MAX_TOKENS, Each, check_count
from mechmarkov.sources.estimation.stored import StoredSequences
from mechmarkov.sources.estimation.stretches import MIN_BLOCKS
from mechmarkov.sources.estimation.texts import Unit
from mechmarkov.sources.sampling import law
from mechmarkov.sources.sampling.streams import Device, Numbers, Sequences, integers, table
from mechmarkov.utils.lazy_torch import Generator, torch
from mechmarkov.utils.text import counted, shown

MAX_CONCENTRATION = 1e9
MAX_P_VALUE = 0.002  # of one law: the least that its test can show
OPTIONS = "order, alphabet, max_states, block, held_out, each, relabel, limit"


class Observed(StoredSequences):
    """A law estimated from sequences that somebody has.

    A part of the data is held out, in whole blocks. From the others come the counts, and by cross-validation
    over them their smoothing and, unless it is given, the order of the law. `sample` draws from them too.
    Probes are put to the blocks that are held out, and compare with the estimated law.

    Args:
        tokens: A text, integers (numpy, torch, pandas, a list) or texts such as words: one sequence, a list
            of sequences, an array `[sequence, position]`, or a column of lists of pandas, polars, pyarrow or
            `datasets`. Integers are states as they are; a text's characters are states in the order of their
            code points, as nanoGPT numbers them, and the line end that ends it is not a state.
        order: How many states back the law looks, 0 to 5; by default the lowest order that no higher one
            beats by more than two standard errors over blocks, and by more nats in all than there are states.
            `choice` has the losses of all.
        each: For a list or a column of texts: whether each is a "state", or a sequence of the states that
            its "character"s or "word"s are; of one text, its "character"s or "word"s. Words that are all
            integers are those integers.
        relabel: Integers that occur are states in their order, so that 1, 2, 3, or -1 and 1, begin at 0.
            Without it a warning says of integers from 1 up that 0 is a state that never occurs.
        alphabet: The states' names in their order, where the data do not show all of them; also a vocabulary,
            `{symbol: number}` or its inverse. Names that are integers say which integer is which state.
        max_states: The number of states to keep, at most 2000: the most frequent, and one for the rest.
        limit: The number of states to take from the start, where there are more than 2 million.
        block: States in a block, at least a context and one more. By default a fiftieth of the data, and of
            20 sequences or more at least the longest.
        held_out: "every_fifth" block, or the "last_tenth" of them, as nanoGPT holds out.

    A run file holds the sequences with the law; `source_from_data` makes the source of them again. Several
    sequences are tested for one law (`homogeneity`); where they do not seem to have one, there is a warning.

    Attributes:
        smoothing: The concentrations that stand for counts, one for each order from 0 up, or `add_one`.

    Raises:
        TypeError: Bytes, for tokens or a path.
        ValueError: One line, for a gap, one symbol, fewer than 100 transitions, a symbol that the alphabet
            lacks, too many states, and where only the user knows what is meant (an `OptionError`).

    Example:
        >>> source = Observed("the cat sat on the mat. " * 40, order=2)
        >>> source.order, source.n_states, source.best().name
        (2, 11, 'order_2')
        >>> source.title()
        'Order-2 law of 11 states, estimated from 960 tokens'
    """

    model_config = ConfigDict(serialize_by_alias=True)

    takes_streams: ClassVar[bool] = True
    kind: Literal["observed"] = "observed"
    memory: Count = Field(alias="order", ge=0, le=MAX_ORDER)
    smoothing: Literal["add_one"] | tuple[Real, ...]
    block: Count = Field(ge=2, le=MAX_TOKENS)
    held_out: Literal["every_fifth", "last_tenth"] = "every_fifth"
    _times: tuple[int, ...] | None = PrivateAttr(None)  # how often a bootstrap drew each block

    def __init__(
        self,
        tokens: Any = ...,
        *,
        order: int | np.integer[Any] | None = None,
        each: Each | str | None = None,
        relabel: bool | Any = False,
        alphabet: Any = None,
        max_states: int | None = None,
        limit: int | Any = None,
        block: int | np.integer[Any] | None = None,
        held_out: Literal["every_fifth", "last_tenth"] | str = "every_fifth",
        **unknown: Any,
    ) -> None:
        if tokens is ...:
            raise ValueError("tokens is missing, expected a text, an array or a list of sequences")
        for name in unknown:
            raise ValueError(f"Observed has no option {shown(name)}, expected one of {OPTIONS}")
        order = int(order) if isinstance(order, np.integer) else order
        block = int(block) if isinstance(block, np.integer) else block
        check_count("order", order, 0, MAX_ORDER)
        check_count("block", block, 2)
        if not isinstance(each, str | None):
            raise ValueError(f"each is {shown(each)}, expected 'state', 'character' or 'word'")
        encoded = encode(tokens, alphabet, max_states, each=each, relabel=relabel, limit=limit)
        if block is None:
            block = stretches.default_block(encoded.lengths)
        blocks = Blocks.of(encoded.states, encoded.lengths, block, len(encoded.names))
        chosen = choose(blocks, stretches.training(blocks, held_out), order)
        fields: dict[str, Any] = {
            "states": stored.written(encoded.states, len(encoded.names)),
            "lengths": encoded.lengths,
            "names": encoded.names,
            "order": chosen.order,
            "smoothing": "add_one" if chosen.smoothing is None else chosen.smoothing,
            "block": block,
            "held_out": held_out,
        }
        super().__init__(**fields)
        if (doubt := self.doubt_of_one_law()) is not None:
            warnings.warn(doubt, OneLawWarning, stacklevel=2)

    @classmethod
    def read(
        cls,
        path: str | os.PathLike[str] | Any,
        *,
        unit: Unit | str | None = None,
        lines: bool | Any = None,
        dtype: Any = None,
        column: str | Any = None,
        sequence: str | Any = None,
        each: Each | str | None = None,
        **options: Any,
    ) -> "Observed":
        """A law estimated from a file: a text in UTF-8, `.csv`, `.tsv`, `.parquet`, `.npy`, or bare numbers.

        Args:
            path: The file.
            unit: For a text: its "character"s, or its "word"s and punctuation marks; characters by default,
                unless it holds only numbers.
            lines: Whether each line is a sequence, of a text or of a table without names. By default a text
                is one sequence, unless its lines are all of one length or without white space.
            dtype: The type of bare numbers, such as the "uint16" of nanoGPT's `train.bin`.
            column: For a table: the one that holds the states; not needed where it is the only one.
            sequence: For a table: the column that says which sequence a row belongs to.
            each: For a column of texts: as for `Observed`.
            options: Those of `Observed`.

        Raises:
            TypeError: A path that is not one.
            ValueError: As of `Observed`; a column that is not there; a file that is not regular or not sound.
            OSError: The file cannot be read.
        """
        limit = options.get("limit")
        tokens, text_of = files.read(
            path, unit=unit, lines=lines, dtype=dtype, column=column, sequence=sequence, limit=limit
        )
        if text_of is not None and each is not None:
            raise ValueError(
                f"each is {shown(each)}, expected none: of a text, unit says what its states are"
            )
        return cls(tokens, each=text_of or each, **options)

    @model_validator(mode="after")
    def _sound(self) -> "Observed":
        self._check_stored()
        if self.smoothing != "add_one":
            if len(self.smoothing) != self.memory + 1:
                raise ValueError(f"smoothing has {len(self.smoothing)} entries, expected {self.memory + 1}")
            for a in self.smoothing:
                if not 0 < float(a) <= MAX_CONCENTRATION:
                    raise ValueError(f"smoothing holds {a}, expected concentrations above 0")
        if self.blocks.n_blocks < MIN_BLOCKS:
            raise ValueError(
                f"block is {self.block}, which makes {counted(self.blocks.n_blocks, 'block')} of "
                f"{len(self.tokens)} states, expected at least {MIN_BLOCKS}"
            )
        return self

    def __repr_args__(self) -> Any:
        return [("n_states", self.n_states), ("order", self.order), ("tokens", len(self.tokens))]

    @property
    def order(self) -> int:
        """Returns how many states back the estimated law looks."""
        return self.memory

    def title(self) -> str:
        """`Order-2 law of 11 states, estimated from 960 tokens`."""
        rest = ""
        if self.names[-1] == REST:
            rest = f" ({(self.tokens == self.n_states - 1).mean():.1%} in {REST})"
        n_tokens = len(self.tokens)
        return f"Order-{self.order} law of {self.n_states} states{rest}, estimated from {n_tokens} tokens"

    @cached_property
    def blocks(self) -> Blocks:
        """The data in blocks."""
        return Blocks.of(self.tokens, self.lengths, self.block, self.n_states)

    @cached_property
    def training_blocks(self) -> Bool[np.ndarray, " block"]:
        """Returns which blocks are not held out."""
        return stretches.training(self.blocks, self.held_out)

    @cached_property
    def choice(self) -> Choice:
        """The losses of all orders by cross-validation (nats), and what they choose."""
        return choose(self.blocks, self.training_blocks)

    @cached_property
    def estimate(self) -> Estimate:
        """The counts of the training blocks, smoothed."""
        times = np.ones(self.blocks.n_blocks) if self._times is None else np.array(self._times, dtype=float)
        smoothing = None if self.smoothing == "add_one" else tuple(map(float, self.smoothing))
        return Estimate(self.blocks, times * self.training_blocks, smoothing)

    def resampled(self, seed: int) -> "Observed":
        """The law estimated from as many training blocks drawn with replacement (the block bootstrap)."""
        train = np.flatnonzero(self.training_blocks)
        drawn = np.random.default_rng(seed).choice(train, len(train))
        again = self.model_copy()
        again.__dict__ |= {name: getattr(self, name) for name in ("tokens", "blocks", "training_blocks")}
        again._times = tuple(np.bincount(drawn, minlength=self.blocks.n_blocks).tolist())
        return again

    @cached_property
    def P(self) -> Float[np.ndarray, "state_from state_to"]:
        """The estimated law of the next state given the current one; of order 0, given nothing. Read-only."""
        return read_only(self.estimate.next_laws(np.arange(self.n_states)[:, None], min(1, self.order))[:, 0])

    @cached_property
    def pi(self) -> Float[np.ndarray, " state"]:
        """The stationary law of `P`; read-only."""
        return read_only(law.stationary(self.P))

    def kernel_interval(
        self, level: float = 0.95
    ) -> tuple[Float[np.ndarray, "state_from state_to"], Float[np.ndarray, "state_from state_to"]]:
        """The posterior interval of every entry of `P` (probability), low and high, each entry by itself.

        A row's posterior is the Dirichlet law of its counts and of what smoothing adds to them. It takes
        transitions as independent given the current state; for a law of higher order use `resampled`.

        Raises:
            ValueError: The law is of order 0, or `level` is not between 0 and 1.
        """
        if not 0 < level < 1:
            raise ValueError(f"level is {level}, expected a probability between 0 and 1")
        if self.order == 0:
            raise ValueError("order is 0, expected at least 1: no row of P was estimated by itself")
        counts, prior = self.estimate.posterior()
        a = counts + prior
        rest = a.sum(1, keepdims=True) - a
        return betaincinv(a, rest, (1 - level) / 2), betaincinv(a, rest, (1 + level) / 2)

    def step_law(self, m: int) -> Float[np.ndarray, "state_from state_to"]:
        """A power of `P` up to order 1, else counts at lag m; see `Stationary.step_law`."""
        check_steps(m)
        if m < 2 or self.order < 2:
            return np.linalg.matrix_power(self.P, m)
        blocks, weights = self.blocks, self.estimate.weights
        pairs = np.zeros((self.n_states, self.n_states))
        now = np.flatnonzero(blocks.place >= m)
        np.add.at(pairs, (blocks.states[now - m], blocks.states[now]), weights[blocks.block[now]])
        a = self.n_states if self.smoothing == "add_one" else float(self.smoothing[1])
        base = 1 / self.n_states if self.smoothing == "add_one" else self.pi
        return (pairs + a * base) / (pairs.sum(1, keepdims=True) + a)

    def predictors(self) -> dict[str, Predictor]:
        """Those of every stationary source, and `order_<j>` for j = 2 … order: all but uniform estimated."""
        rules = {
            name: replace(rule, exact=name == "uniform", label=rule.label.replace(", exact", ", estimated"))
            for name, rule in super().predictors().items()
        }
        for j in range(2, self.order + 1):
            label = f"order {j}: the last {j} tokens, near the start all there are, estimated"
            rule = partial(self.estimate.next_laws, order=j)
            rules[f"order_{j}"] = Predictor(f"order_{j}", label, False, rule)
        return rules

    def best(self) -> Predictor | str:
        """The estimated law: what would be best if it were the true one."""
        names = {0: "unigram", 1: "bigram"}
        return self.predictors()[names.get(self.order, f"order_{self.order}")]

    @cached_property
    def homogeneity(self) -> Homogeneity | None:
        """Returns whether the sequences have one law of this order; None where there is one sequence."""
        return homogeneity(self.tokens, self.lengths, self.n_states, self.order)

    def never_zero(self) -> str | None:
        """Returns that the integers begin at 1, so that the state 0 never occurs, in words; else None."""
        return without_zero(self.tokens, self.names)

    def doubt_of_one_law(self) -> str | None:
        """Returns what speaks against one law behind all sequences, in words; None where nothing does."""
        test = self.homogeneity
        if test is None or test.p_value > MAX_P_VALUE:
            return None
        return (
            f"the sequences do not look like draws of one law of order {test.order} "
            f"(p = {test.p_value:.2g}), as their estimate is: if each has a chain of its own, declare a "
            f"source such as mm.DirichletChains(n_states={self.n_states}); if the law looks further back, "
            "one such as mm.HiddenMarkov"
        )

    def sample(self, batch: int, length: int, *, generator: Numbers, device: Device = "cpu") -> Sequences:
        """Stretches of the training blocks, from places drawn at random; see `Source.sample`.

        Raises:
            ValueError: `length` is longer than the pieces of the blocks.
        """
        check_request(batch, length, generator, device)
        if length not in self._starts:
            self._starts[length] = np.flatnonzero(self._room(length, self.training_blocks))
        starts = table(generator, device, self._starts[length])
        start = starts[integers(generator, device, len(starts), batch)]
        places = start[:, None] + torch.arange(length, device=device)
        return table(generator, device, self.tokens)[places]

    @cached_property
    def _starts(self) -> dict[int, Int[np.ndarray, " start"]]:
        return {}  # by length: where a stretch of a training block may begin

    def held_out_length(self, length: int) -> int:
        """Returns this length, or the sequences' if that is less; see `Source.held_out_length`."""
        enough = stretches.reach(self.blocks, self.training_blocks) >= length
        if enough or stretches.longer_block(self.blocks, self.lengths, self.held_out, length) is not None:
            return length
        available = min(length, stretches.most_predictions(self.blocks, ~self.training_blocks))
        # Where far longer ones are among the training blocks, those held out are not what there is.
        return available if 2 * available >= min(length, max(self.lengths)) else length

    def sample_held_out(
        self, batch: int, length: int, *, generator: Generator, device: Device = "cpu"
    ) -> Sequences:
        """Stretches of the blocks that are held out, none twice: `batch`, or fewer if there are no more."""
        check_request(batch, length, generator, device)
        whole = self._room(length, ~self.training_blocks) & (self.blocks.place % length == 0)
        starts = torch.from_numpy(np.flatnonzero(whole)).to(device)
        starts = starts[torch.randperm(len(starts), generator=generator, device=device)[:batch]]
        return torch.tensor(self.tokens, device=device)[starts[:, None] + torch.arange(length, device=device)]

    def _room(self, length: int, chosen: Bool[np.ndarray, " block"]) -> Bool[np.ndarray, " token"]:
        """At which tokens a stretch of that many may begin, within a piece of one of the chosen blocks."""
        left = stretches.room(self.blocks, chosen)
        if left.max() < length:
            longest = int(left.max())
            block = stretches.longer_block(self.blocks, self.lengths, self.held_out, length)
            other = stretches.other_half(self.blocks, self.held_out, length)
            advice = f"no sequence is longer, and a model of n_ctx = {longest - 1} reads all of one"
            if block is not None:
                advice = f"Observed(…, block={block}) makes them longer"
            elif other is not None:
                advice = f"Observed(…, held_out={other!r}) holds out longer ones"
            elif max(self.lengths) > longest:
                advice = "sequences of the blocks that are read are no longer"
            raise ValueError(
                f"length is {length}, expected at most {longest}, the longest piece of a block: {advice}"
            )
        return np.asarray(left >= length)
