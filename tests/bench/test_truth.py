"""Hand-set cases by a transformer and exact laws in numpy, which share no code with the library."""

from collections import Counter

import numpy as np
import pytest
import torch
from scipy.special import softmax

import mechmarkov as mm
from mechmarkov.bench import CASES, METRICS, Change, case_of, methods, page, subspaces
from mechmarkov.bench.circuits import induction_with_decoy, tied_plateau
from mechmarkov.bench.counterfactuals import places
from mechmarkov.bench.patching import edge_effects, layer_effects, node_effects
from mechmarkov.bench.scores import signal_angle
from mechmarkov.bench.trained import FLEETS, random_weights, shuffled_weights, trained_model

HAND_SET = [name for name in CASES if not name.startswith(("bundled", "trained", "random", "shuffled"))]


def outputs(model, tokens, instead=None):
    """Every sender's part of the stream, and the logits.

    A receiver reads `instead[sender, receiver]`, or `instead[sender, None]`, in place of what is written.
    """
    w = {name: value.numpy() for name, value in model.state_dict().items()}
    pos = w.get("pos_embed.W_pos")
    written, constant = {"embed": w["embed.W_E"][tokens]}, 0 if pos is None else pos[: tokens.shape[1]]

    def read(receiver):
        found = (instead or {}).get
        parts = [found((s, receiver), found((s, None), x)) for s, x in written.items()]
        return sum(parts) + constant

    future = np.triu(np.ones((tokens.shape[1],) * 2, bool), 1)
    for layer in range(model.config.n_layers):
        attn, mlp = f"blocks.{layer}.attn.", f"blocks.{layer}.mlp."
        heads = {}
        for h in range(model.config.n_heads):
            name = f"L{layer}H{h}"
            q, k, v = (read(f"{name}.{x}") @ w[f"{attn}W_{x}"][h] + w[f"{attn}b_{x}"][h] for x in "QKV")
            pattern = softmax(np.where(future, -np.inf, q @ k.swapaxes(1, 2)), -1)
            heads[name] = pattern @ v @ w[f"{attn}W_O"][h]
        written |= heads
        constant = constant + w[f"{attn}b_O"]
        if model.config.d_mlp is not None:
            hidden = np.maximum(0, read(f"L{layer}.mlp") @ w[f"{mlp}W_in"] + w[f"{mlp}b_in"])
            written[f"L{layer}.mlp"] = hidden @ w[f"{mlp}W_out"] + w[f"{mlp}b_out"]
    unembed = w["embed.W_E"].T if model.config.tied else w["unembed.W_U"]
    return written, read("logits") @ unembed + w["unembed.b_U"]


def measured(case, logits):
    """Each metric, mean over sequences and predictions."""
    law, other, read = case.law.numpy(), case.corrupt_law.numpy(), case.read.numpy()
    clean = softmax(outputs(case.model, case.clean.numpy())[1][:, read], -1)
    log = np.log(softmax(logits[:, read], -1))
    return {
        "logit-difference": -((law - other) * logits[:, read]).sum(-1).mean(),
        "kl": (clean * (np.log(clean) - log)).sum(-1).mean(),
        "nats": -(law * log).sum(-1).mean(),
    }


@pytest.mark.parametrize("pairs", ["minimal", "resampled"])
@pytest.mark.parametrize("name", HAND_SET)
def test_effects_are_those_of_a_transformer_in_numpy(name, pairs):
    case = CASES[name](5, pairs=pairs)
    clean, corrupt = case.clean.numpy(), outputs(case.model, case.corrupt.numpy())[0]
    before = measured(case, outputs(case.model, clean)[1])
    paths = {node: (node, None) for node in case.nodes} | case.edges
    both = node_effects(case, METRICS), edge_effects(case, METRICS)
    found = {metric: both[0][metric].as_claims() | both[1][metric].as_claims() for metric in METRICS}
    for what, (sender, receiver) in paths.items():
        instead = {(sender, receiver): corrupt[sender]}
        after = measured(case, outputs(case.model, clean, instead)[1])
        for metric in METRICS:
            assert found[metric][what] == pytest.approx(after[metric] - before[metric], abs=1e-9), what
    largest = max(abs(value) for value in found["nats"].values())
    assert largest < 1e-6 if case.empty else largest > 0.01
    assert min(found["kl"].values()) > -1e-9


