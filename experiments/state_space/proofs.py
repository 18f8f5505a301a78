"""The appendices' weights and formulas, computed: theorems 1, 3 and 4, and section C.1's sequences."""

import numpy as np
from jaxtyping import Float, Int

from experiments.claims import Finding, holds
from experiments.exactness import exactly
from experiments.harness import Measured, every_sequence
from experiments.induction_heads.posterior import posterior_mean
from mechmarkov.theory.kernel import kl

ROUNDING = 1e-12
Law = Float[np.ndarray, "batch position state"]
Tokens = Int[np.ndarray, "batch position"]


def add_beta(tokens: Tokens, n_states: int, beta: float) -> Law:
    """The add-β estimator of first-order chains, counted."""
    found = np.empty((*tokens.shape, n_states))
    for t in range(tokens.shape[1]):
        followed = tokens[:, :t] == tokens[:, t : t + 1]  # the current token, seen before
        counts = [(followed & (tokens[:, 1 : t + 1] == j)).sum(1) for j in range(n_states)]
        found[:, t] = np.stack(counts, 1) + beta
    return found / found.sum(-1, keepdims=True)


def mamba_zero(
    tokens: Tokens,
    embed: np.ndarray,
    into: dict[str, np.ndarray],
    conv: dict[str, np.ndarray],
    out: np.ndarray,
) -> Law:
    """Section 4.1 with a_t = 1: what follows each position, by the recurrence as it is written.

    Args:
        tokens: States.
        embed: `[state, d]`.
        into: `W_X`, `W_B` and `W_C`.
        conv: Of each, the weights of the token before and of the current one, `[2]`.
        out: `W_ℓ`; `W_o` is the identity.
    """
    batch, length = tokens.shape
    x = embed[tokens]
    before = np.concatenate([np.zeros_like(x[:, :1]), x[:, :-1]], 1)
    X, B, C = (conv[n][0] * before @ into[n].T + conv[n][1] * x @ into[n].T for n in "XBC")
    state = np.zeros((batch, X.shape[-1], B.shape[-1]))
    scores = np.empty((batch, length, len(out)))
    for t in range(length):
        state += X[:, t, :, None] * B[:, t, None]
        scores[:, t] = (x[:, t] + (state * C[:, t, None]).sum(-1)) @ out.T
    return scores / np.abs(scores).sum(-1, keepdims=True)


def theorem_1(tokens: Tokens, S: int, beta: float) -> Law:
    """The weights of section C.2, with the shapes that its equations need."""
    embed = np.zeros((S, 2 * S))
    embed[np.arange(S), 2 * np.arange(S)] = 1
    shift = np.zeros((2 * S, 2 * S))
    shift[2 * np.arange(S) + 1, 2 * np.arange(S)] = 1
    read = embed  # S x 2S: the text has the identity of S x S
    out = np.zeros((S, 2 * S))
    out[:, 0::2] = beta
    out[np.arange(S), 2 * np.arange(S) + 1] = 1  # the text has W_ℓ(2i, i), which has no such row
    conv = {"X": np.array([0, 1]), "B": np.array([1, 0]), "C": np.array([0, 1])}
    return mamba_zero(tokens, embed, {"X": shift, "B": read, "C": read}, conv, out)


def theorem_4(tokens: Tokens, beta: float, eps: float) -> Law:
    """The weights of section C.3: α0 γ0 + α1 γ1 = 0, α0 γ1 + α1 γ0 = 1, α0 γ1 = -β ε, c = 1."""
    gamma = np.array([np.sqrt((1 + beta * eps) / (beta * eps)), 1.0])
    alpha = np.array([-beta * eps, beta * eps * gamma[0]])
    same, other = beta - alpha[1] * gamma[1], beta - alpha[0] * gamma[1]
    embed = np.array([[same, other], [other, same]])
    onto = np.linalg.inv(embed.T)  # sends an embedding to its unit vector
    conv = {"X": alpha, "B": gamma, "C": np.array([0.0, 1.0])}
    return mamba_zero(tokens, embed, dict.fromkeys("XBC", onto), conv, np.eye(2))


@exactly
def proofs(quick: bool) -> Measured:
    """Every sequence up to a length, against counts and the posterior mean."""
    length = 7 if quick else 11
    pairs = every_sequence(2, length).numpy()
    sizes = {2: length, 3: 5 if quick else 7, 4: 4 if quick else 5}
    first = 0.0
    for S, n in sizes.items():
        tokens = every_sequence(S, n).numpy()
        for beta in (1.0, 0.5):
            first = max(first, float(np.abs(theorem_1(tokens, S, beta) - add_beta(tokens, S, beta)).max()))
    worst = {}
    for eps in (0.1, 0.01, 0.001):
        for beta in (1.0, 0.5):
            found = kl(add_beta(pairs, 2, beta), theorem_4(pairs, beta, eps)).max()
            worst[eps] = max(worst.get(eps, 0.0), float(found) / eps)
    mean = float(np.abs(posterior_mean(pairs, stationary=False) - add_beta(pairs, 2, 1.0)).max())
    two = np.array([[0, 1, 0, 1, 0, 1], [0, 0, 0, 1, 1, 1]])
    said = add_beta(two, 2, 1.0)[:, -1, 1]
    exact = "computed exactly"
    every = "; ".join(f"{S} states, all sequences of {n}" for S, n in sizes.items())
    return Measured(
        [
            Finding(
                "theorem_1_weights",
                f"differs by at most {first:.0e} in any probability, with W_B and W_C of S × 2S and "
                "W_ℓ(i, 2i) = 1",
                holds(False, corrected=first < ROUNDING),
                f"{every}; β = 1 and 0.5, float64",
                exact,
                number=f"off by at most {first:.0e}",
            ),
            Finding(
                "two_dimensions",
                "largest KL, as a share of ε: "
                + ", ".join(f"{w:.2f} at ε = {e:g}" for e, w in worst.items()),
                holds(max(worst.values()) <= 1),
                f"all sequences of {length} on two states; β = 1 and 0.5, float64",
                exact,
                number=f"KL at most {max(worst.values()):.2f} ε",
            ),
            Finding(
                "laplace_optimal",
                f"the posterior mean differs from it by at most {mean:.0e}",
                holds(mean < 1e-10),
                f"all sequences of {length} on two states, a uniform start, 64 x 64 Gauss-Legendre nodes",
                exact,
                number=f"off by at most {mean:.0e}",
            ),
            Finding(
                "laplace_states",
                "three states, no count, β = 1: three times (0 + 1) / (0 + 2) is 3/2",
                holds(False, corrected=True),
                "the printed formula at S = 3; with S β in the denominator the sum is 1",
                exact,
                number="adds up to 3/2 at S = 3",
            ),
            Finding(
                "confusable",
                f"{said[0]:g} and {said[1]:g}",
                holds(said[0] == 0.25 and said[1] == 0.75),
                "the two sequences of the text, counted",
                exact,
                number=f"{said[0]:g} and {said[1]:g}",
            ),
            Finding(
                "bits_needed",
                "not measured",
                "untested",
                "a bound on all recurrent models; no model of ours tests it",
                exact,
            ),
        ]
    )
