"""What the shipped binary recipes are said to do, measured (Makkuva et al., arXiv 2402.04161)."""

import numpy as np
import pytest
import torch
from fitting import fit, fit_members

from mechmarkov.models.decoder import HookedDecoder
from mechmarkov.training.recipe import load_recipe
from mechmarkov.training.workload import Member

pytestmark = pytest.mark.experiments


def kl_from(fitted, step, law):
    """Mean KL(law ‖ model) in nats on fresh sequences, for each member; `law` is unigram or bigram."""
    stack = HookedDecoder(fitted.members[0].recipe.decoder_config, n_models=len(fitted.members))
    stack.load_state_dict(fitted.checkpoints[step])
    found = []
    for index, member in enumerate(fitted.members):
        source = member.recipe.source
        tokens = source.sample(64, member.recipe.model.n_ctx, generator=torch.Generator().manual_seed(99))
        with torch.no_grad():
            model = stack[index](tokens).double().log_softmax(-1).numpy()
        truth = np.broadcast_to(source.pi, (2, 2)) if law == "unigram" else source.P
        rows = truth[tokens.numpy()]
        found.append((rows * (np.log(rows) - model)).sum(-1).mean())
    return np.array(found)


def check_trapped(fitted):
    last = fitted.members[0].recipe.steps
    assert (kl_from(fitted, last, "unigram") < 1e-3).all()
    assert (kl_from(fitted, last, "bigram") > 0.15).all()
    E = [fitted.checkpoints[step]["embed.W_E"] for step in (0, last)]
    before, after = ((W[:, 0] - W[:, 1]).norm(dim=-1) for W in E)
    assert (after < before / 10).all()


def test_plain_gradient_descent_is_trapped_at_the_unigram():
    """The tied point e = a = 0 is a local minimum for p + q > 1: what tells the states apart shrinks."""
    check_trapped(fit(load_recipe("binary-p08-q08-tied-gd").with_set(["steps=300"]), [0]))


@pytest.mark.slow
def test_the_trapped_recipe_is_trapped_for_every_seed():
    check_trapped(fit(load_recipe("binary-p08-q08-tied-gd"), list(range(16))))


@pytest.mark.parametrize(
    "names", [["binary-p02-q03-tied"], ["binary-p02-q03-untied", "binary-p08-q08-untied"]], ids=" ".join
)
def test_without_a_trap_the_bigram_is_learned(names):
    fitted = fit_members([Member(load_recipe(name), 0) for name in names])
    assert (kl_from(fitted, 0, "bigram") > 0.05).all()
    assert (kl_from(fitted, fitted.members[0].recipe.steps, "bigram") < 0.005).all()


@pytest.mark.slow
def test_tied_runs_stay_at_the_unigram_then_leave():
    """Unlike plain gradient descent, AdamW does not stay at the unigram for ever."""
    recipe = load_recipe("binary-p05-q08-tied")
    seeds = list(range(16))
    early = kl_from(fit(recipe, seeds), 400, "unigram") < 1e-3
    assert early.mean() >= 0.5
    late = kl_from(fit(recipe.with_set(["steps=1600"]), seeds), 1600, "bigram") < 0.01
    assert late.mean() >= 0.75


def test_the_guideline_reaches_the_bigram_unlike_standard_starts():
    """Makkuva et al. 2024: MLP weights of 1 and -1 put `w` where both basins lead to the bigram."""
    recipe = load_recipe("binary-p05-q08-tied")
    seeds = list(range(6))
    guideline = recipe.with_set(["init.scheme=guideline"])
    both = fit_members([Member(start, seed) for start in (recipe, guideline) for seed in seeds])
    standard, guided = np.split(kl_from(both, 400, "bigram"), 2)
    assert (standard > 0.04).sum() >= 5  # nats; the unigram is at 0.047
    assert (guided < 0.005).sum() >= 5


def test_rank_one_weights_stay_of_rank_one():
    recipe = load_recipe("binary-p02-q03-tied").with_set(["init.std=0.2", "steps=100"])
    starts = [recipe.with_set([f"init.scheme={scheme}"]) for scheme in ("rank_one", "normal")]
    both = fit_members([Member(start, seed) for start in starts for seed in (0, 1)])
    squares = torch.linalg.svdvals(both.checkpoints[100]["blocks.0.mlp.W_in"]).square()
    rank_one, normal = (squares[:, 0] / squares.sum(1)).split(2)
    assert (rank_one > 0.999).all()
    assert (normal < 0.9).all()
