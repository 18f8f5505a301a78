"""Plan how a model of transformers becomes a decoder, by its config and its names of weights."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from mechmarkov.importing import config_fields, layout, linear_layers
from mechmarkov.importing.layout import Called, ImportPlan, Shapes
from mechmarkov.models import DecoderConfig
from mechmarkov.safe.plain_data import RunFileError

ASSUMED_N_CTX = 256  # of a model without a longest sequence
# The causal mask, and rotary tables that follow from the config.
BUFFER = re.compile(r".*\.(rotary_emb\.inv_freq|attention\.(bias|masked_bias))")
States = dict[str, Tensor]


@dataclass(frozen=True)
class Architecture:
    """The facts about a type of transformers' decoders that hold whatever a config of it says.

    Attributes:
        stems: A bridge's stems by its own, as of `linear_layers.Table`.
        fields: Translates a config into fields of a `DecoderConfig`; `where` stands before a field's name in
            a message. There is no `n_ctx` where a config says no longest sequence.
        n_layers: What its config calls the number of layers.
        by_head: Whether queries, keys and values in one weight lie head by head.
        options: Further arguments of `linear_layers.plan`, by the width of the stream.
        assumed: What its configs do not say, with what is taken; of the decoder's config and of all fields
            that are known.
        inner: Fields of the config of its linear layers, norms and embeddings, where that is another.
        apart: The shapes of its other weights, by their names.
        finish: Makes a decoder's weights, of those of the linear layers, norms and embeddings, and of others.
    """

    stems: Mapping[str, str]
    fields: Callable[[Mapping[str, Any], str], dict[str, Any]]
    n_layers: str = "num_hidden_layers"
    by_head: bool = True
    options: Callable[[int], Mapping[str, Any]] = lambda _: {"may_tie": True}
    assumed: Callable[[DecoderConfig, Mapping[str, Any]], dict[str, Any]] = lambda _, __: {}
    inner: Mapping[str, Any] | None = None
    apart: Callable[[DecoderConfig], Shapes] = lambda _: {}
    finish: Callable[[States, States, DecoderConfig], States] = lambda states, _, __: states

    def plan(
        self, shapes: Shapes, config: Mapping[str, Any], given: Mapping[str, Any], where: str, called: Called
    ) -> ImportPlan:
        """Work out which decoder a model is; arguments and errors as of `hugging_face.plan_import`."""
        table = linear_layers.Table(self.stems, called, self.by_head)
        fields = self.fields(config, where)
        if type(given.get("n_ctx")) is type(fields.get("n_ctx")) is int:
            fields["n_ctx"] = min(fields["n_ctx"], given["n_ctx"])
        fields = config_fields.agree(fields, given, "in its config") | {"d_vocab_out": -1}  # the embedding's
        assumed = {} if "n_ctx" in fields else {"n_ctx": ASSUMED_N_CTX}
        shape = config_fields.make_config({**assumed, **fields})
        apart = self.apart(shape)
        own = {name: x for name, x in shapes.items() if name not in apart and not BUFFER.fullmatch(name)}
        inner = {ours: shapes[name] for name, ours in table.ours(own).items()}
        if (layers := layout.count_layers(inner, table.theirs)) != shape.n_layers:
            raise RunFileError(f"it has {layers} layers, but {self.n_layers} is {shape.n_layers}")
        if "unembed.weight" in inner:
            rows, _ = layout.shape_of(inner, "unembed.weight", 2, table.theirs)
            shape = config_fields.make_config({**assumed, **fields, "d_vocab_out": rows})
        elif config.get("tie_word_embeddings") is False:
            raise RunFileError("it has no unembedding, though its config says that it is not tied")
        layout.check_shapes({name: x for name, x in shapes.items() if name in apart}, apart, called=called)
        plan = linear_layers.plan(
            own,
            shape.model_copy(update=self.inner),
            table=table,
            assumed=assumed | self.assumed(shape, fields),
            **self.options(shape.d_model),
        )

        def states(weights: States) -> States:
            made = plan.states({name: weights[name] for name in plan.wanted})
            return self.finish(made, {name: weights[name] for name in apart}, shape)

        return replace(plan, config=shape, wanted=(*plan.wanted, *apart), states=states)
