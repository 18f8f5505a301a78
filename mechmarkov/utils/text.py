"""Text and numbers for people: one safe line, labels, four significant digits, a small table."""

import difflib
import html
import math
import re
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

LINE_CHARACTERS = 600  # of a whole message
NAME_CHARACTERS = 60  # of a name or a value in a message

_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_MINUS = "\N{MINUS SIGN}"
# Control characters are not text, bidirectional controls make a label read as what it is not, and lone
# surrogates cannot be written as UTF-8. Joiners and accents stay.
_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufff9-\ufffb\ufffe\uffff\ud800-\udfff]"
)
_BREAKS = re.compile("[\n\r\t\u2028\u2029]")
_SURROGATES = re.compile("[\ud800-\udfff]")
_MARKUP = re.compile(r"[\\`*\[\]|~]|(?<!\w)_|_(?!\w)")
_FORMULA = re.compile("[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")  # the last four are their full-width forms
_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?(e[+-]?\d+)?", re.IGNORECASE)


class _BoundedRepr(reprlib.Repr):
    def repr_int(self, x: int, level: int) -> str:
        """Python refuses to write integers of more than 4300 digits."""
        bits = x.bit_length()
        return f"an integer of {bits} bits" if bits > 10_000 else super().repr_int(x, level)


_BOUNDED_REPR = _BoundedRepr()
_BOUNDED_REPR.maxlist = _BOUNDED_REPR.maxtuple = _BOUNDED_REPR.maxdict = 2 * NAME_CHARACTERS
_BOUNDED_REPR.maxstring = _BOUNDED_REPR.maxlong = _BOUNDED_REPR.maxother = 2 * NAME_CHARACTERS


def printable(text: str, limit: int = LINE_CHARACTERS) -> str:
    r"""Untrusted text as part of one line: what would steer a terminal is escaped, what is long is cut.

    >>> print(printable("\x1b[31mred"), printable("abcdef", 4))
    \x1b[31mred abc…
    """
    cut = text if len(text) <= limit else text[: limit - 1] + "…"
    return cut if cut.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in cut)


def shown(value: Any, limit: int = NAME_CHARACTERS) -> str:
    """A value in a message, as Python writes it.

    >>> shown("a"), shown([1] * 100, 9), shown(10**9999)
    ("'a'", '[1, 1, 1…', 'an integer of 33216 bits')
    """
    return printable(_BOUNDED_REPR.repr(value), limit)


def is_utf8(value: Any) -> bool:
    r"""Returns whether a value is text that UTF-8 can hold.

    >>> is_utf8("a\x00"), is_utf8("\ud800"), is_utf8(3)
    (True, False, False)
    """
    return isinstance(value, str) and not _SURROGATES.search(value)


def is_writable(value: Any) -> bool:
    r"""Returns whether a value is text that NetCDF can hold too: it ends a text at a null character.

    >>> is_writable("a"), is_writable("a\x00")
    (True, False)
    """
    return is_utf8(value) and "\0" not in value


