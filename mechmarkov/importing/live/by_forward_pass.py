"""A model whose names nobody knows, read by what its forward pass does with its weights.

The order of products, and which of them read the same, tell layers apart. The numbers between them tell how
heads lie in a weight, how scores are scaled and which activation there is. What is read is checked as always:
by the logits of the conversion.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from mechmarkov.importing.live.embeddings import first_stream, measured_embeddings, put_embeddings
from mechmarkov.importing.live.events import Attention, Linear, Norm, Pass, normed_as, same
from mechmarkov.importing.live.forward_pass import few_tokens, passes
from mechmarkov.importing.live.heads import HIDDEN
from mechmarkov.importing.live.inside import Inside, attribute
from mechmarkov.importing.live.layers import Group, Layer, groups_of, layers_of
from mechmarkov.importing.live.name_table import NameTable, UnclearError
from mechmarkov.importing.live.products import is_mask
from mechmarkov.importing.live.reading import Fields, Reading
from mechmarkov.importing.live.settings import numbers_called
from mechmarkov.importing.names import plan as named
from mechmarkov.models.alibi import alibi
from mechmarkov.models.layers import ACTIVATIONS
from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.utils.exits import is_by_signal
from mechmarkov.utils.text import error_line, listed

LONG, SHORT = 11, 5  # positions: the first shows windows of a few
# Of a gate and what it multiplies.
ORDERS: Mapping[int, Sequence[tuple[int, ...]]] = {1: [(0,)], 2: [(0, 1), (1, 0)]}
MAX_SIZE = 4096  # of vocabularies and contexts that are tried
CONTEXTS = (
    "n_ctx", "block_size", "context_length", "max_seq_len", "max_len", "seq_len", "n_positions", "max_length",
    "max_position_embeddings", "context_size", "ctx_len",
)  # fmt: skip


def reading(live: Inside, given: Fields, n_ctx: int | None) -> Reading:
    """Returns how a model is read whose names nobody knows.

    Args:
        live: The model.
        given: Fields of the config that the caller says.
        n_ctx: The length of its context, where the caller says it.

    Raises:
        UnclearError: With what is not understood.
    """
    reasons, failures = list[str](), dict[int, list[Exception]]()
    tensors = [*live.model.parameters(), *live.model.buffers()]
    sizes = sorted({size for value in tensors if value.ndim > 1 for size in value.shape if size <= MAX_SIZE})
    masks = [x.shape[-1] for x in live.model.buffers() if is_mask(x)]
    contexts = [n_ctx] if n_ctx else [x for x in numbers_called(live, CONTEXTS) if x > 0] or masks
    for length in dict.fromkeys((min([LONG, *contexts]), SHORT, *contexts, *sizes)):
        reasons.clear()
        for one in passes(live.model, few_tokens(length), sizes, failures=failures.setdefault(length, [])):
            try:
                table = _read(one)
            except UnclearError as error:
                reasons += [f"{weight} {words}" for weight, words in one.strange.items()]
                reasons.append(str(error))
                continue
            except Exception as error:  # of code that nobody thought of
                if is_by_signal(error):
                    raise
                reasons.append(f"it is not understood, {error_line(error)}")
                continue
            return _as_reading(live, table, given, n_ctx or min(contexts, default=None) or table.n_positions)
        if reasons and length <= SHORT:  # other lengths are for a model that takes one only
            break
    if reasons:
        raise UnclearError(reasons[0])
    holders = [name for name, part in live.model.named_children() if _holds_all(part, live.model)]
    advice = f"; pass {attribute(holders[0])}" if holders else ""
    raise UnclearError(f"called with tokens it fails, {error_line(failures[min(failures)][0])}{advice}")


def _holds_all(part: nn.Module, model: nn.Module) -> bool:
    own = {id(value) for value in part.parameters()}
    return all(id(value) in own for value in model.parameters())


def _as_reading(live: Inside, table: NameTable, given: Fields, n_ctx: int | None) -> Reading:
    if n_ctx is None and table.positions != "named":
        raise RunFileError(
            f"nothing tells how many tokens {live.kind()} reads at most: say it, n_ctx=32 or "
            'given={"n_ctx": 32}'
        )
    made: Mapping[str, Tensor] = {}
    if table.positions == "measured":
        made = measured_embeddings(live, table.d_vocab, n_ctx or 1)
    if table.biases:
        made = {**made, **_biases(live, table, n_ctx or 1)}
    elif table.positions == "none":
        table.fields.setdefault("positional_embedding_type", "none")
    names = {name: lines[0] if len(lines) == 1 else lines for name, lines in table.lines.items()}
    names["missing"] = {
        **{r".*\.W_[KVO]": "identity", r".*\.[qk]_norm\.w": "ones", r".*\.(b|_?b_\w+)": "zeros"},
        **table.missing,
    }
    fields = {**table.fields, **given}
    if n_ctx is not None:
        fields.setdefault("n_ctx", n_ctx)
    shown = {name: _shown(line) for name, line in names.items() if name != "missing" and line}
    return Reading(
        lambda _: named.of_live_model(live.model, names, fields, made),
        said={"names": shown, **({"measured": [*made]} if made else {})},
        advice=f"; which weight is which was taken from its forward pass{table.advice}: say it by names=",
        modules=named.modules_of(live.model, names),
        again=lambda choice: _as_reading(live, table, given, n_ctx).read(choice),
    )


def _biases(live: Inside, table: NameTable, n_ctx: int) -> dict[str, Tensor]:
    """Measure what is added to scores by lag: computed, or made of weights that nothing else reads."""
    if table.positions != "none":
        raise UnclearError("scores have a bias by lag, next to positions of another kind")
    for one in passes(live.model, few_tokens(n_ctx), own=table.odd):
        biases = _read(one, table.odd, biased=True).biases
        for layer, bias in table.biases.items():  # a bias of zeros is not seen
            biases.setdefault(layer, bias.new_zeros(len(bias), n_ctx))
        if all(same(bias, alibi(bias.shape[0], bias.shape[1], bias)) for bias in biases.values()):
            table.fields["positional_embedding_type"] = "alibi"
            return {}
        table.fields["positional_embedding_type"] = "relative_bias"
        return {f"blocks.{layer}.attn.b_rel": bias.float().cpu() for layer, bias in biases.items()}
    raise UnclearError(f"the bias of its scores cannot be measured with {n_ctx} tokens")


def _shown(line: Any) -> Any:
    """Returns HookedTransformer's names in a line, for provenance."""
    lines = line if isinstance(line, list) else [line]
    names = [name for one in lines for name in (one["to"] if isinstance(one["to"], list) else [one["to"]])]
    return names[0] if len(names) == 1 else names


