"""Broken copies of good files: bytes of the whole, pieces of the pickle inside, pieces of a text."""

import io
import pickletools
import re
import zipfile
from collections.abc import Iterator

import numpy as np

EVIL = (
    b"cposix\nsystem\n",
    b"cbuiltins\neval\n",
    b"X\x04\x00\x00\x00evil",
    b"J\xff\xff\xff\xff",
    b"J\xff\xff\xff\x7f",
    b"\x8a\x08" + b"\xff" * 7 + b"\x7f",
    b"G\x7f\xf8" + bytes(6),  # NaN
    b"K\x00",
    b"N",
    b"\x88",
    b"}",
    b"]",
    b")",
    b"(",
    b"t",
    b"R",
    b"b",
    b"s",
    b"0",
    b"2",
    b"ctorch\nComplexFloatStorage\n",
    b"ctorch\nQInt8Storage\n",
    b"ctorch\nHalfStorage\n",
    b"ctorch._utils\n_rebuild_sparse_tensor\n",
    b"ctorch._utils\n_rebuild_tensor_v2\n",
    b"cnumpy\ndtype\n",
    b"ccollections\nOrderedDict\n",
)
WORDS = (
    "-1", "0", "1", "2", "1e400", "1e-320", "nan", "inf", "true", "false", "null", "none", '""', '"x"', "[]",
    "{}", "[[[[]]]]", "9223372036854775807", "18446744073709551616", "1" * 5000, "-0.0", "0.5", "3.0",
    "[" * 3000, "{a=" * 300, '"../../../etc/passwd"', '"/dev/zero"', '"\\u0000"', '"\\u202e"', '"\ud7ff"',
    "'''", '"""', "#", "=", ".", ",", "]", "}", "1979-05-27", "07:32:00", "0x7fffffff", "__class__", "kind",
    '"' + "a" * 10_000 + '"', "\x00", "\x1b[31m", "\ufeff", "\u2028", "a.b.c.d = 1", "[a]", "[[a]]", "p = 2",
    "n_states = 1_000_000_000", "n_layers = 100_000", "steps = 1e9", "n_ctx = 65536",
)  # fmt: skip
MOVED = ("../../evil", "/etc/evil", "x/y", "archive/data/0", "\u202e", "a" * 300)
LARGE = (
    "0", "2", "64", "4096", "-1", "4097", "65536", "1_000_000", "100_000_001", "1_000_000_000", "9e15",
    str(2**63 - 1), "1e308",
)  # fmt: skip
NUMBER = re.compile(r"(?<![\w.])\d[\d_]*(?:\.\d+)?(?:e[-+]?\d+)?(?![\w.])")
TOKENS = re.compile(r"\s+|[A-Za-z_][\w.-]*|[-+]?\d[\w.+-]*|\"[^\"\n]*\"|.", re.DOTALL)


def of_bytes(good: bytes, generator: np.random.Generator) -> bytes:
    """One to four changes: bits, bytes, runs of bytes, numbers, pieces cut, doubled or moved."""
    bad = bytearray(good)
    for _ in range(generator.integers(1, 5)):
        if not bad:
            return bytes(bad)
        at, length = int(generator.integers(len(bad))), int(2 ** generator.integers(0, 8))
        match generator.integers(9):
            case 0:
                bad[at] ^= 1 << int(generator.integers(8))
            case 1:
                bad[at] = int(generator.integers(256))
            case 2:
                del bad[at : at + length]
            case 3:
                bad[at:at] = bad[at : at + length]
            case 4:
                bad[at : at + length] = bytes(len(bad[at : at + length]))
            case 5:
                bad[at : at + length] = generator.bytes(length)
            case 6:
                number = int(generator.choice([0, 1, -1, 2**31 - 1, -(2**31), 255, 65535]))
                bad[at : at + 4] = number.to_bytes(4, "little", signed=True)
            case 7:
                del bad[at:]
            case 8:
                other = int(generator.integers(len(bad)))
                bad[at : at + length] = bad[other : other + length]
    return bytes(bad)