@pytest.mark.parametrize("name", ["split", "induction", "belief"])
def test_a_model_is_stopped_by_the_means_of_what_follows(name):
    case = CASES[name](1)
    written = outputs(case.model, case.tuning.clean.numpy())[0]
    before = measured(case, outputs(case.model, case.clean.numpy())[1])["nats"]
    found = layer_effects(case, ["nats"])["nats"].as_claims()
    assert list(found) == ["embed", "L0"][: case.model.config.n_layers]
    for layer, stop in enumerate(found):
        later = [node for node in case.nodes if node != "embed" and int(node[1]) >= layer]
        instead = {(node, None): written[node].mean(0, keepdims=True) for node in later}
        after = measured(case, outputs(case.model, case.clean.numpy(), instead)[1])["nats"]
        assert found[stop] == pytest.approx(after - before, abs=1e-9)


@pytest.mark.parametrize("name", HAND_SET)
def test_the_built_circuit_is_what_the_weights_connect(name):
    """Edges whose composed weights are not zero, on a way from the tokens to the logits."""
    case = CASES[name](3)
    if name == "trap":  # connected, but what is written does not depend on what is read
        assert case.circuit == ()
        return
    w = {key: value.numpy() for key, value in case.model.state_dict().items()}

    def writes(name):
        if name == "embed":
            return w["embed.W_E"]
        layer = f"blocks.{name[1]}."
        return w[f"{layer}mlp.W_out"] if "mlp" in name else w[f"{layer}attn.W_O"][int(name[3])]

    def reads(name):
        if name == "logits":
            return w["embed.W_E"].T if case.model.config.tied else w["unembed.W_U"]
        layer = f"blocks.{name[1]}."
        return w[f"{layer}mlp.W_in"] if "mlp" in name else w[f"{layer}attn.W_{name[-1]}"][int(name[3])]

    def node(receiver):
        return receiver if receiver == "logits" or "mlp" in receiver else receiver[:-2]

    alive = {
        edge: (sender, node(receiver))
        for edge, (sender, receiver) in case.edges.items()
        if np.abs(writes(sender) @ reads(receiver)).max() > 1e-5
    }
    for _ in range(5):
        reached = {"embed"} | {receiver for _, receiver in alive.values()}
        read = {"logits"} | {sender for sender, _ in alive.values()}
        alive = {edge: (a, b) for edge, (a, b) in alive.items() if a in reached and b in read}
    assert set(case.circuit) == set(alive)


CHANGES = {"induction": "match", "order-2": "match", "belief": "state", "direct": "parent"}


@pytest.mark.parametrize("name", CHANGES)
def test_minimal_pairs_differ_in_one_state(name):
    case = CASES[name](2)
    clean, corrupt = case.clean.numpy(), case.corrupt.numpy()
    (rows, at), length = (clean != corrupt).nonzero(), clean.shape[1]
    assert rows.tolist() == list(range(len(clean)))
    assert case.read.tolist() == [length - 1]
    if name == "direct":
        assert set(at) == {length - 1}
    if name == "belief":
        assert len(set(at)) == length
    order = {"induction": 1, "order-2": 2}.get(name, 0)
    for row, t in zip(clean, at, strict=True):
        assert order == 0 or (row[t + 1 - order : t + 1] == row[length - order :]).all()
        assert order == 0 or t < length - order
    assert not np.allclose(case.law, case.corrupt_law)


def test_a_lagged_parent_is_changed_where_it_stands():
    history = torch.arange(12).reshape(2, 6)
    assert places(history, Change(lags=(3,)), seed=0).tolist() == [3, 3]
    assert set(places(history.repeat(20, 1), Change(lags=(1, 2)), seed=0).tolist()) == {4, 5}


@pytest.mark.parametrize(("order", "length"), [(k, n) for k in (1, 2, 3) for n in range(k, 7)])
def test_a_match_is_a_copy_that_does_not_overlap(order, length):
    histories = torch.cartesian_prod(*[torch.arange(2)] * length).reshape(-1, length)
    found = [places(histories, Change("match", order=order), seed=seed).tolist() for seed in range(20)]
    for number, row in enumerate(histories.tolist()):
        ends = range(order - 1, length - order)
        copies = {t for t in ends if row[t + 1 - order : t + 1] == row[length - order :]}
        assert {some[number] for some in found} <= (copies or {-1})


