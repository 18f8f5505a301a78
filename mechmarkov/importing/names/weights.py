"""Weights by HookedTransformer's names, each made of a model's own as a table says."""

import re
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from mechmarkov.importing.names.folding import parts
from mechmarkov.importing.names.table import Line, Table
from mechmarkov.safe.plain_data import RunFileError
from mechmarkov.utils.text import NAME_CHARACTERS, counted, printable, quoted, shown

PAGE = "https://github.com/mechmarkov/mechmarkov/blob/main/docs/my-model-has-names-of-its-own.md"
WANTED = (
    "embed.W_E, pos_embed.W_pos, blocks.N.ln1.w (b), blocks.N.attn.W_Q (W_K, W_V, W_O, b_Q, b_K, b_V, b_O), "
    "blocks.N.ln2.w (b), blocks.N.mlp.W_in (b_in, W_out, b_out), ln_final.w (b), unembed.W_U (b_U)"
)
NAMES_SHOWN = 14
LINE_OF_NAMES = 200  # characters; long names are shown fewer
OURS = re.compile(
    r"embed\.W_E|pos_embed\.W_pos|ln_final\.[wb]|unembed\.[Wb]_U|"
    r"blocks\.\d+\.(ln[12]\.[wb]|mlp\.(W_in|W_gate|W_out|b_in|b_out)|attn\.(_?[Wb]_[QKVO]|[Wb]_rel|[qk]_norm\.w|"
    r"[Wb]_G|[Wb]_dt|W_dt_in|W_dt_out|W_B|W_C|A_log|D|w|(b_)?conv_[QKV]))"  # the last of state spaces
)


@dataclass
class Renamed:
    """Weights by HookedTransformer's names.

    Attributes:
        states: The weights.
        origin: The model's own names of each.
        by_name: Square weights whose order of axes only their name tells.
    """

    states: dict[str, Tensor] = field(default_factory=dict)
    origin: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    by_name: list[str] = field(default_factory=list)

    def put(self, target: str, value: Tensor, names: Iterable[str]) -> None:
        """Keep a weight; a RunFileError where it is there already."""
        self.origin[target] += names
        if target in self.states:
            both = " and ".join(quoted(name) for name in self.origin[target][-2:])
            raise RunFileError(f"names: {both} are both {target}, expected one weight")
        self.states[target] = value


def renamed(
    weights: Mapping[str, Tensor], table: Table, given: Mapping[str, Any], optional: Container[str] = ()
) -> Renamed:
    """Translate weights into HookedTransformer's names and order of axes.

    A weight that no line matches keeps its name where that is one of HookedTransformer's.

    Args:
        weights: The weights by their own names.
        table: Which is which.
        given: Fields of the config; `n_heads` and the like tell how to fold what holds all heads.
        optional: Weights that no line need name.

    Raises:
        RunFileError: One line that names a weight without a line, two for one, or one that does not fit.

    Example:
        >>> from mechmarkov.importing.names.table import table_of
        >>> weights = {"tok": torch.ones(3, 4), "q": torch.ones(4, 4)}
        >>> table = table_of({"tok": "embed.W_E", "q": "blocks.0.attn.W_Q"})
        >>> {name: tuple(x.shape) for name, x in renamed(weights, table, {"n_heads": 2}).states.items()}
        {'embed.W_E': (3, 4), 'blocks.0.attn.W_Q': (2, 4, 2)}
    """
    translated = Renamed()
    numbers = {
        _expanded(match, line.head, line) for name in weights for line, match in table.of(name) if line.head
    }  # of heads that have weights of their own
    given = {"n_heads": len(numbers) or None, **given}
    heads: dict[str, dict[int, tuple[str, Tensor]]] = defaultdict(dict)
    width = _width(weights, table)
    unnamed: list[str] = []
    for name, value in weights.items():
        entries = table.of(name)
        if not entries and OURS.fullmatch(name):
            translated.put(name, value, [name])
        elif not entries and name not in optional:
            unnamed.append(name)
        for line, match in entries:
            ours = targets(match, line)
            made, by_name = parts(name, value, line, ours, width, given)
            translated.by_name += [name] * by_name
            for target, part in made.items():
                if line.head is None:
                    translated.put(target, part, [name])
                else:
                    heads[target][_index(match, line, heads[target])] = (name, part)
    for name in unnamed:
        if name.endswith("_g") and f"{name[:-1]}v" in weights:  # of a file: a live model's are made
            raise RunFileError(
                f"{quoted(name)} and {quoted(f'{name[:-1]}v')} make one weight: load them into their model "
                "and pass that, or save it after torch.nn.utils.remove_weight_norm"
            )
    if unnamed:
        raise nothing_fits(unnamed, "the table of names has no line for")
    for target, each in heads.items():
        if sorted(each) != list(range(len(each))) or len({part.shape for _, part in each.values()}) > 1:
            raise RunFileError(f"names: {target} has the heads {sorted(each)}, expected 0, 1, … of one shape")
        ordered = [each[index] for index in range(len(each))]
        translated.put(target, torch.stack([part for _, part in ordered]), [name for name, _ in ordered])
    return translated


