"""Counter-based random numbers, so that a GPU draws those of a whole stack at once.

`Streams` holds a stream for each member of a stack. A number is a function of the member's seed, the row,
which draw it is, and the column: SplitMix64, whose k-th output mixes `seed + k γ` (Steele, Lea & Flood 2014,
"Fast splittable pseudorandom number generators", figure 17). A member has the numbers it has by itself, in
whatever stack and however many rows are drawn at once, and nothing has to be kept to go on.

Sources draw through `uniform`, `integers` and `table`. With a `torch.Generator` these are torch's own.
"""

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64, Int64, Shaped

from mechmarkov.utils.lazy_torch import Device as Device
from mechmarkov.utils.lazy_torch import Generator, Tensor, torch

GAMMA = 0x9E3779B97F4A7C15  # 2⁶⁴ over the golden ratio, odd
MIXERS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
LAST_SHIFT = 31
# Of Marsaglia & Tsang (2000) at least 95 % of proposals are accepted: none of 12 in one of 4·10¹⁵ draws.
PROPOSALS = 12

Sequences = Int64[Tensor, "batch position"]  # states, 0 to K - 1


def signed(value: int) -> int:
    """An unsigned integer of 64 bits as torch's int64 of the same bits.

    Example:
        >>> signed(2**64 - 1)
        -1
    """
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def mix(z: Int64[Tensor, "*n"]) -> Int64[Tensor, "*n"]:
    """SplitMix64's bijection of 64 bits.

    Example:
        >>> f"{int(mix(torch.tensor(signed(1234567 + GAMMA)))) % 2**64}"
        '6457827717110365317'
    """
    for shift, factor in MIXERS:
        z = (z ^ _shifted(z, shift)) * signed(factor)
    return z ^ _shifted(z, LAST_SHIFT)


def _shifted(z: Int64[Tensor, "*n"], bits: int) -> Int64[Tensor, "*n"]:
    """To the right, zeros from the left: torch repeats the sign."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


class Streams:
    """Numbers for the same rows of every member; a draw's first axis is member by member.

    A number depends only on the member's seed, the row, and how many were drawn before it, so that it is the
    same in whatever chunks rows are drawn.

    Args:
        seeds: The seed of each member.
        device: Where numbers are made.
        start: The first row of each member.
        rows: How many rows each member draws.

    Example:
        >>> together = Streams([5], torch.device("cpu"), start=0, rows=3).uniform(3)
        >>> bool((Streams([5], torch.device("cpu"), start=2, rows=1).uniform(1) == together[2:]).all())
        True
    """

    def __init__(self, seeds: Sequence[int], device: Device, *, start: int = 0, rows: int = 1) -> None:
        self.device = torch.device(device)
        self._seeds = torch.tensor([signed(seed) for seed in seeds], device=self.device)
        self._start, self._rows, self._draws = start, rows, 0
        self.widest = 0
        """Of all draws, the most numbers for one row of a member."""
        self._tables: dict[int, tuple[np.ndarray, Tensor]] = {}

    def at(self, start: int, rows: int) -> "Streams":
        """The same streams at other rows; tables stay on the device."""
        other = object.__new__(Streams)
        other.__dict__ |= self.__dict__ | {"_start": start, "_rows": rows, "_draws": 0, "widest": 0}
        return other

    def uniform(self, *shape: int) -> Float64[Tensor, "row ..."]:
        """Numbers in [0, 1), 53 bits each; the first axis is a multiple of members times rows.

        Raises:
            ValueError: It is not.
        """
        members = len(self._seeds)
        each, rest = divmod(shape[0], members * self._rows)
        if rest or not each:
            raise ValueError(
                f"{shape[0]} rows are drawn, expected a multiple of {members} members of {self._rows}"
            )
        self._draws += 1
        self.widest = max(self.widest, math.prod(shape) // (members * self._rows))
        first, count = self._start * each, self._rows * each
        row = torch.arange(first + 1, first + count + 1, device=self.device) * signed(GAMMA)
        keys = mix(mix(self._seeds[:, None] + row) + signed(self._draws * GAMMA)).view(-1, 1)
        column = torch.arange(1, math.prod(shape[1:]) + 1, device=self.device) * signed(GAMMA)
        return _shifted(mix(keys + column), 11).double().mul_(2.0**-53).view(shape)

    def table(self, array: Shaped[np.ndarray, "*n"]) -> Shaped[Tensor, "*n"]:
        """A source's table on the device, copied once."""
        if id(array) not in self._tables:
            self._tables[id(array)] = (array, torch.tensor(array, device=self.device))
        return self._tables[id(array)][1]

    def log_gamma(self, shape: tuple[int, ...], concentration: float) -> Float64[Tensor, "row ..."]:
        """Logarithms of Gamma variables; of an exponential one where the concentration is 1.

        Else by Marsaglia & Tsang (2000), and `U^(1/a)` of one with `a + 1`. Of 12 proposals the first that
        is accepted is taken.
        """
        if concentration == 1:
            return self._above_zero(*shape).log().neg().log()
        d = concentration + 2 / 3
        tries = (*shape, PROPOSALS)
        radius = (-2 * self._above_zero(*tries).log()).sqrt()
        normal = radius * (2 * math.pi * self.uniform(*tries)).cos()
        v = (1 + normal / math.sqrt(9 * d)).clamp_min(0) ** 3
        log_v = v.log()
        accepted = self._above_zero(*tries).log() < normal**2 / 2 + d * (1 - v + log_v)
        first = accepted.to(torch.int8).argmax(-1, keepdim=True)
        boost = self._above_zero(*shape).log() / concentration
        return math.log(d) + log_v.gather(-1, first)[..., 0] + boost

    def _above_zero(self, *shape: int) -> Float64[Tensor, "row ..."]:
        return 1 - self.uniform(*shape)


Numbers = Generator | Streams


def uniform(numbers: Numbers, device: Device, *shape: int) -> Float64[Tensor, "row ..."]:
    """Numbers in [0, 1) from a generator or from `Streams`, in float64.

    Example:
        >>> uniform(torch.Generator().manual_seed(0), "cpu", 2, 3).shape
        torch.Size([2, 3])
    """
    if isinstance(numbers, Streams):
        return numbers.uniform(*shape)
    return torch.rand(shape, generator=numbers, device=device, dtype=torch.float64)


def integers(numbers: Numbers, device: Device, below: int, *shape: int) -> Int64[Tensor, "row ..."]:
    """Integers from 0 to below a bound, each equally likely.

    Args:
        numbers: The only source of randomness, a generator or `Streams`.
        device: Where numbers are made.
        below: The bound.
        shape: The shape of the draw.
    """
    if isinstance(numbers, Streams):
        return (numbers.uniform(*shape) * below).long()
    return torch.randint(below, shape, generator=numbers, device=device)


def table(numbers: Numbers, device: Device, array: Shaped[np.ndarray, "*n"]) -> Shaped[Tensor, "*n"]:
    """A source's table where the sequences are made.

    Args:
        numbers: A generator or `Streams`, which keep a table on the device once it was there.
        device: Where sequences are made.
        array: The table.
    """
    return numbers.table(array) if isinstance(numbers, Streams) else torch.tensor(array, device=device)
