"""Tiles told in view of the whole model: a circuit that scores made, a law that is not the best, one step."""

from collections.abc import Mapping
from dataclasses import replace

from mechmarkov.claims.claim import Claim, Claims, Where
from mechmarkov.claims.tile import CAME, LEARNED, LIVES, STUCK, Tile
from mechmarkov.report.words.bars import bars_from_zero, on_steps
from mechmarkov.report.words.came import came_in_words
from mechmarkov.report.words.names import fitting, law, nats, parts, share, upper, verb, within
from mechmarkov.report.words.phrases.laws import where
from mechmarkov.report.words.sentences import sentence
from mechmarkov.report.words.short_forms import has_room, short
from mechmarkov.report.words.tiles import PICTURES, WordedTile

SIMPLE = ("uniform", "unigram")  # laws that no part needs to hold
CLOSE = 0.25  # of another part's worth: how much harm is told next to it, and how much help before harm
MOST_OF_IT = 0.95  # of what is left; it is told where it is
DEFINED = {"in_context_graph": "That law counts which state followed which along the edges so far."}


def of_a_circuit(
    tile: Tile,
    shown: WordedTile,
    reaches: Claim,
    right: str,
    accuracies: Mapping[str, float],
    table: Claim | None = None,
) -> WordedTile:
    """Returns a tile of a circuit that a loss on scores made: all of a law's, with other probabilities.

    Nats and laws that are nearer by KL say little of it, so that it is measured by how often it is right.

    Args:
        tile: The tile as data.
        shown: The tile in words.
        reaches: How far the model is from the best law.
        right: How often the model is right, in words.
        accuracies: How often this model is right, and exact laws are, by names for people.
        table: What the circuit has in its weights for the law's probabilities.
    """
    if tile.question == LEARNED:
        answer = f"{upper(law(reaches.object[0]))}'s circuit, not its probabilities"
        rows = bars_from_zero(dict(sorted(accuracies.items(), key=lambda item: -item[1])))
        bars = tuple(replace(row, text=share(accuracies[row.label])) for row in rows)
        meaning = sentence(table) if table is not None else DEFINED.get(reaches.object[0], "")
        told, picture = f"{shown.sentence} {meaning}".strip(), PICTURES["right"] if bars else ""
        return replace(shown, answer=answer, sentence=told, number="", score=None, picture=picture, bars=bars)
    if tile.question == CAME and tile.picture == "steps":
        heads = tuple(claim for claim in tile.answer if claim.relation == "came_by")
        rows = on_steps(heads) if heads else shown.bars
        picture = "first probed step at which a head is halfway to an ideal one" if heads else shown.picture
        return replace(
            shown, answer=came_in_words(heads or tile.answer), picture=picture if rows else "", bars=rows
        )
    if tile.question == STUCK and tile.answer[0].relation == "reaches":
        away = f"{nats(reaches.value)} from the best{within(reaches)}"
        told = f"In cross-entropy, which it was not trained on, it is {away}."
        return replace(shown, answer=f"No: {right}", sentence=told, picture="", bars=())
    return shown


def of_a_part(tile: Tile, shown: WordedTile, learned: str, claims: Claims) -> WordedTile:
    """Returns the tile of where the bigram lives in a model whose law is another one.

    Args:
        tile: The tile as data.
        shown: The tile in words.
        learned: The law that the model is closest to.
        claims: The claims of all probes.
    """
    home = tile.answer[0]
    if tile.question != LIVES or home.relation != "stores" or learned in (*SIMPLE, *home.object):
        return shown
    if home.where != Where():  # it says where the model has the bigram
        return shown
    like = claims.first("imitates", object=learned, status="shown", probe="behaviour")
    if not home.is_shown:
        if like is None:  # it has no part of a law that it is only the closest to
            return shown
        table = claims.first("matches", status="shown", probe="alignment")
        if table is not None and learned in [
            f"{kind}_{int(table.number('law'))}" for kind in ("step", "lag")
        ]:
            return replace(shown, answer=upper(short(table)), sentence=sentence(table), bars=())
        return replace(shown, answer=f"Where {law(learned)} lives is not known")
    reached = claims.first("reaches", object=learned, status="shown", probe="behaviour")
    has = like is not None or reached is not None
    rest = f" Where the rest of {law(learned)} lives is not measured." * has
    told = f"Of {law(home.object[0])}: {short(home)}"
    answer = told if has_room(told) else f"Of {law(home.object[0])}: {len(home.subject)} parts"
    return replace(shown, answer=answer, sentence=f"{shown.sentence}{rest}")


