"""EAP, EAP-IG, exact patching, CPR and CMD by their authors' own code, on models of this benchmark.

python -m benchmarks.circuit_peers EAP-IG MIB-circuit-track

The two arguments are checkouts of `hannamw/EAP-IG` (commit 7af394a, the one that MIB names) and
`hannamw/MIB-circuit-track` (commit b759df3). It needs HookedTransformer, so TransformerLens 3. What their
code gives is written to `tests/bench/authors_code.json`, which the tests hold this library's methods against.

Their code is run as it is, but for three things around it: devices are the processor where it says "cuda",
sequences are tokens already, and pictures of graphs are not drawn.
"""

import json
import sys
import types
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import transformer_lens as tl

from mechmarkov.bench import METRICS, Case
from mechmarkov.models import HookedDecoder
from tests.bench.authors_cases import CASES, random_claims

KEPT = Path(__file__).parents[1] / "tests" / "bench" / "authors_code.json"
STEPS = 10


def hooked(model: HookedDecoder) -> Any:
    """The same model as a HookedTransformer with the hooks that their code reads."""
    c = model.config
    sizes = c.model_dump(
        include={"n_layers", "d_model", "n_ctx", "d_head", "n_heads", "d_vocab", "d_mlp", "eps"}
    )
    switches = {"use_attn_result": True, "use_split_qkv_input": True, "use_hook_mlp_in": True}
    config = tl.HookedTransformerConfig(
        **sizes, act_fn=c.act_fn, normalization_type=c.normalization_type, attn_scale=c.attn_scale,
        use_attn_scale=c.use_attn_scale,
        d_vocab_out=c.d_vocab_out, device="cpu", dtype=torch.float64, **switches,
    )  # fmt: skip
    theirs = tl.HookedTransformer(config)
    theirs.load_state_dict(theirs.state_dict() | dict(model.state_dict()))
    return theirs


def our_name(edge: str) -> str:
    """The name that an edge of theirs has here.

    Example:
        >>> our_name("a0.h1->a1.h0<k>"), our_name("input->m0")
        ('L0H1→L1H0.K', 'embed→L0.mlp')
    """

    def node(name: str) -> str:
        if name in ("input", "logits"):
            return name.replace("input", "embed")
        if name[0] == "m":
            return f"L{name[1:]}.mlp"
        head, _, side = name.removesuffix(">").partition("<")
        layer, _, at = head[1:].partition(".h")
        return f"L{layer}H{at}" + (f".{side.upper()}" if side else "")

    return "→".join(map(node, edge.split("->")))


def of_their_code(case: Case) -> dict[str, Any]:
    """Claims of each of their methods by edge, and MIB's areas of claims that are drawn."""
    from eap import attribute, evaluate  # type: ignore[import-not-found]
    from eap.graph import Graph  # type: ignore[import-not-found]
    from MIB_circuit_track.evaluation import evaluate_area_under_curve  # type: ignore[import-not-found]

    def tokens(_: Any, inputs: Any) -> tuple[Any, ...]:
        return inputs, torch.ones_like(inputs), torch.full((len(inputs),), inputs.shape[1]), inputs.shape[1]

    model, data = hooked(case.model), [(case.clean, case.corrupt, None)]
    torch.testing.assert_close(model(case.clean), case.model(case.clean), rtol=0, atol=1e-10)

    def each(scores: Any, *_: Any) -> Any:
        return case.loss(scores)

    def total(scores: Any, *_: Any) -> Any:
        return case.loss(scores).sum()

    methods: dict[str, Callable[..., Any]] = {
        "eap": attribute.get_scores_eap,
        "eap-ig": partial(attribute.get_scores_eap_ig, steps=STEPS),
        "eap-clean-corrupt": attribute.get_scores_clean_corrupted,
        "eap-ig-activations": partial(attribute.get_scores_ig_activations, steps=STEPS),
    }
    zeros = torch.zeros
    with ExitStack() as stack:
        for module in (attribute, evaluate):
            stack.enter_context(patch.object(module, "tokenize_plus", tokens))
        stack.enter_context(
            patch.object(torch, "zeros", lambda *a, **k: zeros(*a, **(k | {"device": "cpu"})))
        )
        graph = Graph.from_model(model)
        edges = {our_name(name): edge for name, edge in graph.edges.items()}
        made = {}
        for name, method in methods.items():
            scores = method(model, graph, data, total, quiet=True)
            made[name] = {edge: float(scores[edges[edge].matrix_index]) for edge in case.edges}
        attribute.get_scores_exact(model, graph, data, each, quiet=True)
        made["path-patching"] = {edge: float(edges[edge].score) for edge in case.edges}
        for edge, claim in random_claims(case).items():
            edges[edge].score = claim
        area = partial(evaluate_area_under_curve, model, graph, data, each, quiet=True)
        return {"claims": made, "cpr": area(absolute=False)[1], "cmd": area(absolute=True)[2]}


if __name__ == "__main__":
    eap, mib = sys.argv[1:]
    sys.path += [str(Path(eap) / "src"), mib]
    drawing = types.ModuleType("eap.visualization")
    vars(drawing).update(get_color=None, generate_random_color=None)
    sys.modules[drawing.__name__] = drawing
    KEPT.write_text(
        json.dumps(
            {
                name: {metric: of_their_code(make().under(metric)) for metric in METRICS}
                for name, make in CASES.items()
            },
            indent=1,
        )
        + "\n"
    )