def test_sequences_without_a_match_are_left_out():
    change = Change("match", order=5)
    with pytest.raises(ValueError, match="0 of 1024 sequences can be changed at a match"):
        case_of("a", "", CASES["direct"](0).model, mm.Chain(np.roll(np.eye(4), 1, 1)), seed=0, change=change)


def test_controls_keep_the_size_of_the_weights():
    model = mm.example("induction").model(step=-1)
    shuffled, fresh = (make(model, seed=1) for make in (shuffled_weights, random_weights))
    for weight, other in zip(model.parameters(), shuffled.parameters(), strict=True):
        assert torch.equal(weight.ravel().sort().values, other.ravel().sort().values)
    tokens = torch.randint(3, (4, 64))
    assert not torch.allclose(shuffled(tokens), model(tokens), atol=0.1)
    assert not torch.allclose(fresh(tokens), model(tokens), atol=0.1)
    spread = [m.get_parameter("blocks.0.attn.W_Q").std() for m in (model, fresh)]
    assert 0.3 < spread[1] / spread[0] < 3


def test_a_member_of_a_fleet_is_that_of_its_seed(tmp_path, monkeypatch):
    """A block of seeds is trained together and kept; each is what it is when it is trained by itself."""
    monkeypatch.setenv("MECHMARKOV_CACHE", str(tmp_path))
    recipe, model = trained_model("walk", 5)
    (kept,) = tmp_path.iterdir()
    again = trained_model("walk", 6)[1]
    assert list(tmp_path.iterdir()) == [kept]
    for seed, member in ((5, model), (6, again)):
        single = mm.train(recipe, seed=seed, progress=False).model(step=-1)
        for key, value in single.state_dict().items():
            torch.testing.assert_close(member.state_dict()[key].float(), value, atol=1e-4, rtol=1e-3)


def test_methods_tune_on_other_sequences():
    case = CASES["head"](0)
    ours = {tuple(row) for row in case.clean.tolist()}
    assert len(ours & {tuple(row) for row in case.tuning.clean.tolist()}) < len(ours) / 2
    assert case.under("kl").tuning.metric == "kl"


def counted(x, n, order):
    """The posterior mean under uniform priors: one more than how often each state followed here before."""
    if len(x) < order:
        return np.full(n, 1 / n)
    seen = Counter(x[t] for t in range(order, len(x)) if x[t - order : t] == x[len(x) - order :])
    return np.array([1 + seen[state] for state in range(n)]) / (n + sum(seen.values()))


def filtered(source, x):
    """The next token of a hidden chain: the weight of each state, after every token that was seen."""
    n = len(source.T)
    weight = np.linalg.lstsq(np.vstack([source.T.T - np.eye(n), np.ones(n)]), np.eye(n + 1)[n], rcond=None)[0]
    for token in x:
        weight = (weight * source.E[:, token]) @ source.T
    return (weight @ source.E) / weight.sum()


def law(name, source, x, seed):
    """The law of the next state, drawn as the case says."""
    random = np.random.default_rng(seed)
    if name in ("induction", "contrary"):
        return counted(x, source.n_states, 1)
    if name == "order-2":
        return counted(x, 2, 2)
    if name in ("belief", "no-belief"):
        return filtered(source, x)
    if name in ("tied-plateau", "canonical"):
        p, q = random.uniform(0.6, 0.9, size=2)
        return np.array([[1 - p, p], [q, 1 - q]])[x[-1]]
    if name == "trigram":
        kernel = random.dirichlet(np.ones(3), size=(3, 3))
        return kernel[x[-2], x[-1]] if len(x) > 1 else None
    return random.dirichlet(np.ones(4), size=4)[x[-1]]


@pytest.mark.parametrize("name", HAND_SET)
def test_a_case_is_a_run_that_is_kept(name, tmp_path):
    case = CASES[name](5, pairs="resampled")
    case.as_run().save(tmp_path / "run.pt")
    again = mm.load(tmp_path / "run.pt").model()
    torch.testing.assert_close(
        again(case.clean).double(), case.model(case.clean).double(), rtol=1e-5, atol=1e-5
    )


