"""Live TransformerBridges become runs: TransformerLens 4."""

from importlib.metadata import version

import pytest
import torch
from public_codes import SOURCE

from mechmarkov.runs import Run

pytestmark = [
    pytest.mark.tl,
    pytest.mark.skipif(
        version("transformer-lens") < "4", reason="a bridge of version 3 has other names; 4 is supported"
    ),
    pytest.mark.filterwarnings("default"),  # TransformerLens warns while it wraps a model
]


@pytest.mark.parametrize("name", ["native_mlp", "native_attn_only", "native_rotary", "gpt2"])
def test_a_live_bridge_becomes_a_run(make_bridge, name):
    bridge = make_bridge.around_gpt2() if name == "gpt2" else make_bridge.native(**make_bridge.CASES[name])
    bridge.train()
    run = Run.from_model(bridge, source=SOURCE)
    assert bridge.training
    assert run.provenance["logit_difference"] <= 1e-5
    bridge.eval()
    tokens = SOURCE.sample(4, 7, generator=torch.Generator().manual_seed(9))
    torch.testing.assert_close(run.model()(tokens), bridge(tokens), rtol=1e-5, atol=1e-5)
    assert run.config.tied == (name == "gpt2")
