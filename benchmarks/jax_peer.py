"""A fleet in JAX: `vmap` over models inside one `jit(scan)`, as somebody with many tiny models writes it.

    python -m benchmarks.jax_fleet --python JAX/bin/python     # starts this file in an environment with JAX

It runs without mechmarkov, on equinox and optax. What it is to train comes as JSON, the start and ten shared
batches as a file of arrays. It compiles, says that it is ready and, for each line it reads ("drawn" or
"shared"), trains and prints the seconds that took.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

if os.environ.get("JAX_PEER_THREADS") == "1":
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

CHUNK = 128  # queries of which attention is computed at once, where it is computed in chunks
TUNING = 3  # repeats of a few steps, by which the fastest way to compute is chosen


class Layer(eqx.Module):
    """One layer of one head, without norms."""

    W_Q: jax.Array
    W_K: jax.Array
    W_V: jax.Array
    W_O: jax.Array
    b_Q: jax.Array
    b_K: jax.Array
    b_V: jax.Array
    b_O: jax.Array
    W_in: jax.Array
    b_in: jax.Array
    W_out: jax.Array
    b_out: jax.Array

    def __call__(self, x: jax.Array, chunked: bool) -> jax.Array:
        """The residual stream `[position, d]` after the layer."""
        q, k, v = x @ self.W_Q + self.b_Q, x @ self.W_K + self.b_K, x @ self.W_V + self.b_V
        x = x + (in_chunks if chunked else attend)(q, k, v) @ self.W_O + self.b_O
        return x + jax.nn.relu(x @ self.W_in + self.b_in) @ self.W_out + self.b_out


class Decoder(eqx.Module):
    """The model of the fleets: learned positions, tied to nothing."""

    W_E: jax.Array
    W_pos: jax.Array
    layers: list[Layer]
    W_U: jax.Array
    b_U: jax.Array

    def loss(self, states: jax.Array, chunked: bool) -> jax.Array:
        """The mean cross-entropy of the next states `[batch, position + 1]`, in nats."""

        def logits(tokens: jax.Array) -> jax.Array:
            x = self.W_E[tokens] + self.W_pos
            for layer in self.layers:
                x = layer(x, chunked)
            return x @ self.W_U + self.b_U

        predicted = jax.vmap(logits)(states[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(predicted, states[:, 1:]).mean()


def attend(q: jax.Array, k: jax.Array, v: jax.Array, first: int | jax.Array = 0) -> jax.Array:
    """Causal attention of queries `[query, d]`, the first of which is at `first`."""
    scores = q @ k.T / np.sqrt(q.shape[-1])
    seen = first + jnp.arange(len(q))[:, None] >= jnp.arange(len(k))
    return jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1) @ v


def in_chunks(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """The same, some queries at a time; in the backward pass scores are computed again."""
    size = min(CHUNK, len(q))
    parts = q.reshape(-1, size, q.shape[-1])
    one = jax.checkpoint(lambda part: attend(part[0], k, v, part[1]))
    return jax.lax.map(one, (parts, jnp.arange(len(parts)) * size)).reshape(q.shape)


def decoder(arrays: dict[str, np.ndarray], n_layers: int) -> Decoder:
    """Models `[model, …]` out of arrays by HookedTransformer's names."""

    def layer(at: str) -> Layer:
        head = {f"{kind}_{side}": arrays[f"{at}.attn.{kind}_{side}"][:, 0] for kind in "Wb" for side in "QKV"}
        head["W_O"], head["b_O"] = arrays[f"{at}.attn.W_O"][:, 0], arrays[f"{at}.attn.b_O"]
        mlp = {name: arrays[f"{at}.mlp.{name}"] for name in ("W_in", "b_in", "W_out", "b_out")}
        return Layer(**{name: jnp.asarray(value) for name, value in {**head, **mlp}.items()})

    names = {"W_E": "embed.W_E", "W_pos": "pos_embed.W_pos", "W_U": "unembed.W_U", "b_U": "unembed.b_U"}
    outer = {name: jnp.asarray(arrays[key]) for name, key in names.items()}
    return Decoder(layers=[layer(f"blocks.{index}") for index in range(n_layers)], **outer)


