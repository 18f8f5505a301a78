"""Parameter decomposition of a pair of attention layers: what nodes write, as rank-one parts of their matrix.

It is stochastic parameter decomposition (Bushnaq, Braun & Sharkey 2025, arXiv 2506.20790), cut down to what
small models need. A matrix is a sum of rank-one parts. A gate of each says how needed it is at a position,
from 0 to 1. Parts are multiplied by random numbers between their need and 1, so that some of what is not
needed is taken away. Parts and gates are fitted so that predictions stay, and little is needed.

Of the paper are the random masks, gates that read what their part reads, and a price on need. Left out are
overcomplete parts (there are as many as the matrix has ranks, so that they sum to it exactly, and no loss of
faithfulness is fitted), masks of one layer at a time, and the matrices that nodes read with.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import gelu

from mechmarkov.bench.case import Case, seed_of
from mechmarkov.bench.method import Method
from mechmarkov.bench.metrics import kl_from
from mechmarkov.interventions.replace import replace_component
from mechmarkov.models.components import head_index
from mechmarkov.models.decoder import HookedDecoder

STEPS, RATE = 400, 2e-2
PENALTY = 1e-2  # nats for each part that is needed at a position
POSITIONS = 1024  # of the sequences to tune on
HIDDEN = 8  # units of a gate
LEAK = 0.1  # slope of a gate where it is 0 or 1
START = 0.5  # what gates begin at
RANK = 1e-8  # of the largest singular value: less is rounding


@dataclass(frozen=True, eq=False)
class Parts:
    """A node's output matrix as a sum of rank-one parts, `reads @ writes`, and where each is needed.

    Attributes:
        reads: What each part reads of the token or of the head's values.
        writes: What it writes to the stream.
        needed: How needed it is at each position of the sequences to tune on, from 0 to 1.
    """

    reads: Float[Tensor, "input part"]
    writes: Float[Tensor, "part d_model"]
    needed: Float[Tensor, "batch position part"]


def decompose(case: Case) -> dict[str, Parts]:
    """The parts of what every node of a case's model writes, fitted to sequences to tune on.

    Args:
        case: A case whose nodes are `embed` and heads.

    Returns:
        For each node its `Parts`; none for a node whose matrix or output is zero.

    Raises:
        ValueError: The model has an MLP, whose parts are not fitted here.

    Example:
        >>> from mechmarkov.bench import CASES
        >>> case = CASES["direct"](1)
        >>> parts = decompose(case)["embed"]
        >>> torch.allclose(parts.reads @ parts.writes, case.model.W_E)
        True
        >>> sorted(parts.reads.abs().argmax(0).tolist())  # each part reads one token
        [0, 1, 2, 3]
    """
    if not case.model.config.attn_only:
        raise ValueError(f"case {case.name!r} has MLPs, expected a model of attention only")
    tuning = case.others
    tokens = tuning.clean[: POSITIONS // case.model.config.n_ctx]
    generator = torch.Generator().manual_seed(seed_of(tokens))
    written = tuning.outputs(tokens)
    fits = {
        name: fit
        for name, output in written.items()
        if (fit := _Fit.of(case.model, name, output, generator)) is not None
    }
    with torch.no_grad():
        target = case.objective.predict(case.model(tokens))
    weights = [weight for fit in fits.values() for weight in fit.weights]
    optimiser = torch.optim.Adam(weights, lr=RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, STEPS, eta_min=RATE / 20)
    with ExitStack() as stack, torch.enable_grad():
        for name, fit in fits.items():
            stack.enter_context(replace_component(case.model, name, fit.masked))
        for _ in range(STEPS):
            moved = kl_from(target, case.objective, case.model(tokens)).mean()
            price = sum(fit.price for fit in fits.values())
            optimiser.zero_grad()
            torch.autograd.backward(moved + PENALTY * price)
            optimiser.step()
            schedule.step()
    return {name: fit.parts(written[name]) for name, fit in fits.items()}


class _Fit:
    """The parts of one node while they are fitted.

    Attributes:
        into: From a node's output, as it is hooked, to coordinates in the span of its matrix, of size 1.
        back: From coordinates to the output.
        matrix: Its two factors: from the node's input to coordinates, and from these to the stream.
        weights: The parts' directions among the coordinates, and the weights of their gates.
        price: How many parts were needed at a position in the last pass.
    """

    def __init__(
        self, into: Tensor, back: Tensor, matrix: tuple[Tensor, Tensor], generator: torch.Generator
    ) -> None:
        """Begin with parts in random directions, and gates that are all half open."""
        rank = into.shape[1]

        def draw(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        self.into, self.back, self.matrix, self.generator = into, back, matrix, generator
        self.directions = torch.linalg.qr(draw(rank, rank))[0]
        self.gate = [draw(rank, HIDDEN), draw(rank, HIDDEN), 0.1 * draw(rank, HIDDEN)]
        self.offset = torch.full((rank,), START, dtype=torch.float64)
        self.weights = [self.directions, *self.gate, self.offset]
        for weight in self.weights:
            weight.requires_grad_()
        self.price = torch.zeros(())

    @classmethod
    def of(cls, model: HookedDecoder, node: str, output: Tensor, generator: torch.Generator) -> "_Fit | None":
        """The fit of `embed` or a head at its start; None where its matrix or its output is zero."""
        head = head_index(node)
        of_head = None if head is None else model.get_parameter(f"blocks.{head[0]}.attn.W_O")[head[1]]
        W = (model.get_parameter("embed.W_E") if of_head is None else of_head).double()
        left, sizes, right = torch.linalg.svd(W, full_matrices=False)
        rank = int((sizes > RANK * sizes[0]).sum())
        if rank == 0 or not output.any():
            return None
        left, sizes, right = left[:, :rank], sizes[:rank], right[:rank]
        # A head's output is hooked before its matrix, the embedding's after it.
        into, back = (right.T, right) if head is None else (left * sizes, (left / sizes).T)
        scale = (output @ into).square().mean().sqrt()
        return cls(into / scale, back * scale, (left * sizes / scale, right * scale), generator)

    def turned(self) -> Tensor:
        """The parts' directions, each of length 1, `[coordinate, part]`."""
        return self.directions / self.directions.norm(dim=0)

    def opened(self, read: Float[Tensor, "... part"]) -> Float[Tensor, "... part"]:
        """Returns what gates say of what their parts read, before it is cut to 0 and 1."""
        w, b, out = self.gate
        return (gelu(read[..., None] * w + b) * out).sum(-1) + self.offset

    def masked(self, output: Float[Tensor, "batch position d"]) -> Float[Tensor, "batch position d"]:
        """A node's output with each part times a random number between its need and 1.

        Gates leak below where they are masks and above where they are paid for, so that none is stuck.
        """
        turned = self.turned()
        read = output @ self.into @ turned
        opened = self.opened(read)
        cut = opened.clamp(0, 1)
        mask, paid = cut + LEAK * opened.clamp(max=0), cut + LEAK * (opened - 1).clamp(min=0)
        self.price = paid.sum(-1).mean()
        lost = (1 - mask) * torch.rand(mask.shape, generator=self.generator, dtype=mask.dtype)
        return output - (read * lost) @ torch.linalg.inv(turned) @ self.back

    @torch.no_grad()
    def parts(self, output: Float[Tensor, "batch position d"]) -> Parts:
        """Returns what was fitted."""
        turned, (reads, writes) = self.turned(), self.matrix
        needed = self.opened(output @ self.into @ turned).clamp(0, 1)
        return Parts(reads @ turned, torch.linalg.inv(turned) @ writes, needed)


def needs(case: Case, parts: Mapping[str, Parts]) -> dict[str, float]:
    """Count how many parts of each node are needed at a position, mean over sequences; 0 without parts."""
    needed = {name: float(of.needed.sum(-1).mean()) for name, of in parts.items()}
    return {name: needed.get(name, 0.0) for name in case.nodes}


def parameter_decomposition(case: Case) -> dict[str, float] | str:
    """Claim of each node how many parts of what it writes are needed at a position.

    Only of two layers of attention without an MLP, as the induction pair is.
    """
    if not case.model.config.attn_only or case.model.config.n_layers != 2:
        return "only models of two attention layers without MLPs are decomposed"
    return needs(case, decompose(case))


BUSHNAQ = "Bushnaq et al. 2025 (arXiv 2506.20790), cut down"
decomposition = Method(
    "parameter-decomposition",
    "nodes",
    parameter_decomposition,
    BUSHNAQ,
    (),
    tunes="parts and gates, by KL",
    passes=STEPS + 2,
)