def test_a_decoy_writes_what_nothing_reads():
    model, tokens = induction_with_decoy(3, 8), torch.tensor([[0, 1, 2, 0, 1, 2, 0, 1]])
    whole, cache = model.run_with_cache(tokens)
    decoy = cache["blocks.1.attn.hook_z"][:, 4:, 1]
    torch.testing.assert_close(decoy.sum(-1), torch.ones(1, 4), atol=1e-3, rtol=0)  # an earlier copy, one-hot
    with mm.ablate(model, "L1H1", kind="zero"):
        torch.testing.assert_close(model(tokens), whole)


def test_a_plateau_with_an_mlp_multiplies_by_its_sign():
    mlp = tied_plateau(np.full((2, 2), 0.5), 4, d_model=1, d_mlp=2).blocks[0].mlp
    x = torch.tensor([[[-2.0], [0.0], [0.5]]])
    torch.testing.assert_close(x + mlp(x), torch.tensor([[[-14.0], [0.0], [5.0]]]))


@pytest.mark.parametrize("name", HAND_SET)
def test_laws_are_those_of_counting_and_weighing_by_hand(name):
    case = CASES[name](5, pairs="resampled")
    for x, rows in zip(case.clean.tolist()[:8], case.law.numpy(), strict=False):
        for t, row in zip(case.read.tolist(), rows, strict=True):
            expected = law(name, case.source, x[: t + 1], 5)
            if expected is not None:  # a first token has no token before it
                np.testing.assert_allclose(row, expected, atol=1e-9)


def test_the_angle_of_signals_counts_a_missing_one_and_one_too_many_as_a_right_angle():
    signals = np.random.default_rng(0).normal(size=(50, 4))
    a, b, c, d = np.linalg.qr(signals - signals.mean(0))[0].T
    half = np.cos(np.pi / 4)
    for claimed, expected in (
        ((a, b), 0),
        ((a,), 1 / 2),
        ((a, b, c), 1 / 3),
        ((c,), 1),
        ((a, half * (b + c)), 1 / 4),
        ((half * (a + c),), (1 / 2 + 1) / 2),
        ((a, b, c, d), 2 / 4),
        ((0 * a,), 1),
    ):
        found = signal_angle(np.stack([a, b], 1), 3.0 + np.stack(claimed, 1))
        assert found == pytest.approx(expected, abs=1e-6), expected


@pytest.mark.parametrize("name", ["head", "mlp", "induction"])
def test_direct_attribution_is_what_a_node_writes_to_the_answers(name):
    case = CASES[name](5).under("logit-difference")
    clean, corrupt = (outputs(case.model, tokens.numpy())[0] for tokens in (case.clean, case.corrupt))
    unembed, read = case.model.state_dict()["unembed.W_U"].numpy(), case.read.numpy()
    answer = (case.law - case.corrupt_law).numpy()
    claims = methods.direct_logit_attribution(case)
    assert set(claims) == set(case.nodes)
    for node, claimed in claims.items():
        moved = ((clean[node] - corrupt[node]) @ unembed)[:, read]
        assert claimed == pytest.approx((answer * moved).sum(-1).mean(), abs=1e-6)


def test_a_subspace_that_changes_nothing_is_not_claimed():
    """The gain is 0 to the last bit, and so is that of the control task."""
    case = CASES["direct"](0)
    with torch.no_grad():
        case.model.get_parameter("unembed.W_U").zero_()
    said = subspaces._controlled(case, lambda *_, **__: torch.from_numpy(case.subspace[1]))
    assert isinstance(said, str)
    assert "no more than chance" in said


def test_scores_have_two_digits_below_ten_and_none_from_there_on():
    shown = ["–", "-9.99", "9.99", "10", "123"]
    assert [page._number(value) for value in (np.nan, -9.99, 9.994, 10.0, 123.4)] == shown


def test_the_kernel_of_trigrams_is_laws():
    law = np.array(FLEETS["trigram"][1]["source"]["kernel"])
    assert law.shape == (3, 3, 3)
    assert law.min() >= 0
    assert law.sum(-1) == pytest.approx(1, abs=1e-12)