def advice_for(given: Mapping[str, Any]) -> str:
    """Returns what to look at where logits differ: settings that were given, and those with a default.

    Example:
        >>> advice_for({"n_heads": 2})[:73]
        '; look at the order of axes, at `split`, at what is given (n_heads = 2), '
    """
    settings = ", ".join(f"{name} = {shown(value)}" for name, value in given.items())
    said = f"at what is given ({settings}), " if given else ""
    return (
        f"; look at the order of axes, at `split`, {said}and at fields of given that have a default ({PAGE})"
    )


def nothing_fits(weights: Iterable[str], begin: str) -> RunFileError:
    """Returns the error about weights of unknown meaning: their names next to those that are wanted.

    Args:
        weights: Their names.
        begin: The beginning of the message.
    """
    stems = list(dict.fromkeys(re.sub(r"\.\d+(?=\.|$)", ".N", name) for name in weights))
    texts = [printable(name, NAME_CHARACTERS) for name in stems[:NAMES_SHOWN]]
    ends = accumulate(len(text) + 2 for text in texts)
    texts = [text for text, end in zip(texts, ends, strict=True) if end <= LINE_OF_NAMES] or texts[:1]
    shown_stems, rest = ", ".join(texts), len(stems) - len(texts)
    more = f", … ({counted(rest, 'name')} more)" if rest else ""
    return RunFileError(
        f'{begin} {shown_stems}{more}: say which weight is which with names={{"…": "embed.W_E", …}} or '
        f"--names FILE ({PAGE}); wanted are {WANTED}"
    )


def blank_table(weights: Mapping[str, Tensor]) -> str:
    r"""Returns a table of names in TOML to be filled in: a line for one weight of all layers, with its shape.

    Args:
        weights: The model's, as `model.state_dict()` and `torch.load` give them.

    Example:
        >>> print(blank_table({"h.0.q": torch.zeros(4, 2), "h.1.q": torch.zeros(4, 2)}))
        'h\.(\d+)\.q' = ''  # [4, 2]
    """
    lines: dict[str, str] = {}
    for name, value in weights.items():
        pattern = re.sub(r"(?<=\.)\d+(?=\\|$)", r"(\\d+)", re.escape(name))
        key = pattern if "(" in pattern else name
        lines.setdefault(key, f"'{key}' = ''  # {list(value.shape)}")
    return "\n".join(lines.values())


def _width(weights: Mapping[str, Tensor], table: Table) -> int | None:
    """`d_model`, from the weight that is the embedding."""
    for name, value in weights.items():
        entries = table.of(name)
        turned = [line.transpose for line, match in entries if "embed.W_E" in targets(match, line)]
        if value.ndim >= 2 and (turned or (name == "embed.W_E" and not entries)):
            return value.shape[-2 if any(turned) else -1]
    return None


def _index(match: re.Match[str], line: Line, taken: Container[int]) -> int:
    index = _expanded(match, line.head or "", line)
    if not index.isdecimal() or len(index) > 4 or int(index) in taken:
        raise RunFileError(
            f"names: {quoted(match.string)} is head {shown(index)}, expected a number, each once"
        )
    return int(index)


def targets(match: re.Match[str], line: Line) -> list[str]:
    """Returns HookedTransformer's names of what a weight that matches a line holds."""
    return [_expanded(match, text, line) for text in line.to]


def _expanded(match: re.Match[str], text: str, line: Line) -> str:
    try:
        return match.expand(text)
    except (re.error, IndexError) as error:
        raise RunFileError(f"names[{shown(line.pattern)}] is {shown(text)}: {error}") from None