def _read(one: Pass, odd: Collection[str] = (), *, biased: bool = False) -> NameTable:
    """Returns the table of a forward pass.

    Args:
        one: The pass.
        odd: Weights that are known to make a bias of scores.
        biased: Whether scores are known to have one.
    """
    table = NameTable(odd=one.strange)
    put_embeddings(one, table)
    groups = groups_of(one)
    if groups and len(groups[-1].linears) > 1 and not groups[-1].mixes:
        names = listed([linear.weight for linear in groups[-1].linears])
        raise UnclearError(f"{names} read the same last: pass a module around it that computes one of them")
    if not groups or len(groups[-1].linears) != 1:
        raise UnclearError("its last product with a weight is not one that gives logits")
    last = groups.pop().linears[0]
    table.linear(last, "U", at="unembed")
    stream = first_stream(one)
    if stream is not None and stream.shape[-1] != last.x.shape[-1]:
        read, width = last.x.shape[-1], stream.shape[-1]
        raise UnclearError(f"{last.weight} reads {read} numbers, of a stream of {width}")
    layers = layers_of(groups, last.x.shape[-1], biased)
    norms = one.of(Norm)
    sites = [("ln_final", last.x)]
    for number, layer in enumerate(layers):
        at = f"blocks.{number}"
        x = _attention(layer, table, f"{at}.attn")
        biases = [
            heads.bias for _, heads, _ in layer.attention if heads is not None and heads.bias is not None
        ]
        if biases:
            table.biases[number] = torch.cat(biases)
        sites.append((f"{at}.ln1", x))
        if layer.mlp is None:
            continue
        _mlp(*layer.mlp, table, f"{at}.mlp")
        reads = layer.mlp[0].x()
        sites.append((f"{at}.ln2", reads))
        before = [norm.x for site in (x, reads) for norm in norms if same(norm.y, site)]
        shared = len(before) == 2 and before[0] is not None and before[1] is not None and same(*before)
        table.say(parallel_attn_mlp=shared or same(x, reads))
    without = [number for number, layer in enumerate(layers) if layer.mlp is None]
    if len(without) < len(layers):
        table.missing = {rf"blocks\.{number}\.mlp\..*": "zeros" for number in without}
    _norms(norms, sites, table, one.small[-1] if one.small else 0.0)
    later = [mix.scores[..., :-1, -1] for group in groups for mix in group.mixes]
    if any(bool((scores > HIDDEN).any()) for scores in later):
        table.advice = " (its scores are not masked: are later tokens seen?)"
    for weight, words in one.strange.items():
        if not table.biases and weight not in odd:
            raise UnclearError(f"{weight} {words}")
    for first, others in one.names.items():
        for name in others if first not in table.lines else [other for other in others if other != first]:
            table.lines.setdefault(name, [""])  # a second name, or what no function reads
    return table


def _attention(layer: Layer, table: NameTable, at: str) -> Tensor:
    """Put the weights of a layer's attention; returns what it reads."""
    (group, *_), several = layer.attention[0], len(layer.attention) > 1
    if group.whole:
        _torchs_own(group.whole, table, at)
    for number, (_, heads, out) in enumerate(layer.attention):
        if heads is None:
            continue
        head = {"head": str(number)} if several else {}
        for line in heads.lines:
            table.linear(line.linear, *line.sides, at=at, **{**line.options, **head})
        for norm, side in zip(heads.norms, "qk", strict=False):
            if norm.weight is not None:
                table.put(norm.weight, f"{at}.{side}_norm.w")
        n_heads = heads.fields["n_heads"] * len(layer.attention)
        table.say(**{**heads.fields, "n_heads": n_heads})
        if out is None:
            continue
        if several and out.bias is not None:
            raise UnclearError(f"{out.bias} is a bias of one head's output")
        table.linear(out, "O", at=at, **head)
    return group.x()