def of_harm(tile: Tile, shown: WordedTile, claims: Claims) -> WordedTile:
    """Returns the tile of where it lives, which tells of a part without which the model is better.

    Args:
        tile: The tile as data.
        shown: The tile in words.
        claims: The claims of all probes.
    """
    answer = tile.answer[0]
    if tile.question == LIVES and answer.relation in ("is_needed_most", "stores") and not answer.is_shown:
        return _of_no_part(answer, shown, claims)
    harm = _largest_harm(claims)
    if harm is None or tile.question != LIVES:
        return shown
    if answer.relation == "is_needed_most":
        return _of_more_harm(answer, harm, shown)
    if answer.relation not in ("feeds", "is_induction_head"):
        return shown
    named = {name for claim in tile.answer for name in (*claim.subject, *claim.object)}
    effects = claims.where("is_needed", probe="ablation")
    inside = [one for one in effects if one.condition("does harm") and one.subject[0] in named]
    most = max((one.value or 0.0 for one in effects), default=0.0)
    if not inside and -(harm.value or 0.0) < CLOSE * most:
        return shown
    return replace(shown, sentence=f"{sentence(tile.more[0])} {sentence((*inside, harm)[0])}")


def _largest_harm(claims: Claims) -> Claim | None:
    """Returns the claim of the part without which the loss falls most; None where none clearly does harm."""
    harm = [one for one in claims.where("is_needed", probe="ablation") if one.condition("does harm")]
    return min(harm, key=lambda one: one.value or 0.0, default=None)


def _of_more_harm(answer: Claim, harm: Claim, shown: WordedTile) -> WordedTile:
    """Returns the tile of what is needed most, which tells first of a part that does more harm than that helps.

    Of one that does much more harm the answer tells too.
    """
    worth, costs = answer.value or 0.0, -(harm.value or 0.0)
    if costs <= worth:
        return shown
    both = replace(shown, sentence=f"{sentence(harm)} {sentence(answer)}")
    if worth >= CLOSE * costs:
        return both
    does = f"{parts(harm.subject)} does harm, more than"
    told = f"{does} {parts(answer.subject)} {verb(answer.subject, 'helps', 'help')}"
    return replace(both, answer=upper(told if has_room(told) else f"{does} any part helps"))


def _of_no_part(answer: Claim, shown: WordedTile, claims: Claims) -> WordedTile:
    """Returns the tile of a model of which no part is clearly needed, with a part that does harm.

    Of a law that holds at some places only, it says "on average".
    """
    harm = answer.condition("does harm")
    if answer.status == "open" and harm is not None and harm.words:
        by_itself = claims.first("is_needed", subject=harm.words[0], probe="ablation")
        told = [sentence(one) for one in (answer, by_itself) if one is not None]
        return replace(shown, sentence=" ".join(told))
    has = [
        one for one in claims.where("imitates", status="shown", probe="behaviour") if not one.is_everywhere
    ]
    of_it = harm is not None or answer.object in [one.object for one in has]
    if answer.status == "excluded" and has and of_it:
        return replace(shown, answer=upper(f"on average {short(answer)}"))
    return shown


def of_one_step(tile: Tile, shown: WordedTile, claims: Claims) -> WordedTile:
    """Returns whether it is stuck, of one step that is not at the best: that it cannot tell, and what is left.

    Args:
        tile: The tile as data.
        shown: The tile in words.
        claims: The claims of all probes; one that tells of a place where a law fails may tell all that is left.
    """
    reaches = tile.answer[0]
    if tile.question != STUCK or reaches.relation != "reaches":
        return shown
    if reaches.is_shown or reaches.holds("no step was made") or reaches.holds("loss on scores"):
        return shown
    fails = claims.first("fails_at", object=reaches.object[0], status="shown")
    rest = ""
    if fails is not None and _is_all_there(fails, reaches):
        first = ", where it has seen one token" if fails.where.positions == (0,) else ""
        rest = f", nearly all of it {where(fails)}{first}"
    away, ends = nats(reaches.value), within(reaches)
    told = fitting(*(f"It is {away} from {best}{ends}{rest}." for best in ("the best possible", "the best")))
    return replace(shown, answer="One checkpoint cannot tell", sentence=told)


def _is_all_there(fails: Claim, reaches: Claim) -> bool:
    """Returns whether what a model lacks of the best law it lacks at one position."""
    places = fails.condition("share of places")
    if len(fails.where.positions) != 1 or places is None or reaches.value is None:
        return False
    return (fails.value or 0.0) * (places.value or 0.0) >= MOST_OF_IT * reaches.value


def one_step(kept: int) -> WordedTile:
    """Returns the tile of a run of which one step was probed; `kept` is how many it has."""
    more = "Probe all saved steps to see when it came: --steps all."
    return WordedTile(CAME, "One checkpoint cannot tell", "Only one was saved." if kept == 1 else more)
