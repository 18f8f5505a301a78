"""Groups of heads: needed together though hardly one by one; not told of a head that is worth as much."""

import numpy as np
import pytest
import torch
from einops import einsum
from mechmarkov.probes.ablation.needed import _harm

import mechmarkov as mm
from mechmarkov.claims.claim import Claims
from mechmarkov.models import HookedDecoder
from mechmarkov.models.constructions import lookup_tables
from mechmarkov.models.constructions.lookup_tables import handset_config
from mechmarkov.probes import ablation
from mechmarkov.report.first_screen.circuit import certain, is_resampled, path_effects
from mechmarkov.report.first_screen.head_panels import head_panels
from mechmarkov.report.words.sentences import sentence

P = np.array([[0.7, 0.2, 0.1], [0.1, 0.7, 0.2], [0.3, 0.1, 0.6]])
TABLE = torch.tensor(np.log(P), dtype=torch.float32)


@torch.no_grad()
def heads_and_direct(parts, direct=0.0):
    """Heads that read the parent and write so many times the table each, and so many in the direct path."""
    model = lookup_tables._reading_one_token(3, torch.arange(12), n_heads=len(parts))
    model.blocks[0].attn.W_O[:, :3, 3:6] = einsum(
        torch.tensor(parts), TABLE, "head, row column -> head row column"
    )
    model.get_parameter("unembed.W_U")[:3] = direct * TABLE
    return mm.Run.from_model(model, source=mm.Chain(P.tolist()))


def needed(run):
    result = mm.probe(run, probes=["ablation"], sequences=32)
    return result["ablation"].data, result.claims.first("is_needed_most")


@pytest.mark.usefixtures("few_nulls")
def test_four_equal_heads_are_needed_together():
    data, most = needed(heads_and_direct([0.25] * 4))
    assert most.is_shown
    assert most.subject == ("L0H0", "L0H1", "L0H2", "L0H3")
    single = data["effect"].sel(component="L0H0", kind="mean", measure="loss").item()
    assert most.condition("largest of them").value == pytest.approx(single, rel=1e-3)
    # Without all four the model is at the mean of its logits: what the table by itself is worth.
    whole, _ = needed(heads_and_direct([1.0, 0, 0, 0]))
    alone = whole["effect"].sel(component="L0H0", kind="mean", measure="loss").item()
    assert most.value == pytest.approx(alone, rel=1e-4)


@pytest.mark.usefixtures("few_nulls")
@pytest.mark.parametrize(("parts", "direct", "name"), [([1.0, 0, 0], 0, "L0H0"), ([0, 0, 0], 1.0, "direct")])
def test_one_part_that_is_worth_all_is_named_by_itself(parts, direct, name):
    _, most = needed(heads_and_direct(parts, direct))
    assert most.subject == (name,)
    assert most.condition("group") is None


@pytest.mark.usefixtures("few_nulls")
def test_heads_that_attend_alike_in_two_layers_are_a_group():
    data, _ = needed(heads_and_direct([0.5, 0.5, 0.0]))
    groups = [tuple(data["group_head"].values[row]) for row in data["in_group"].values]
    assert groups == [("L0H0", "L0H1", "L0H2")]  # all three read the parent: one group, named once


@pytest.mark.usefixtures("few_nulls")
def test_an_effect_takes_no_loss_below_zero():
    """Of a chain whose every step is known the loss is nearly 0, so that no cut can lower it."""
    cycle = 0.998 * np.roll(np.eye(3), 1, axis=1) + 0.002 / 3
    model = lookup_tables.direct_table(torch.tensor(np.log(cycle), dtype=torch.float32), 12)
    result = mm.probe(
        mm.Run.from_model(model, source=mm.Chain(cycle.tolist())), probes=["ablation"], sequences=4
    )
    clean = float(result["ablation"].data["clean"].sel(measure="loss")[-1])
    assert result.claims.first("is_needed_most").interval[0] >= -clean - 1e-12


@pytest.mark.usefixtures("few_nulls")
def test_the_largest_effect_has_one_interval():
    result = mm.probe(heads_and_direct([0.7, 0.0, 0.3]), probes=["ablation"], sequences=32)
    most = result.claims.first("is_needed_most")
    assert (most.subject, most.status) == (("L0H0",), "open")
    assert result.claims.first("is_needed", subject="L0H0").interval == most.interval