def _torchs_own(whole: Attention, table: NameTable, at: str) -> None:
    """Put the weights of a `torch.nn.MultiheadAttention`."""
    for part, letter in (("in_proj_weight", "W"), ("in_proj_bias", "b")):
        if part in whole.names:
            turn = True if letter == "W" else None
            table.put(
                whole.names[part], *(f"{at}.{letter}_{x}" for x in "QKV"), split="parts", transpose=turn
            )
    table.put(whole.names["out_proj_weight"], f"{at}.W_O", transpose=True)
    if "out_proj_bias" in whole.names:
        table.put(whole.names["out_proj_bias"], f"{at}.b_O")
    table.say(n_heads=whole.n_heads)


def _mlp(group: Group, down: Linear, table: NameTable, at: str) -> None:
    """Put the weights of an MLP: the activation is the one by which its hidden units follow."""
    names = listed([*(up.weight for up in group.linears), down.weight])
    # A product that is halved may be the first step of gelu, written out.
    as_it_is = [replace(up, y=up.y / up.scale, scale=1.0) for up in group.linears]
    for ups in (as_it_is, group.linears):
        is_fused = len(ups) == 1 and ups[0].y.shape[-1] == 2 * down.x.shape[-1]
        values = [*ups[0].y.chunk(2, -1)] if is_fused else [up.y for up in ups]
        for order, name in product(ORDERS[len(values)], ACTIVATIONS):
            gate, *rest = (values[number] for number in order)
            hidden = ACTIVATIONS[name](gate) * rest[0] if rest else ACTIVATIONS[name](gate)
            if not same(hidden, down.x):
                continue
            kinds = ["in"] if not rest else ["gate", "in"] if order == (0, 1) else ["in", "gate"]
            if rest and any(
                up.bias for up, kind in zip(ups, kinds, strict=False) if is_fused or kind == "gate"
            ):
                raise UnclearError(f"the gate of {names} has a bias, which no HookedDecoder has")
            if is_fused:
                table.linear(ups[0], *kinds, at=at, split="parts")
            for up, kind in () if is_fused else zip(ups, kinds, strict=True):
                table.linear(up, kind, at=at)
            table.linear(down, "out", at=at)
            table.say(act_fn=name)
            return
    raise UnclearError(f"what is between {names} is none of {listed([*ACTIVATIONS])}")


def _norms(norms: Sequence[Norm], sites: Sequence[tuple[str, Tensor]], table: NameTable, eps: float) -> None:
    """Put the norms of what each part reads."""
    at = {name: next((norm for norm in norms if same(norm.y, x)), None) for name, x in sites}
    without = [name for name, norm in at.items() if norm is None]
    if len(without) == len(at):
        kinds = {normed_as(x) for _, x in sites}
        kind = kinds.pop() if len(kinds) == 1 else None
        table.say(normalization_type=kind and f"{kind}Pre", **({"eps": eps} if kind else {}))
        return
    first = sites[1][0]
    if without == ["ln_final"]:
        table.say(final_norm=False)
    elif without == [first]:
        at = _behind_sums(norms, at, table)
    elif without:
        raise UnclearError(
            f"no norm stands before {listed(without[:3])}: a HookedDecoder norms what each layer reads and "
            "what is unembedded, or each sum, or nothing"
        )
    used = [(name, norm) for name, norm in at.items() if norm is not None]
    for name, norm in used:
        if norm.weight is not None:
            table.put(norm.weight, f"{name}.w", add=norm.plus or None)
        if norm.bias is not None:
            table.put(norm.bias, f"{name}.b")
        kind = norm.kind if norm.weight is not None else f"{norm.kind}Pre"
        table.say(normalization_type=kind, eps=norm.eps)


def _behind_sums(
    norms: Sequence[Norm], at: Mapping[str, Norm | None], table: NameTable
) -> dict[str, Norm | None]:
    """Returns norms by the part that each stands behind, where the first part reads no norm's output.

    Args:
        norms: All norms of the forward pass.
        at: The norm that each part reads, by the name of the one before a part; `ln_final` first.
        table: What is said of the model goes there.
    """
    last, *parts = at
    behind = [*(at[name] for name in parts[1:]), at[last]]
    end = behind[-1]
    x = None if end is None else end.x
    inner = None if x is None else next((one for one in norms if one is not end and same(one.y, x)), None)
    table.say(norm_first=False)
    if inner is None:
        table.say(final_norm=False)
        return dict(zip(parts, behind, strict=True))
    return {**dict(zip(parts, [*behind[:-1], inner], strict=True)), last: end}