def of_text(good: str, generator: np.random.Generator) -> str:
    """One to three words of a text changed, doubled, moved or left out."""
    words = TOKENS.findall(good)
    for _ in range(generator.integers(1, 4)):
        at, other = (int(i) for i in generator.integers(len(words), size=2))
        match generator.integers(5):
            case 0:
                words[at] = str(generator.choice(WORDS))
            case 1:
                words.insert(at, str(generator.choice(WORDS)))
            case 2:
                words[at] = ""
            case 3:
                words[at] = words[other]
            case 4:
                words[at:at] = words[other : other + int(generator.integers(1, 20))]
    return "".join(words)


class Archive:
    """A `torch.save` archive in pieces, so that broken ones are put together with correct checksums."""

    def __init__(self, good: bytes) -> None:
        with zipfile.ZipFile(io.BytesIO(good)) as archive:
            self.content = {name: archive.read(name) for name in archive.namelist()}
        self.pickle = next(name for name in self.content if name.endswith("/data.pkl"))
        self.pieces = _instructions(self.content[self.pickle])

    def mutant(self, generator: np.random.Generator) -> bytes:
        """The archive with its pickle, one of its other entries, or its names changed."""
        content = dict(self.content)
        kind = generator.integers(8)
        if kind < 6:
            content[self.pickle] = b"".join(self._changed_pieces(generator))
        elif kind == 6:
            name = str(generator.choice(list(content)))
            content[name] = of_bytes(content[name], generator)
        else:
            name = str(generator.choice(list(content)))
            content[str(generator.choice(MOVED))] = content.pop(name)
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for name, value in content.items():
                archive.writestr(zipfile.ZipInfo(name), value)
        return buffer.getvalue()

    def _changed_pieces(self, generator: np.random.Generator) -> list[bytes]:
        pieces = list(self.pieces)
        for _ in range(generator.integers(1, 4)):
            at, other = (int(i) for i in generator.integers(len(pieces), size=2))
            match generator.integers(6):
                case 0:
                    pieces[at] = pieces[other]
                case 1:
                    pieces[at], pieces[other] = pieces[other], pieces[at]
                case 2:
                    pieces[at] = b""
                case 3:
                    pieces[at] = EVIL[generator.integers(len(EVIL))]
                case 4:
                    pieces.insert(at, EVIL[generator.integers(len(EVIL))])
                case 5:
                    pieces[at] = of_bytes(pieces[at], generator)
        return pieces


def _instructions(pickled: bytes) -> list[bytes]:
    places = [place for _, _, place in pickletools.genops(pickled)]
    return [pickled[a:b] for a, b in zip(places, [*places[1:], len(pickled)], strict=True)]


def of_archive(good: bytes, seed: int, count: int) -> Iterator[bytes]:
    """Broken archives: a third broken as bytes, the others inside and put together again."""
    archive, generator = Archive(good), np.random.default_rng(seed)
    for index in range(count):
        yield of_bytes(good, generator) if index % 3 == 0 else archive.mutant(generator)


def of_file(good: bytes, seed: int, count: int) -> Iterator[bytes]:
    """Files broken as bytes."""
    generator = np.random.default_rng(seed)
    for _ in range(count):
        yield of_bytes(good, generator)


def of_words(good: str, seed: int, count: int) -> Iterator[bytes]:
    """Texts: most broken by words, the others as bytes."""
    generator = np.random.default_rng(seed)
    for index in range(count):
        if index % 4 == 0:
            yield of_bytes(good.encode(), generator)
        else:
            yield of_text(good, generator).encode("utf-8", "surrogatepass")


def of_numbers(good: str, seed: int, count: int) -> Iterator[bytes]:
    """Texts in which one to three numbers are beyond, or at, what is allowed"""
    generator = np.random.default_rng(seed)
    for _ in range(count):
        text = good
        for _ in range(generator.integers(1, 4)):
            found = list(NUMBER.finditer(text))
            at = found[generator.integers(len(found))]
            text = text[: at.start()] + str(generator.choice(LARGE)) + text[at.end() :]
        yield text.encode()
