"""The forward pass of somebody's model, watched: what it does with each weight, in its order.

Its functions are watched while it reads tokens with weights that are drawn at random: zeros and ones of a
start would make different codes look the same. How a weight is kept, in a module or as a bare parameter,
plays no part.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from mechmarkov.importing.live.events import Attention, Linear, Lookup, Mix, Norm, Pass, normed_as, same
from mechmarkov.importing.live.logits import Tokens, outputs
from mechmarkov.importing.live.products import is_mask, is_turned, order_of_axes, side_by_side
from mechmarkov.importing.reparametrized import with_made_weights
from mechmarkov.utils.exits import without_faults

MAX_EPS = 1e-2  # a larger number is not one that is added to a variance
NORMS = {
    "layer_norm": ("LN", ("input", "normalized_shape", "weight", "bias", "eps")),
    "rms_norm": ("RMS", ("input", "normalized_shape", "weight", "eps")),
}
# How functions are called, without what stands around their names.
PRODUCTS, ROWS = (
    ("linear", "matmul", "mm", "bmm", "addmm", "einsum"),
    ("embedding", "getitem", "index_select"),
)
COPIES = ("to", "contiguous", "clone", "float", "double", "type_as")  # of a weight, its numbers as they are
SHARES = ("div", "truediv", "exp")
PLUS, TIMES = ("add", "iadd", "radd"), ("mul", "imul", "rmul", "div", "truediv")
WHOLE = (
    *("query", "key", "value", "embed_dim_to_check", "num_heads", "in_proj_weight", "in_proj_bias", "bias_k"),
    *("bias_v", "add_zero_attn", "dropout_p", "out_proj_weight", "out_proj_bias"),
)
SEQUENCES = 7  # a number that no count of heads or tokens is likely to be


def passes(
    model: nn.Module,
    tokens: Tokens,
    vocabularies: Sequence[int] = (),
    *,
    drawn: bool = True,
    own: Collection[str] = (),
    failures: list[Exception] | None = None,
) -> Iterator[Pass]:
    """Yields a model's forward passes, of those ways of calling it that do not fail.

    Args:
        model: The model; it is left as it was.
        tokens: What it reads.
        vocabularies: How many tokens there may be, for a model that reads one-hot vectors.
        drawn: Whether it computes with weights that are drawn, instead of its own.
        own: Names of weights that are its own all the same.
        failures: Takes the errors of the other ways.

    Example:
        >>> model = nn.Sequential(nn.Embedding(3, 4), nn.Linear(4, 3))
        >>> [type(event).__name__ for event in next(passes(model, torch.tensor([[0, 1]]))).events]
        ['Lookup', 'Linear']
    """
    forms: list[Tensor] = [tokens, tokens.T]
    for count in vocabularies:
        if count > int(tokens.max()):
            one_hot = nn.functional.one_hot(tokens, count).float()
            forms += [one_hot, one_hot.transpose(0, 1)]
    for dtype in (torch.float64, torch.float32):
        for read in forms:
            if dtype is torch.float64:  # a mask that code keeps for good is then that of float32
                any(not isinstance(output, Exception) for output in outputs(model, read, torch.float32))
            with ExitStack() as stack:
                watch = _Watch(tokens, drawn, own)
                stack.callback(model.register_forward_pre_hook(watch.begin).remove)
                stack.enter_context(watch)
                seen = []
                for output in outputs(model, read, dtype):
                    if not isinstance(output, Exception):
                        seen.append(watch.seen)
                    elif failures is not None:
                        failures.append(output)
            yield from seen  # when nothing watches any more


def few_tokens(n_positions: int) -> Tokens:
    """Returns sequences of two tokens, which every model knows."""
    generator = torch.Generator("cpu").manual_seed(0)
    n_sequences = SEQUENCES + (n_positions == SEQUENCES)  # so that the two axes are told apart
    return torch.randint(2, (n_sequences, n_positions), generator=generator, device="cpu")


class _Watch(TorchFunctionMode):
    """Notes what functions do with weights while a model runs."""

    def __init__(self, tokens: Tokens, drawn: bool, own: Collection[str]) -> None:
        super().__init__()
        self.tokens, self.drawn, self.own, self.seen = tokens, drawn, own, Pass()
        self.weights: dict[str, Tensor] = {}  # by the first of their names
        self.made: dict[str, Tensor] = {}  # those that parametrizations make of others in the pass
        self.by_storage: dict[int, str] = {}
        self.plus: dict[int, float] = {}  # what is added to a weight, by where the sum lies
        self.held: list[Tensor] = []  # so that no storage is used a second time
        self.is_on = False

    def begin(self, model: nn.Module, _: object) -> None:
        """Draw the weights, and note where each lies."""
        self.is_on = False
        self.tokens = self.tokens.to(next(model.parameters()).device)
        if self.drawn:
            draw(model, self.own)
        buffers = dict(model.named_buffers())
        own = {**dict(model.named_parameters(remove_duplicate=False)), **buffers}
        names: dict[str, list[str]] = {}
        self.by_storage, self.plus, self.held = {}, {}, []
        for name, value in own.items():
            first = self.by_storage.setdefault(value.untyped_storage().data_ptr(), name)
            names.setdefault(first, []).append(name)
        whole = with_made_weights(model, own)  # without those that others are made of
        self.made = {name: value.detach() for name, value in whole.items() if name not in own}
        self.weights = {name: value.detach().squeeze() for name, value in whole.items()}
        sizes = {name: tuple(value.shape) for name, value in self.weights.items()}
        self.seen = Pass(
            names={
                first: names.get(first, [first]) for first in whole if first in names or first in self.made
            },
            buffers=[*buffers, *(name for name, value in whole.items() if is_mask(value))],
            sizes=sizes,
        )
        self.is_on = True

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if self.is_on:
            self.is_on = False
            first = out[0] if isinstance(out, tuple) and out else out
            if isinstance(first, Tensor):
                with without_faults():  # what cannot be noted leaves a gap, which logits show
                    self._note(func.__name__.strip("_"), args, kwargs or {}, first)
            self.is_on = True
        return out

    def _note(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], out: Tensor) -> None:
        several = [x if isinstance(x, list | tuple) else [x] for x in (*args, *kwargs.values())]
        given = [value for values in several for value in values if isinstance(value, Tensor)]
        named = [(value, weight) for value in given if (weight := self._name(value)) is not None]
        others = [value for value in given if self._name(value) is None]
        if name == "softmax":
            options = _options(("input", "dim"), args, kwargs)
            self._softmax(options["input"], options.get("dim"))
        elif name == "scaled_dot_product_attention":
            self._products(**_options(("query", "key", "value", "attn_mask"), args, kwargs))
        elif name in NORMS:
            kind, order = NORMS[name]
            self._norm(kind, out, _options(order, args, kwargs))
        elif name == "one_hot":
            if self._are_tokens(given[0]):
                self.seen.events.append(Lookup(None, "tokens", self._rows(out).double()))
        elif name in SHARES and self._are_shares(out):  # a softmax that is written out, or mended after it
            if self.seen.events and isinstance(self.seen.events[-1], Mix):
                self.seen.events.pop()
            self._softmax(out.log())
        elif name in TIMES and not named:
            self._scaled(name, args, out)
        elif name in PLUS and not named:
            numbers = (float(x) for x in args if isinstance(x, float) or getattr(x, "ndim", 1) == 0)
            self.seen.small.extend(x for x in numbers if 0 < x <= MAX_EPS)
        elif not named or out.untyped_storage().data_ptr() in self.by_storage:  # no weight, or a view of one
            return
        elif name in COPIES:
            if self._name(args[0]) is not None:  # else a weight says the number type only
                self._derive(args[0], out)
        elif name in PLUS and not others and len(args) == 2 and isinstance(args[1], int | float):
            self._derive(args[0], out, float(args[1]))
        elif not (
            (name == "multi_head_attention_forward" and self._attention(**_options(WHOLE, args, kwargs)))
            or (name in PRODUCTS and self._product(named, others, out))
            or (name in ROWS and self._looked_up(named[0], others, out))
            or (name in PLUS and self._added(named[0], out))
            or (name in TIMES and self._gain(named[0], others, out))
        ):
            for value, weight in named:
                if weight in self.weights and weight not in self.seen.buffers:  # of masks and counters
                    part = "is used in parts, by" if value.numel() < self.weights[weight].numel() else ""
                    self.seen.strange.setdefault(weight, f"{part or 'goes through'} `{name}`")

    def _name(self, value: Tensor) -> str | None:
        """Returns the name of the weight that a tensor is or shows a part of."""
        where = value.untyped_storage().data_ptr()
        for name, made in self.made.items() if where not in self.by_storage else ():
            if made.shape == value.shape and same(made, value.detach()):
                self.by_storage[where] = name
                self.held.append(value)
        return self.by_storage.get(where)

    def _derive(self, weight: Tensor, out: Tensor, plus: float = 0.0) -> None:
        """Note that a tensor is a weight, to which a number may be added."""
        name, where = str(self._name(weight)), out.untyped_storage().data_ptr()
        self.by_storage[where] = name
        self.plus[where] = plus + self.plus.get(weight.untyped_storage().data_ptr(), 0.0)
        self.held.append(out)

    def _rows(self, x: Tensor) -> Tensor:
        """A copy with axes `[batch, position, …]`, where it has these in another order or in one."""
        batch, length = self.tokens.shape
        self.held.append(x)
        x = x.detach().clone()
        if x.shape[:2] == (length, batch):
            x = x.transpose(0, 1)
        if x.ndim == 4 and x.shape[1] != length == x.shape[2]:  # heads come first
            x = x.transpose(1, 2)
        return x.unflatten(0, (batch, length)) if x.ndim > 1 and len(x) == batch * length else x

    def _are_tokens(self, index: Tensor) -> bool:
        rows = self._rows(index)
        if rows.numel() != self.tokens.numel():
            return False
        return bool((rows.reshape(self.tokens.shape) == self.tokens).all())

    def _are_shares(self, out: Tensor) -> bool:
        """Returns whether numbers of queries and keys are shares of one."""
        length = self.tokens.shape[1]
        if out.ndim < 3 or out.shape[-2:] != (length, length) or bool((out < 0).any()):
            return False
        return same(out.sum(-1), torch.ones_like(out[..., 0]))

    def _looked_up(self, named: tuple[Tensor, str], others: Sequence[Tensor], out: Tensor) -> bool:
        index = next((x for x in others if x.dtype in (torch.int64, torch.int32)), None)
        if index is None:
            return False
        rows = self._rows(index)
        if self._are_tokens(index):
            self.seen.events.append(Lookup(named[1], "tokens", self._rows(out)))
            return True
        first, length = int(index.flatten()[0]), self.tokens.shape[1]
        positions = first + torch.arange(length, device=index.device)
        if rows.numel() % length or not bool((rows.reshape(-1, length) == positions).all()):
            return False
        self.seen.events.append(
            Lookup(named[1], "positions", out.detach().reshape(-1, length, out.shape[-1])[0], first)
        )
        return True

    def _product(self, named: Sequence[tuple[Tensor, str]], others: Sequence[Tensor], out: Tensor) -> bool:
        matrices = [weight for _, weight in named if self.weights[weight].ndim > 1]
        biases = [weight for _, weight in named if self.weights[weight].ndim == 1]
        if len(matrices) != 1 or len(others) != 1 or len(biases) > 1:
            return False
        matrix, bias = self.weights[matrices[0]], self.weights[biases[0]] if biases else torch.zeros(1)
        x, y = self._rows(others[0]), side_by_side(self._rows(out))
        x = x.squeeze(2) if x.ndim == 4 else x  # one for all heads
        transpose = is_turned(side_by_side(x), matrix, bias.to(y), y) if matrix.ndim == 2 else None
        axes = order_of_axes(x, matrix, y) if matrix.ndim == 3 else None
        if transpose is None and axes is None:
            return False
        is_one_hot = x.shape[:2] == self.tokens.shape and same(x.square().sum(-1), torch.ones_like(x[..., 0]))
        if is_one_hot and bool(((x == 0) | (x == 1)).all()):
            self.seen.events.append(Lookup(matrices[0], "tokens", y, transpose=bool(transpose)))
        else:
            self.seen.events.append(
                Linear(matrices[0], x, y, transpose, biases[0] if biases else None, axes=axes)
            )
        return True

    def _added(self, named: tuple[Tensor, str], out: Tensor) -> bool:
        """A bias of the last product or norm, or a table of positions."""
        (value, weight), (batch, length), width = named, self.tokens.shape, named[0].shape[-1]
        table = value.detach().squeeze()
        if value.ndim == 3 and value.numel() == batch * length * width:  # the same of each sequence
            table = self._rows(value)[0]
        if table.ndim > 1 and table.numel() == length * width:
            first = value.storage_offset() // width
            self.seen.events.append(Lookup(weight, "positions", table.reshape(length, width), first))
            return True
        last = self.seen.events[-1] if self.seen.events else None
        if not isinstance(last, Linear | Norm) or last.bias is not None or value.numel() != last.y.shape[-1]:
            return False
        y = last.y + self.weights[weight].flatten()
        if same(y, side_by_side(self._rows(out))):  # not the other term, which may be changed in place
            last = replace(last, y=y)
        elif isinstance(last, Norm):
            return False  # of a product, one that is added after the sum with the stream is the same
        self.seen.events[-1] = replace(last, bias=weight)
        return True

    def _gain(self, named: tuple[Tensor, str], others: Sequence[Tensor], out: Tensor) -> bool:
        """A norm whose code is its own ends in a product with its gain."""
        if named[0].squeeze().ndim != 1 or not others or others[0].ndim < 3:
            return False
        x = self._rows(others[0])
        plus = self.plus.get(named[0].untyped_storage().data_ptr(), 0.0)
        last, y = self.seen.events[-1] if self.seen.events else None, self._rows(out)
        if isinstance(last, Norm) and last.weight is None and same(last.y, x):  # torch's norm without a gain
            self.seen.events[-1] = replace(last, weight=named[1], y=y, plus=plus)
            return True
        if (kind := normed_as(x)) is None:
            return False
        eps = self.seen.small[-1] if self.seen.small else 0.0
        self.seen.events.append(Norm(kind, None, y, named[1], None, eps, plus))
        return True

    def _norm(self, kind: str, out: Tensor, options: Mapping[str, Any]) -> None:
        weights = (options.get(name) for name in ("weight", "bias"))
        gain, shift = (None if x is None else self._name(x) for x in weights)
        eps = options.get("eps", 1e-5 if kind == "LN" else None)
        eps = torch.finfo(torch.float32).eps if eps is None else eps  # as torch does where none is given
        self.seen.events.append(Norm(kind, self._rows(options["input"]), self._rows(out), gain, shift, eps))

    def _scaled(self, name: str, args: Sequence[Any], out: Tensor) -> None:
        """Note a number that rows of a table, or what a product gives, are multiplied by."""
        numbers = [x for x in args if isinstance(x, int | float) or (isinstance(x, Tensor) and x.ndim == 0)]
        last = self.seen.events[-1] if self.seen.events else None
        if len(numbers) != 1 or not isinstance(last, Lookup | Linear):
            return
        by = float(numbers[0]) if "mul" in name else 1 / float(numbers[0])
        if same(last.y * by, side_by_side(self._rows(out))):
            self.seen.events[-1] = replace(last, y=last.y * by, scale=last.scale * by)

    def _attention(self, query: Tensor, key: Tensor, value: Tensor, num_heads: int, **options: Any) -> bool:
        parts = ("in_proj_weight", "in_proj_bias", "out_proj_weight", "out_proj_bias")
        names = {x: name for x in parts if options.get(x) is not None and (name := self._name(options[x]))}
        further = [options.get(x) for x in ("bias_k", "add_zero_attn", "use_separate_proj_weight")]
        has_more = any(x is not None and x is not False for x in further)
        if has_more or "in_proj_weight" not in names or not (same(key, query) and same(value, query)):
            return False
        self.seen.events.append(Attention(self._rows(query), num_heads, names))
        return True

    def _products(
        self,
        query: Tensor,
        key: Tensor,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        scale: float | None = None,
        **_: Any,
    ) -> None:
        """Note the scores of a fused attention, `[…, head, position, d_head]`."""
        if key.ndim > 3 and key.shape[-3] != query.shape[-3]:
            key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
        if is_causal:
            attn_mask = torch.ones_like(scores, dtype=torch.bool).tril()
        if attn_mask is not None:
            is_seen = attn_mask.dtype == torch.bool
            scores = scores.masked_fill(~attn_mask, -torch.inf) if is_seen else scores + attn_mask
        self._softmax(scores)

    def _softmax(self, scores: Tensor, dim: int | None = -1) -> None:
        (batch, length), scores = self.tokens.shape, scores.detach()
        if dim not in (-1, scores.ndim - 1) or scores.shape[-2:] != (length, length) or scores.ndim < 3:
            return
        if scores.ndim == 4 and scores.shape[1] == batch != scores.shape[0]:
            scores = scores.transpose(0, 1)
        if len(scores) % batch == 0:  # heads may lie in the first axis, after sequences
            self.seen.events.append(Mix(scores.reshape(batch, -1, length, length).clone()))


def _options(order: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a function's arguments by their names."""
    return {**dict(zip(order, args, strict=False)), **kwargs}


def draw(model: nn.Module, but: Collection[str] = (), size: float = 1.0) -> None:
    """Give a model random weights, by which numbers of about one become such, or `size` times as large."""
    generator = torch.Generator("cpu").manual_seed(0)
    for name, value in model.named_parameters():
        if name in but or is_mask(value):
            continue
        drawn = torch.randn(value.shape, generator=generator, device="cpu", dtype=torch.float64)
        value.data.copy_(size * drawn / value.shape[-1] ** 0.5 if value.ndim > 1 else 1 + drawn.tanh() / 2)
