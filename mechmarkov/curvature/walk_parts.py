"""The walk model of Shi & Cao inside a run's decoder, where it is one."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from mechmarkov.runs.run import Run

Numbers = Mapping[str, Int[np.ndarray, "..."]]


@dataclass(frozen=True, eq=False)
class WalkParts:
    """The places of the walk model's parts; states may be numbered in another order than coordinates.

    Attributes:
        read_at: The coordinate of the residual stream that each state's embedding sets.
        written_at: The coordinate that each state's score is read from.
        positions: `p_1 … p_N` as rows, in the coordinates of `u` behind the token block.
        norm: `|p|`.
    """

    read_at: Int[np.ndarray, " state"]
    written_at: Int[np.ndarray, " state"]
    positions: Float[np.ndarray, "position d_pos"]
    norm: float

    def places_of_V(self, numbers: Numbers) -> Int[np.ndarray, "state_from state_to"]:
        """The place of each entry of V in the vector of trained numbers (`Coordinates.numbers`)."""
        return numbers["blocks.0.attn.W_O"][0][self.read_at][:, self.written_at]

    def places_of_u(self, numbers: Numbers) -> Int[np.ndarray, " d_u"]:
        """The place of each entry of u in that vector: the K tokens' by state, then the positions'."""
        block = numbers["blocks.0.attn.W_K"][0, :, 0]
        return np.concatenate([block[self.read_at], block[len(self.read_at) :]])


def walk_parts(run: Run) -> WalkParts | None:
    """The parts of a run that is a walk model: frozen one-hot embeddings, trained `u` and `V`; else None.

    None for unit columns too, whose tokens are shortened: theory is that of one-hot ones.

    Example:
        >>> import mechmarkov as mm
        >>> walk_parts(mm.example("walk")).positions.shape, walk_parts(mm.example("induction"))
        ((97, 97), None)
    """
    config, K = run.config, run.source.n_states
    spans = {
        "blocks.0.attn.W_K": [[0, 1], [0, config.d_model], [0, 1]],
        "blocks.0.attn.W_O": [[0, 1], [0, K], [0, K]],
    }
    # Whatever adds to the query's stream, or keeps the head from a token, makes it another model.
    of_walk = (config.n_layers, config.n_heads, config.attn_only, config.normalization_type, config.window)
    if run.trainable != spans or not run.objective.query or of_walk != (1, 1, True, None, None):
        return None
    if config.n_key_value_heads or config.use_qk_norm or config.mixer != "attention":
        return None
    if config.positional_embedding_type != "standard" or config.score_scale != 1:
        return None
    state = {name: value[-1].double().numpy() for name, value in run.states.items()}
    embed, unembed = state["embed.W_E"][:K], state["unembed.W_U"].T
    read_at, written_at = embed.argmax(1), unembed.argmax(1)
    positions = state["pos_embed.W_pos"]
    token_block = np.eye(config.d_model, K)
    one_hot = np.eye(config.d_model)
    query = state["blocks.0.attn.W_Q"][0]
    toward = positions[-1] / np.linalg.norm(positions[-1])
    expected = (
        sorted(read_at) == sorted(written_at) == list(range(K))
        and np.array_equal(embed, one_hot[read_at])
        and np.array_equal(unembed, one_hot[written_at])
        and not state["embed.W_E"][K:].any()
        and not positions[:, :K].any()
        and np.array_equal(state["blocks.0.attn.W_V"][0], token_block)
        and np.allclose(query[:, 0], toward, atol=1e-6)
        and not query[:, 1:].any()
        and not any(value.any() for name, value in state.items() if name.split(".")[-1].startswith("b_"))
    )
    if not expected:
        return None
    return WalkParts(read_at, written_at, positions[:, K:], float(np.linalg.norm(positions[-1])))
