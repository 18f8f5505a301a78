"""A certificate in words."""

import math
from collections.abc import Sequence

from mechmarkov.certify.bounds.ball import FLOAT32
from mechmarkov.certify.certificate import Certificate
from mechmarkov.certify.contexts import Contexts
from mechmarkov.utils.text import at_most

MOST_COUNTED = 1_000_000  # sequences whose number is written out

PROGRAMS = {
    "constant": "one law for all contexts ({numbers} numbers)",
    "parent": "a {numbers}-number table of {states}",
    "row": "counts of states times the parent's row ({numbers} numbers)",
    "table": "the given table of the parent",
    "uniform": "the uniform law",
    "unigram": "the stationary law",
    "bigram": "the source's own rows",
}


def number_of(contexts: Contexts) -> str:
    """Returns how many sequences of states the contexts stand for: a number, a power or a power of ten.

    Example:
        >>> import numpy as np
        >>> walk = np.roll(np.eye(6), 1, 1) + np.roll(np.eye(6), -1, 1) > 0
        >>> number_of(Contexts(6, 7, (96,), np.ones(6, dtype=bool), walk, True, True))
        '6 · 2^95'
    """
    length = contexts.reads[-1] + 1 - contexts.query
    ways: list[int] = contexts.start.astype(int).tolist()
    arrows = [[j for j in range(contexts.n_states) if contexts.transitions[i, j]] for i in range(len(ways))]
    for _ in range(length - 1):
        following = [0] * len(ways)
        for i, targets in enumerate(arrows):
            for j in targets:
                following[j] += ways[i]
        ways = following
    count, starts = sum(ways), int(contexts.start.sum())
    if count <= MOST_COUNTED:
        return f"{count:,}"
    out = {len(arrows[i]) for i in range(len(arrows)) if contexts.start[i]}
    if len(out) == 1 and count == starts * (each := out.pop()) ** (length - 1):
        return f"{each}^{length}" if each == starts else f"{starts} · {each}^{length - 1}"
    return f"about 10^{len(str(count)) - 1}"


def program_in_words(name: str, numbers: int, lags: Sequence[object] = (1,)) -> str:
    """Returns what a program is, with how many numbers it has, and the lags of the states that it looks at.

    Example:
        >>> program_in_words("parent", 36)
        'a 36-number table of the parent'
        >>> program_in_words("parent", 36, (1, 2)), program_in_words("parent", 36, (1, 3))
        ('a 36-number table of the last 2 states', 'a 36-number table of the states at lags 1 and 3')
    """
    *most, last = [str(lag) for lag in lags]
    states = "the parent" if not most else f"the states at lags {', '.join(most)} and {last}"
    if most and [*most, last] == [str(i + 1) for i in range(len(lags))]:
        states = f"the last {len(lags)} states"
    return PROGRAMS.get(name, f"the exact predictor {name}").format(numbers=numbers, states=states)


def sentences(certificate: Certificate) -> list[str]:
    """Returns what was certified and what was seen, one idea a sentence.

    Example:
        >>> import mechmarkov as mm
        >>> from mechmarkov.certify import certify
        >>> sentences(certify(mm.example("mamba"), tokens=1 << 10))[1]
        'Only the final norm is used: KL(any program ‖ model) is at most 6.81 nats.'
    """
    program, seen, bounds = certificate.program, certificate.seen, certificate.bounds
    called = program_in_words(program.name, program.numbers, certificate.contexts.lags)
    which = "of its states" if not certificate.contexts.is_exact else "that the source can give"
    worst_kl = certificate.worst_kl
    if bounds is None or worst_kl is None or certificate.worst_log_ratio is None:
        known = ["No bound is known."]
        if worst_kl is not None:
            known = [
                f"Only the final norm is used: KL(any program ‖ model) is at most {at_most(worst_kl)} nats."
            ]
            known += ["That is vacuous: the uniform prediction does as well."] * certificate.is_vacuous
        if certificate.exhausted:
            worst = at_most(float(certificate.kl_at[: certificate.exhausted].max()))
            known += [
                f"At the first {certificate.exhausted} positions that are read every context was run: "
                f"KL(program ‖ model) is at most {worst} nats there, as this machine computes it."
            ]
        return [
            f"The program is not certified: {certificate.why}.",
            *known,
            f"The program compared is {called}.",
            f"The worst sequence found has KL {seen.nats:.3g} nats from it to the model.",
        ]
    ratio = max(-certificate.worst_log_ratio[0], certificate.worst_log_ratio[1])
    whole = program.table is None or bool((program.table > 0).all())
    whose = "log-probabilities" if whole else "log-probabilities of the states that it holds possible"
    within = f"within {at_most(ratio, 2)} nats of" if ratio < math.inf else "without a bound from"
    covered = "every evaluation in float32" if bounds.unit == FLOAT32 else "only exact arithmetic"
    which = f"each of the {number_of(certificate.contexts)} sequences {which}"
    return [
        f"On {which}, {whose} are {within} {called}.",
        f"KL(program ‖ model) is at most {at_most(worst_kl)} nats.",
        *["That is vacuous: the uniform prediction does as well."] * certificate.is_vacuous,
        f"The largest that was seen is {seen.nats:.3g}.",
        f"The bound covers {covered}.",
    ]
