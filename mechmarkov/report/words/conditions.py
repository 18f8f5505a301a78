"""What stands beside a claim, in words: a sentence for each premise that a reader would ask for."""

from collections.abc import Callable

from mechmarkov.claims.claim import Condition
from mechmarkov.report.words.names import heads, law, nats, number, part, share, token
from mechmarkov.utils.text import clean, counted, listed

Phrase = Callable[[Condition], str]


def _value(condition: Condition, digits: float = 0.0) -> float:
    return digits if condition.value is None else condition.value


def _unless(text: str) -> Phrase:
    """A sentence for a premise that does not hold; nothing where it does."""
    return lambda c: "" if c.holds else text


def _if(text: str) -> Phrase:
    """A sentence for a premise that holds; nothing where it does not."""
    return lambda c: text if c.holds else ""


def _fixed(text: str) -> Phrase:
    return lambda _: text


def _silent(_: Condition) -> str:
    """A number that the claim's own sentence uses."""
    return ""


def _flat(text: str, otherwise: str) -> Phrase:
    return lambda c: (text if c.holds else otherwise).format(_tiny(_value(c)))


def _tiny(value: float) -> str:
    return "under 10⁻¹²" if 0 < value < 1e-12 else number(value)


def _looks_up(condition: Condition) -> str:
    table, *rest = condition.words
    through = f" through {clean(rest.pop(0))}" if rest and rest[0].startswith("L") else ""
    weight = "" if condition.value is None else f" (weight {number(condition.value)})"
    where = "the direct table" if table == "direct" else f"the table of {part(table)}"
    return f"Its tables look up {token(rest)}{through} in {where}{weight}"


def _most_attended(condition: Condition) -> str:
    after, *most = condition.words
    if not most:
        return f"After {clean(after)} it looks at any token"
    return f"After {clean(after)} it looks at {_some(most)}"


def _some(names: list[str]) -> str:
    return listed([clean(name) for name in names[:3]] + [f"{len(names) - 3} more"] * (len(names) > 3))


def _growth(condition: Condition) -> str:
    return f"Theory predicts growth at rate {number(_value(condition), '')} ({clean(condition.words[0])})"


def _kind(condition: Condition) -> str:
    if condition.words[0] == "saddle":
        return f"The unigram point would be a saddle, left at rate {number(_value(condition))}"
    return f"The unigram point would be {'a minimum' if condition.words[0] == 'minimum' else 'flat to second order'}"


TERMS = {
    "Table": "a table of {tokens}",
    "Position": "a bias by position",
    "Counts": "counts of {grams}",
    "WeightedRow": "counts of tokens times the current token's row",
    "LagHead": "a head that mixes lags",
    "TokenHead": "a head that looks by token",
    "MatchHead": "an induction head{matched}",
}
GRAMS = {1: "tokens", 2: "pairs of tokens", 3: "triples of tokens"}


def term(condition: Condition) -> str:
    """Returns a term of a fitted program in words."""
    kind, *tokens = condition.words
    order = int(_value(condition))
    matched = " that matches two tokens" if order == 3 else ""
    return TERMS.get(kind, clean(kind)).format(
        tokens=listed([token((name,)) for name in tokens]), grams=GRAMS.get(order, "tokens"), matched=matched
    )