def listed(words: Sequence[str]) -> str:
    """Words as a list in a sentence.

    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def first_of(words: Sequence[str], most: int) -> str:
    """The first words of a list that may be long.

    >>> first_of(["a", "b"], 2), first_of(["a", "b", "c"], 2)
    ('a, b', 'a, b, …')
    """
    return ", ".join([*words[:most], *["…"] * (len(words) > most)])


def quoted(name: str) -> str:
    """A name from a file, in double quotes.

    >>> quoted("blocks.0")
    '"blocks.0"'
    """
    return '"' + printable(name, NAME_CHARACTERS).replace('"', '\\"') + '"'


def reason(error: BaseException) -> str:
    r"""Returns why something failed, in one line: what the system says, or how the message begins.

    >>> reason(ValueError("first\nsecond")), reason(FileNotFoundError(2, "No such file", "a"))
    ('first', 'No such file')
    """
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0]


def error_line(error: BaseException) -> str:
    r"""An error's class and the first line of its message, fit for a terminal.

    >>> error_line(ValueError("first\nsecond")), error_line(AssertionError())
    ('ValueError: first', 'AssertionError')
    """
    try:
        lines = str(error).splitlines()
    except Exception:  # somebody's error class whose message cannot be made
        lines = []
    return printable(": ".join([type(error).__name__, *lines[:1]]))


def counted(number: int, noun: str) -> str:
    """A number of things.

    >>> counted(1, "layer"), counted(2, "head")
    ('1 layer', '2 heads')
    """
    return f"{number} {noun}{'s' * (number != 1)}"


def format_bytes(size: int) -> str:
    """Returns a size with three digits, in the unit that leaves it below a thousand.

    >>> [format_bytes(size) for size in (1, 100, 2_345, 999_999, 2_000_000_000)]
    ['1 byte', '100 bytes', '2.35 kB', '1 MB', '2 GB']
    """
    if size < 1000:
        return counted(size, "byte")
    scaled, units = size / 1000, ["kB", "MB", "GB", "TB"]
    while scaled >= 999.5 and len(units) > 1:
        scaled, units = scaled / 1000, units[1:]
    return f"{scaled:.3g} {units[0]}"


def clean(text: str) -> str:
    r"""Returns text in which every character that could mislead or break the page is shown by its code.

    Line breaks and tabs become spaces. Control characters, bidirectional controls and lone surrogates become
    their escape code, as Python would write them. Markup is left as it is: escaping is the template's task.

    >>> clean("a\nb\x00 \u202egpj")
    'a b\\x00 \\u202egpj'
    """
    return _UNPRINTABLE.sub(lambda match: ascii(match.group())[1:-1], _BREAKS.sub(" ", text))


def markdown(text: str) -> str:
    r"""Returns text as text in Markdown, on one line: neither markup of its own nor of HTML.

    >>> print(markdown("<b>a|b</b> [c](d) k_1 _k_"))
    &lt;b&gt;a\|b&lt;/b&gt; \[c\](d) k_1 \_k\_
    """
    return _MARKUP.sub(lambda match: "\\" + match.group(), html.escape(clean(text), quote=False))


def markdown_code(text: str) -> str:
    """Returns a name as code in a table of Markdown.

    >>> markdown_code("eap"), markdown_code("a`b")
    ('`eap`', '`` a`b ``')
    """
    text = clean(text).replace("|", "\\|")
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence} {text} {fence}" if len(fence) > 1 else f"{fence}{text}{fence}"


def spreadsheet(text: str) -> str:
    """Returns text as a cell that a spreadsheet does not run as a formula (OWASP, CSV injection).

    >>> spreadsheet("=1+1"), spreadsheet("-0.5"), spreadsheet("a=1")
    ("'=1+1", '-0.5', 'a=1')
    """
    return f"'{text}" if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


def shorten(text: str, limit: int) -> str:
    """Returns `text`, cut to about `limit` characters with its full length said.

    >>> shorten("abcdefgh", 3)
    'abc… [8 characters]'
    >>> shorten("abc", 3)
    'abc'
    """
    return text if len(text) <= limit else f"{text[:limit]}… [{len(text)} characters]"


def label(text: str, limit: int = 24) -> str:
    """Returns a short label for an axis, a token or a head: clean, and cut with an ellipsis.

    >>> label("abcdef", limit=4)
    'abc…'
    """
    text = clean(text)
    return text if len(text) <= limit else text[: limit - 1] + "…"


def words(name: str) -> str:
    """Returns the name of a score, a probe or a fact as words.

    >>> words("kl_bigram"), words("t_unigram")
    ('KL bigram', 'T unigram')
    """
    text = re.sub(r"\bkl\b", "KL", clean(name).replace("_", " "))
    return text[:1].upper() + text[1:]


def format_number(value: float | int, digits: int = 4) -> str:
    """Returns a number with that many significant digits: whole ones whole, tiny and huge as powers of ten.

    What is less than 1 is not written as 1, as it may be a share: it has a digit more, or is said to be above
    0.999. What is a little more than 1 is not a share, and is rounded: 1.00.

    >>> [format_number(x) for x in (0.99912, 97.0, -0.5, 0.0000123456, 1234567.8)]
    ['0.9991', '97', '−0.5', '1.235 × 10⁻⁵', '1.235 × 10⁶']
    >>> [format_number(x, 3) for x in (1.0, 0.9996, 0.99999, -0.99999, 1.0001)]
    ['1', '0.9996', '>0.999', '<−0.999', '1.00']
    """
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else "infinite" if value > 0 else f"{_MINUS}infinite"
    if float(value).is_integer() and abs(value) < 1e6:
        return str(int(value)).replace("-", _MINUS)
    written = f"{value:.{digits}g}"
    if written in ("1", "-1") and abs(value) > 1:
        finer = f"{value:.{digits + 1}g}"
        written = f"{value:.{digits - 1}f}" if finer == written else finer
    elif written in ("1", "-1"):
        written = _beside(value, f"{value:.{digits + 1}g}", 10.0**-digits, digits)
    mantissa, _, exponent = written.partition("e")
    power = f" × 10{str(int(exponent)).translate(_SUPERSCRIPTS)}" if exponent else ""
    return mantissa.replace("-", _MINUS) + power


def at_most(value: float, digits: int = 3) -> str:
    """A bound in a few digits, rounded up.

    Example:
        >>> at_most(0.00012341), at_most(7.0), at_most(0.0)
        ('0.000124', '7', '0')
    """
    if not 0 < value < math.inf:
        return f"{value:g}"
    step = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
    return f"{math.ceil(value / step - 1e-9) * step:.{digits}g}"


def format_share(value: float, decimals: int = 0) -> str:
    """Returns a share in percent; what is less than all or more than nothing is not written as 100 % or 0 %.

    What is a little more than all, by rounding or by chance, is written as 100 %.

    >>> [format_share(x) for x in (0.25, 1.0, 0.0, 0.997, 0.9999, 0.0001, -0.0001, 1.0001)]
    ['25%', '100%', '0%', '99.7%', '>99.9%', '<0.1%', '>−0.1%', '100%']
    """
    written = f"{value:.{decimals}%}"
    if value > 1 and float(written[:-1]) == 100:
        return "100%"
    if value in (0, 1) or float(written[:-1]) not in (0, 100):
        return f"{value:.0%}" if value in (0, 1) else written.replace("-", _MINUS)
    finer = f"{value:.{decimals + 1}%}"
    share = _beside(100 * value, finer[:-1], 10.0 ** -(decimals + 1), decimals + 3)
    return share.replace("-", _MINUS) + "%"


def _beside(value: float, finer: str, least: float, digits: int) -> str:
    """A number that rounding would make one of 0, 1 and 100: with a digit more, or on which side it is."""
    whole = float(finer)
    if whole not in (0, 1, -1, 100):
        return finer
    bound = whole + math.copysign(least, value - whole)
    return f"{'>' if value > bound else '<'}{bound:.{digits + 1}g}"


def format_range(low: float, high: float, digits: int = 4) -> str:
    """Returns a range of numbers as text, one number where both ends are shown as the same.

    >>> format_range(-0.25, 0.5), format_range(2, 2.00001)
    ('−0.25 to 0.5', '2')
    """
    ends = [format_number(end, digits) for end in (low, high)]
    return " to ".join(dict.fromkeys(ends))


def fact_table(title: str, rows: Mapping[str, object]) -> str:
    """A title and a table of two columns, without scripts or styles; everything in it is escaped text.

    >>> fact_table("a < b", {})
    '<strong>a &lt; b</strong><table></table>'
    """
    left = "style='text-align:left'"
    cells = "".join(
        f"<tr><th {left}>{html.escape(name)}</th><td {left}>{html.escape(str(value))}</td></tr>"
        for name, value in rows.items()
    )
    return f"<strong>{html.escape(title)}</strong><table>{cells}</table>"


def did_you_mean(name: Any, known: Iterable[str]) -> str:
    """The end of a sentence that lists what there is: the name that looks most like an unknown one.

    Example:
        >>> did_you_mean("atention", ["attention", "ablation"]), did_you_mean("x", ["attention"])
        (': did you mean attention?', '')
    """
    nearest = difflib.get_close_matches(str(name), list(known), n=1)
    return f": did you mean {nearest[0]}?" if nearest else ""


def near_misses(key: str, known: Sequence[str]) -> str:
    """The end of a sentence about an unknown dotted key: the known ones that look like it.

    Example:
        >>> near_misses("lr", ["optimiser.lr", "steps"])
        ', did you mean optimiser.lr?'
        >>> near_misses("zzz", ["optimiser.lr", "steps"])
        ', expected one of: optimiser, steps'
        >>> near_misses("optimizer", ["optimiser.lr", "steps"])
        ', did you mean optimiser?'
        >>> near_misses("walk", ["trap-of-a-walk", "walk-k20-half", "walk-k20-one"])
        ', did you mean walk-k20-half or walk-k20-one?'
    """
    leaf = key.rsplit(".", 1)[-1]
    sections = [name.rpartition(".")[0] for name in known if "." in name]
    same_leaf = [name for name in known if name.rsplit(".", 1)[-1] == leaf]
    leaves = {name: name.rsplit(".", 1)[-1] for name in [*known, *sections]}
    alike = difflib.get_close_matches(leaf, sorted(set(leaves.values())), n=3, cutoff=0.7)
    found = same_leaf + [name for near in alike for name in leaves if leaves[name] == near]
    found = [name for name in dict.fromkeys(found) if not f"{key}.".startswith(f"{name}.")]
    nested = [name for name in found if name.rpartition(".")[0] in found]  # `source.source`, of `source`
    found = [name for name in found if name not in nested][:4]
    if found:
        return f", did you mean {' or '.join(found)}?"
    if begun := [name for name in known if key and name.startswith(key)]:
        return f", did you mean {' or '.join(begun[:4])}?"
    section, neighbours = key.rpartition(".")[0], list[str]()
    while section and not neighbours:  # of the nearest section that there is
        neighbours = [name for name in known if name.rpartition(".")[0] == section]
        section = section.rpartition(".")[0]
    at_the_top = [name.partition(".")[0] for name in known]
    return f", expected one of: {', '.join(neighbours or dict.fromkeys(at_the_top))}"