def sample(key: jax.Array, batch: int, length: int, p: float, q: float) -> jax.Array:
    """Sequences `[batch, length]` of the binary chain, from its stationary law."""
    uniform = jax.random.uniform(key, (length, batch))

    def step(state: jax.Array, u: jax.Array) -> tuple[jax.Array, jax.Array]:
        onward = jnp.where(state == 0, u < p, u >= q).astype(jnp.int32)
        return onward, onward

    first = (uniform[0] < p / (p + q)).astype(jnp.int32)
    return jnp.concatenate([first[None], jax.lax.scan(step, first, uniform[1:])[1]]).T


def training(
    task: dict[str, Any], shared: jax.Array, way: tuple[str, bool], drawn: bool
) -> Callable[[Decoder, jax.Array], jax.Array]:
    """Returns a compiled training of all models, to the losses `[step, model]`.

    Args:
        task: Sizes, steps and the law.
        shared: Batches `[10, batch, length]` that are taken in turn, if data are not drawn.
        way: Models at once ("vmap") or one after the other ("map"), and whether attention is in chunks.
        drawn: Whether each model draws its own data.
    """
    optimiser = optax.adamw(optax.cosine_decay_schedule(2e-3, 10**6), b1=0.9, b2=0.95, weight_decay=1e-3)
    batched, chunked = way

    def move(carry: Any, states: jax.Array) -> tuple[Any, jax.Array]:
        model, memory = carry
        loss, slope = jax.value_and_grad(lambda one: one.loss(states, chunked))(model)
        update, memory = optimiser.update(slope, memory, model)
        return (optax.apply_updates(model, update), memory), loss

    def step(carry: Any, index: jax.Array) -> tuple[Any, jax.Array]:
        inner, keys = carry
        if drawn:
            both = jax.vmap(jax.random.split)(keys)
            keys = both[:, 0]
            states = jax.vmap(
                partial(sample, batch=task["batch"], length=task["length"] + 1, p=task["p"], q=task["q"])
            )(both[:, 1])
        else:
            states = jnp.broadcast_to(shared[index % len(shared)], (len(keys), *shared.shape[1:]))
        if batched == "vmap":
            inner, loss = jax.vmap(move)(inner, states)
        else:
            inner, loss = jax.lax.map(lambda one: move(*one), (inner, states))
        return (inner, keys), loss

    @jax.jit
    def run(models: Decoder, keys: jax.Array) -> jax.Array:
        memory = jax.vmap(optimiser.init)(models)
        return jax.lax.scan(step, ((models, memory), keys), jnp.arange(task["steps"]))[1]

    return run


def main() -> None:
    """Choose the fastest way by a few steps, compile, and train when told to."""
    task = json.loads(sys.argv[1])
    arrays = dict(np.load(task["arrays"]))
    shared = jnp.asarray(arrays.pop("shared"))
    models = decoder(arrays, task["layers"])
    keys = jax.random.split(jax.random.key(0), len(models.W_E))

    def seconds(run: Callable[[Decoder, jax.Array], jax.Array]) -> float:
        began = time.perf_counter()
        run(models, keys).block_until_ready()
        return time.perf_counter() - began

    ways = [(batched, chunked) for batched in ("vmap", "map") for chunked in (False, True)]
    ways = [way for way in ways if not way[1] or task["length"] % CHUNK == 0]
    tried = {}
    for way in ways:
        few = training(task | {"steps": max(2, task["steps"] // 20)}, shared, way, drawn=True)
        seconds(few)
        tried[way] = min(seconds(few) for _ in range(TUNING))
    way = min(tried, key=tried.__getitem__)
    began = time.perf_counter()
    runs = {kind: training(task, shared, way, drawn=kind == "drawn") for kind in ("drawn", "shared")}
    for run in runs.values():
        seconds(run)
    ready = {
        "losses": training(task | {"steps": len(shared)}, shared, way, drawn=False)(models, keys)[
            :, 0
        ].tolist(),
        "way": f"{way[0]}{', attention in chunks' if way[1] else ''}",
        "compile": time.perf_counter() - began,
        "versions": f"JAX {jax.__version__}, equinox {eqx.__version__}, optax {optax.__version__}",
    }
    print(json.dumps(ready), flush=True)
    for line in sys.stdin:
        print(seconds(runs[line.strip()]), flush=True)


if __name__ == "__main__":
    main()