# Every premise that a claim may name, and its sentence; "" where the claim's own sentence says it.
CONDITIONS: dict[str, Phrase] = {
    # behaviour
    "coincide": lambda c: f"{listed([law(name) for name in c.words])} coincide on these sequences".replace("the ", "The ", 1),
    "next law": lambda c: f"Next is {law(c.words[0])}, {nats(c.value)} away",
    "floored": lambda c: f"It gives {counted(int(_value(c)), 'possible next state')} less than 10⁻¹², which its KL counts as that",
    "possible": _silent,
    "chance": _silent,
    "at chance": _fixed("It is right as often as chance"),
    "share of places": _silent,
    "near elsewhere": lambda c: f"Elsewhere it is at most {nats(c.value)} away",
    "left at that temperature": lambda c: f"At that temperature {nats(c.value)} are left",
    "at its own temperature": lambda c: f"At its own temperature it is {nats(c.value)} away",
    "unigram is told from the best": _unless("The unigram is within 0.01 nats of the best law"),
    "the best is the unigram": _if("The best law is the unigram"),
    "the nearest law is the best": _silent,
    "the nearest law is the unigram": _silent,
    "loss on scores": _if("The training loss is on scores, which has another optimum than cross-entropy"),
    "no step was made": _if("No step was made yet"),
    # attention
    "effective weights": lambda c: "Attention is here the share of "
    + ("a token's effective weight" if _value(c) <= 1 else f"a position's effective weight; it holds {int(_value(c))} tokens"),
    "one token to attend to": _silent,
    "tokens": _silent,
    "at every prediction": _silent,
    "effective tokens": _silent,
    "not the parent": _fixed("That is not the parent"),
    "reach": lambda c: f"That is in the {share(c.value)} of predictions that reach so far",
    "within its null": _silent,
    "modulo": _silent,
    "most attended after": _most_attended,
    # alignment
    "law": _silent,
    "predicts by itself": lambda c: f"Its weights predict the law to {nats(c.value)}",
    "the unigram is away": lambda c: f"The unigram is {nats(c.value)} away from it",
    "by mean output": _if("An MLP's table is its mean output after each state"),
    "norm's scale at its mean": _if("The norms' scale is taken at its mean"),
    "constant": _fixed("Its circuit is constant over states"),
    "attends": lambda c: f"It reads {token(c.words)} with {share(c.value, 1)} of its attention",
    "lags alike": _fixed("Other lags fit as well"),
    # induction
    "no match": _silent,
    "no key to edit": _silent,
    "no strong circuit": _silent,
    "moves the other way": lambda c: f"{heads(c.words)} looks away from keys after a copy, by {number(abs(_value(c)))} of the ideal",
    "on matches": lambda c: f"It gives keys after a copy of the current token {share(c.value, 1)} of its attention",
    "beyond lag and tokens": lambda c: f"That is {number(_value(c))} beyond what lag and tokens explain",
    "an ideal head has": lambda c: f"A head that is uniform on matches has {number(_value(c))}",
    "equal within intervals": _fixed("Their scores are equal within their intervals"),
    "its own convolution": _fixed("Its own convolution reads the previous token"),
    "through": _silent,
    "previous token": lambda c: f"{clean(c.words[0])} gives the previous token {share(c.value, 1)} of its attention",
    "score before and after": lambda c: f"Intact, its score is {number(_value(c))}",
    "after the cut": lambda c: f"With that path cut it is {number(_value(c))}",
    "from": _silent,
    "to": _silent,
    "simpler law": lambda c: f"{law(c.words[0]).capitalize()} is {nats(c.value)} away".replace("In-", "in-"),
    "does harm": _silent,
    "not the law's": _silent,
    "some of it": _silent,
    "most of what there is": _silent,
    "finds after": _silent,
    "not for their predecessors": _silent,
    # ablation
    "loss": _silent,
    "least of them": _silent,
    "next part": lambda c: f"Next is {part(c.words[0])}, {nats(c.value)}",
    "no single parent": _silent,
    "all parents have one law": _silent,
    "cut from the logits only": _silent,
    "worth together": _silent,
    "group": _silent,
    "largest of them": lambda c: f"By itself {part(c.words[0])} is worth most of them, {nats(c.value)}",
    # storage
    "worth of all paths": _silent,
    "what there is of it": _silent,
    "with it only": lambda c: f"With {part(c.words[0])} only it would be {nats(c.value)} away",
    "without it": lambda c: f"Without {part(c.words[0])} it would be {nats(c.value)} away",
    "at the whole model's norm scale": _fixed("These are at the whole model's norm scale"),
    "positions": _silent,
    "positions that follow the parent": lambda c: f"Predictions follow the parent at {counted(int(_value(c)), 'position')} only",
    "positions that change with the parent": lambda c: f"Setting the parent changes predictions at {counted(int(_value(c)), 'position')}",
    "rank that keeps 90 %": lambda c: f"Rank {int(_value(c))} of {clean(c.words[0])} keeps 90% of the bigram part",
    "full rank": _silent,
    "half is stored": lambda c: f"Whether half of it is stored, not read from the context, is open ({share(c.value)})",
    "too little to share": _silent,
    "others undo it": _silent,
    "the paths lead away": _silent,
    "nothing to share": _silent,
    "only at another scale": _silent,
    "stored or from the context": _silent,
    "some from the context": _silent,
    "from the context": _silent,
    "the parent leads away": _silent,
    "the parent hardly leads there": _silent,
    "not by the parent": _silent,
    # symmetry
    "near the best": _silent,
    "not the walk model": _silent,
    "states": _silent,
    "states that a label counts": _silent,
    "states divide the length": _silent,
    "first gradient is flat": _flat("The first gradient is flat (information {})", "The first gradient has information {}"),
    "attention is flat": _flat("Attention is flat to {} of uniform", "Attentions differ by {} of a token's mean"),
    "rows of V are constant": _flat("The rows of V are constant to {}", "A share {} of the circuit depends on the state"),
    "stays for ever": _if("Exact arithmetic stays there at every later step"),
    "leaves at": lambda c: f"Its random part grows, so that it would leave by about step {int(_value(c))}",
    "its optimiser scales coordinates": _fixed("Its optimiser scales each coordinate, which need not keep the symmetry"),
    "rounding took it out": _fixed("Rounding took it out: exact arithmetic would have stayed"),
    "it started at random": lambda c: f"Its random start (sd {number(_value(c))}) breaks the symmetry",
    "its start is unknown": _fixed("Its start or its optimiser broke the symmetry"),
    "the token mean tells": lambda c: f"The nearest class mean is right {share(c.value, 1)} of the time",
    "one step predicts": lambda c: f"One step from zero predicts with accuracy {share(c.value, 1)}",
    "reduced system's spread": lambda c: f"The reduced system has an attention spread of {_tiny(_value(c))}",
    "away from the reduced system": lambda c: f"The run's V is {share(c.value, 1)} away from the reduced system's" if _value(c) <= 1 else "",
    # landscape
    "leaves inside the symmetric subspace": lambda c: f"Inside the symmetric subspace gradient descent leaves it, at rate {number(_value(c))}",
    "outside the symmetric subspace": _fixed("This is judged outside the symmetric subspace"),
    "at a kink": _fixed("A ReLU is exactly at zero, where the loss has no second derivative"),
    "states that sequences hardly show": lambda c: f"States that sequences hardly show add {nats(c.value)} to its KL",
    "the law has zeros": _fixed("The law has zeros, which no softmax reaches"),
    "steps of L-BFGS": _silent,
    "gradient": lambda c: f"The gradient is {number(_value(c))} {c.unit}",
    "stationary below": _silent,
    "largest eigenvalue": lambda c: f"The largest eigenvalue is {number(_value(c))}",
    "growing directions": _silent,
    "directions": _silent,
    "flat directions": _if("Some directions are flat"),
    "to second order only": _silent,
    "flat within": lambda c: f"Within ±{number(_value(c))} an eigenvalue counts as zero",
    "from the stationary point": lambda c: f"It is {nats(c.value, c.unit)} from the stationary point",
    "theory knows only part": lambda c: f"Theory of {clean(c.words[0])} knows the straight path; the rest adds {share(c.value)}",
    "the interval holds the prediction": lambda c: f"Its interval holds what theory predicts at {clean(c.words[0])}",
    "as predicted": lambda c: f"This is {'as' if c.holds else 'not as'} predicted at {clean(c.words[0])} (off by {share(c.value, 1)})",
    "predicted growth": _growth,
    "predicted smallest": lambda c: f"Theory predicts a smallest eigenvalue of {number(_value(c))}",
    "overlap with predicted modes": lambda c: f"The lowest eigenvectors lie in the predicted modes to {share(c.value, 1)}",
    "the unigram point would be": _kind,
    "drift": lambda c: f"Inside the symmetric subspace the gradient is {number(_value(c))}",
    "no growing pattern": _silent,
    "on the subspace to the last bit": _silent,
    "already away": _silent,
    "seen": _silent,
    "by linear theory": _silent,
    "observed rate": lambda c: f"It grew at rate {number(_value(c))}",
    "predicted rate": lambda c: f"Linear theory predicts rate {number(_value(c))}",
    "predicted step": lambda c: f"Linear theory has it leave by step {int(_value(c))}",
    "e": _silent,
    "w": _silent,
    "misses the log-odds by": lambda c: f"They miss its log-odds by {number(_value(c))}",
    # dynamics
    "probed steps": _silent,
    "from the first probed step": _silent,
    "without its sampling error": _fixed("Its steps leave out the sampling error of attention"),
    "lost again": _silent,
    "cannot be seen": lambda c: clean(c.words[0]),
    "gradient of its largest": _silent,
    # program
    "constant predictions": _silent,
    "numbers": _silent,
    "leaves": _silent,
    "at most": lambda c: f"On fresh sequences it leaves at most {nats(c.value)}",
    "of": _silent,
    "predictor leaves": lambda c: f"By KL from the model, {law(c.words[0])} leaves {nats(c.value)}",
    "term": _silent,
    "looks up": _looks_up,
    "looks up matches": lambda c: f"Its tables look up tokens after copies of the current one, in the table of {part(c.words[0])}"
    + ("" if c.value is None else f" (favoured {number(c.value)} to 1)"),
    "looks up many alike": lambda c: f"Its tables look up {int(_value(c))} tokens alike in the table of {part(c.words[0])}",
    # belief
    "hidden states": _silent,
    "tokens and predictions give": lambda c: f"The next law and the last tokens give R² {number(_value(c))}",
    "beyond them": lambda c: "A reading cannot tell a carried belief from a prediction"
    if c.holds is None
    else f"Of what they leave open the stream tells {share(c.value, 1)}",
    "after attention": lambda c: f"After the attention of layer {c.words[0]} R² is {number(_value(c))}",
    "sums of one update a token": lambda c: f"Sums of one update a token reach R² {number(_value(c))}",
    "forced at": lambda c: f"A state is forced in {stream(c.words[0])}, the earliest that is nearly as good",
    "at the logits": _fixed("A state forced there moves the logits, and shows only that they are read from it"),
    "a forced token": _fixed("The embedding knows the current token only: this is like a forced token"),
    "hidden states have one law": _silent,
    "clean": _silent,
    # graph
    "edges of the head": _silent,
    "edges of the graph": _silent,
    "edges of all such heads": _silent,
    "edges from roots": lambda c: f"{counted(int(_value(c)), 'edge')} from tokens without a parent count neither way" if _value(c) else "",
    "chance of as many": lambda c: f"Chance gives as many in some head with probability {number(_value(c))} at most",
    "attention on parents": lambda c: f"Parents get {share(c.value, 1)} of its attention",
    "uniform gives": lambda c: f"Uniform attention gives them {share(c.value, 1)}",
    # degeneracy
    "parameters": _silent,
    "exactly": lambda c: f"Exactly it is {number(_value(c))}",
    "estimate of a bigram table": _silent,
    "exact for that table": _silent,
    "chains agree": _unless("The halves of the chains disagree"),
    "below the loss here": _if("The chains saw a lower loss than here"),
    "devinterp gives": lambda c: f"Devinterp gives {number(_value(c))}",
    "devinterp's estimate of that table": lambda c: "" if c.holds else f"Devinterp is not calibrated: {number(_value(c))} on that table",
    # certificate
    "certified program": _silent,
    "sequences": lambda c: "" if c.holds else "They are all sequences of its states, whether or not the source can give them",
    "largest seen": lambda c: f"The largest that was seen is {nats(c.value)}",
    "no bound": _silent,
    "log ratio at most": lambda c: f"Log-probabilities are within {nats(c.value)}",
    "every evaluation in float32": lambda c: f"The bound covers {'every evaluation in float32' if c.holds else 'exact arithmetic only'}",
}  # fmt: skip


def stream(name: str) -> str:
    """Returns a residual stream's name in words."""
    return "the embedding" if name == "embed" else f"the stream after layer {name[1:]}"


def sentence(condition: Condition) -> str:
    """Returns the sentence of a premise, without a full stop; "" where the claim's own sentence says it.

    A premise of a third party's probe that has no phrase here is told as its name and its number.
    """
    phrase = CONDITIONS.get(condition.name)
    if phrase is not None:
        return phrase(condition)
    value = (
        ""
        if condition.value is None
        else f": {number(condition.value, condition.unit)} {condition.unit}".rstrip()
    )
    holds = {True: "", False: "not ", None: "perhaps "}[condition.holds]
    return f"{holds}{clean(condition.name)}{value}".capitalize()