@pytest.mark.usefixtures("few_nulls")
def test_a_part_whose_effect_is_open_is_not_needed_most():
    """The largest effect is not sure, a smaller one is."""
    result = mm.probe(heads_and_direct([0.7, 0.0, 0.3]), probes=["ablation"], sequences=32)
    data = result["ablation"].data.copy(deep=True).drop_vars("group_effect")
    data["effect_low"].loc[{"component": "L0H2", "kind": "mean", "measure": "loss"}] = 1e-3
    data["largest_low"] -= 1
    told = Claims(tuple(ablation.probe.claims(data, ablation.scores(data, None))))
    most = told.first("is_needed_most")
    assert most.status == "open"
    assert most.condition("clearly needed").words == ("L0H2",)
    assert sentence(most) == "Which part is needed most is open: L0H2 clearly is, L0H0 perhaps more."


@pytest.mark.usefixtures("few_nulls")
def test_of_a_loss_on_scores_paths_are_drawn_by_another_sequence():
    """At their mean its paths to the logits are not clearly worth anything."""
    result = mm.probe(mm.example("graph"), ["attention", "ablation", "graph"], sequences=256)
    (panel,) = (panel for panel in head_panels([result]) if panel.name == "L1H0")
    assert "With the output of L1H0 from another sequence the loss rises by" in panel.said[0]
    data = result["ablation"].data
    relied = result.claims.where("is_relied_on", status="shown")
    assert {claim.subject[0] for claim in relied} == {"L0H0", "L1H0"}
    of_path = (
        data["path_effect"].isel(step=-1).sel(path="L1H0 → logits", path_kind="resample", measure="loss")
    )
    assert path_effects(data)["L1H0", "logits"] == float(of_path) > 1
    assert ("L1H0", "logits") in certain(data)
    walk = mm.probe(mm.example("walk"), ["ablation"], sequences=16)
    assert is_resampled(walk["ablation"].data)
    table = mm.probe(heads_and_direct([1.0]), ["ablation"], sequences=16)
    assert not is_resampled(table["ablation"].data)
    assert not table.claims.where("is_relied_on")


@pytest.mark.usefixtures("few_nulls")
def test_one_part_only_is_told_as_needed_most():
    """At its mean L0H0 costs a model of scores most, and from another sequence L1H0 does."""
    graph = mm.probe(mm.example("graph"), ["ablation"], sequences=1024)
    assert not graph.claims.where("is_needed_most")
    relied = "With the output of L1H0 from another sequence the loss rises by"
    assert graph["ablation"].verdict.startswith(relied)
    walk = mm.probe(mm.example("walk"), ["ablation"], sequences=64)
    most = walk.claims.first("is_needed_most", status="shown")
    assert most.subject == walk.claims.first("is_relied_on").subject == ("L0H0",)


@torch.no_grad()
def mlps(parts):
    """An MLP a layer, each of which writes so many times the table of the current token."""
    shape = {"d_model": 6, "d_head": 3, "d_mlp": 3, "n_layers": len(parts)}
    model = HookedDecoder(handset_config(3, 12, **shape))
    model.embed.W_E[:, :3] = torch.eye(3)
    model.get_parameter("unembed.W_U")[3:] = torch.eye(3)
    for layer, part in enumerate(parts):
        model.get_parameter(f"blocks.{layer}.mlp.W_in")[:3] = torch.eye(3)
        model.get_parameter(f"blocks.{layer}.mlp.W_out")[:, 3:] = part * TABLE
    return mm.Run.from_model(model, source=mm.Chain(P.tolist()))


@pytest.mark.usefixtures("few_nulls")
def test_four_equal_mlps_are_needed_together():
    _, most = needed(mlps([0.25] * 4))
    assert most.is_shown
    assert most.subject == ("L0.mlp", "L1.mlp", "L2.mlp", "L3.mlp")
    _, one = needed(mlps([1.0, 0, 0, 0]))
    assert one.subject == ("L0.mlp",)
    assert most.value == pytest.approx(one.value, rel=1e-4)  # all four at their mean leave what one leaves


@pytest.mark.parametrize(("parts", "harm"), [(2, ("H0",)), (40, ())])
def test_harm_is_judged_among_all_parts(parts, harm):
    """One of 40 parts that change nothing is often below zero by itself."""
    effects = {f"H{i}": -0.02 if i == 0 else 0.0 for i in range(parts)}
    ends = {name: (value - 0.015, value + 0.015) for name, value in effects.items()}
    (told,) = _harm(effects, ends)
    assert told.words == harm
