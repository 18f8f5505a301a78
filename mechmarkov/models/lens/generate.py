"""Sequences drawn from a decoder, with HookedTransformer's arguments (3.9, `HookedTransformer.generate`)."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from tqdm import tqdm
from transformer_lens.utilities import sample_logits

from mechmarkov.models.lens.errors import LensError, NoTokenizerError
from mechmarkov.utils.text import shown

KINDS = ("input", "str", "tokens", "embeds")


@torch.no_grad()
def generate(
    self: Any,
    input: Int[Tensor, "*batch position"] | Float[Tensor, "*batch position d_model"] | str = "",  # noqa: A002
    max_new_tokens: int = 10,
    stop_at_eos: bool | None = None,
    eos_token_id: int | Sequence[int] | None = None,
    do_sample: bool = True,
    top_k: int | None = None,
    top_p: float | None = None,
    temperature: float = 1.0,
    freq_penalty: float = 0.0,
    use_past_kv_cache: bool = True,  # noqa: ARG001 - whole sequences are computed, whose results are equal
    prepend_bos: bool | None = None,  # noqa: ARG001 - only of text
    padding_side: str | None = None,  # noqa: ARG001
    return_type: str = "input",
    verbose: bool = True,
    *,
    seed: int | None = 0,
    **generation_kwargs: Any,
) -> Any:
    """Draw tokens one after the other, each from `softmax(logits / temperature)`.

    Members of a stack draw each their own. Every step computes the whole sequence, and hooks see it, as
    HookedTransformer's with `use_past_kv_cache=False`.

    Args:
        self: The model.
        input: Tokens `[batch, position]`, one sequence `[position]`, or embeddings without positions
            `[batch, position, d_model]`; of a stack those of each member too.
        max_new_tokens: How many are drawn; the context must hold all that is read.
        stop_at_eos: End a sequence at `eos_token_id`; by default where one is given. Sequences that have
            ended go on with that token.
        eos_token_id: One token, or several of which any ends; the first fills.
        do_sample: False takes the likeliest token.
        top_k: The number of likeliest tokens to draw from.
        top_p: Draw from the likeliest tokens that have this probability together.
        temperature: 0 takes the likeliest token.
        freq_penalty: Taken from a token's logit for each time that it is in the sequence.
        use_past_kv_cache: Changes nothing here.
        prepend_bos: What it is in `HookedDecoder.forward`.
        padding_side: What it is in `HookedDecoder.forward`.
        return_type: "input": as what was given; "tokens", "embeds", or "str": labels with spaces between.
        verbose: Show a bar on a terminal.
        seed: The seed of the draws. None: torch's own generator, from which HookedTransformer draws.
        **generation_kwargs: `output_logits=True` returns transformers' `GenerateDecoderOnlyOutput`. Others
            are ignored with a warning, as by HookedTransformer.

    Returns:
        The sequences with what was drawn `[*stack, batch, position]`; only what was drawn where embeddings
        were given and tokens are wanted.

    Raises:
        NoTokenizerError: For a text.
        LensError: For an argument out of range, sequences that do not fit the context, and a model whose
            outputs are not logits of the next token.

    Example:
        >>> from mechmarkov.models.constructions.lookup_tables import direct_table
        >>> model = direct_table(torch.tensor([[0.0, 9.0], [9.0, 0.0]]), n_ctx=4)  # the other token follows
        >>> model.generate(torch.tensor([[0, 1]]), max_new_tokens=3, do_sample=False)
        tensor([[0, 1, 0, 1, 0]])
    """
    if not isinstance(input, Tensor):
        raise NoTokenizerError("generate from a text")
    if self.not_logits is not None:
        raise LensError(f"generate: {self.not_logits}")
    if return_type not in KINDS:
        raise LensError(f"return_type is {shown(return_type)}, expected one of {', '.join(map(repr, KINDS))}")
    if stop_at_eos and eos_token_id is None:
        raise LensError("stop_at_eos is true, but there is no tokenizer to say where: give eos_token_id")
    is_tokens = not input.is_floating_point()
    if freq_penalty and not is_tokens:
        raise LensError(
            f"freq_penalty is {freq_penalty}, but embeddings have no tokens to count: give tokens"
        )
    _check_length(self, input.shape[-1 if is_tokens else -2], max_new_tokens)
    with_logits = bool(generation_kwargs.pop("output_logits", False))
    _warn_of(set(generation_kwargs) - {"return_dict_in_generate"})
    how = {"top_k": top_k, "top_p": top_p, "temperature": temperature, "freq_penalty": freq_penalty}
    ends: list[int] = []
    if stop_at_eos is not False and eos_token_id is not None:
        ends = [eos_token_id] if isinstance(eos_token_id, int) else [*eos_token_id]

    embeds = None if is_tokens else self._checked_residual(input)
    tokens = self._checked(input) if embeds is None else embeds.new_zeros(*embeds.shape[:-2], 0).long()
    drawn, logits = tokens[..., :0], list[Tensor]()
    ended = tokens.new_zeros(*tokens.shape[:-1], 1).bool()
    with _drawing(seed, tokens.device):
        for _ in tqdm(range(max_new_tokens), disable=None if verbose else True, leave=False):
            logits.append(_last_logits(self, tokens, drawn, embeds))
            new = _draw(logits[-1], (tokens, drawn), do_sample, **how)
            if ends:
                new = torch.where(ended, ends[0], new)
                ended = ended | torch.isin(new, torch.tensor(ends, device=new.device))
            drawn = torch.cat([drawn, new], -1)
            if ends and bool(ended.all()):
                break
    whole = torch.cat([tokens, drawn], -1)
    if with_logits:
        from transformers.generation.utils import GenerateDecoderOnlyOutput  # takes seconds

        return GenerateDecoderOnlyOutput(sequences=whole, logits=tuple(logits))  # type: ignore[arg-type]
    if return_type == "input":
        return_type = "tokens" if is_tokens else "embeds"
    if return_type == "tokens":
        return whole
    if return_type == "str":
        texts = self.to_string(whole.flatten(0, -2))
        return texts[0] if len(texts) == 1 else texts
    return torch.cat([self.embed(tokens) if embeds is None else embeds, self.embed(drawn)], -2)


def _check_length(model: Any, length: int, new: int) -> None:
    """Refuse a sequence that outgrows the context, before anything is computed."""
    n_ctx = model.config.n_ctx
    if new < 1:
        raise LensError(f"max_new_tokens is {new}, expected at least 1")
    if length + new - 1 > n_ctx:
        room = n_ctx - length + 1
        way = f"give max_new_tokens={room} at most" if room > 0 else f"give the last {n_ctx} positions"
        raise LensError(f"{length} positions and {new} new tokens do not fit n_ctx = {n_ctx}: {way}")


def _draw(logits: Tensor, seen: tuple[Tensor, Tensor], sample: bool, **how: Any) -> Int[Tensor, "*batch 1"]:
    """The next token of each sequence, after those that are seen."""
    if not sample:
        return logits.argmax(-1, keepdim=True)
    new: Tensor = sample_logits(logits.flatten(0, -2), tokens=torch.cat(seen, -1).flatten(0, -2), **how)
    return new.view(*logits.shape[:-1], 1)


def _warn_of(unknown: set[str]) -> None:
    if unknown:
        names = ", ".join(sorted(unknown))
        warnings.warn(f"generate received unsupported generation kwargs; ignoring: {names}", stacklevel=4)


def _last_logits(model: Any, tokens: Tensor, drawn: Tensor, embeds: Tensor | None) -> Tensor:
    """Logits after the last position, `[*stack, batch, d_vocab_out]`."""
    if embeds is None:
        logits: Tensor = model(torch.cat([tokens, drawn], -1))
    else:
        residual, _ = model.get_residual(torch.cat([embeds, model.embed(drawn)], -2))
        logits = model(residual, start_at_layer=0)
    return logits[..., -1, :]


@contextmanager
def _drawing(seed: int | None, device: torch.device) -> Iterator[None]:
    """Draw from a seed, and leave torch's generators as they were."""
    if seed is None:
        yield
        return
    devices = range(torch.cuda.device_count()) if device.type == "cuda" else ()
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        yield
