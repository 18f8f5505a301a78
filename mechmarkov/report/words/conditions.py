"""What stands beside a claim, in words: a sentence for each premise that a reader would ask for."""

from collections.abc import Callable

from mechmarkov.claims.claim import Condition
from mechmarkov.models.components import head_index
from mechmarkov.report.words.names import heads, law, nats, number, part, parts, share, some, token, verb
from mechmarkov.utils.text import clean, counted, listed

Phrase = Callable[[Condition], str]
# A sentence with names of `FIELDS` in it; a pair of those if the premise holds and if not; or a function.
Template = str | tuple[str, str] | Phrase


def _value(condition: Condition) -> float:
    return 0.0 if condition.value is None else condition.value


def _whole(condition: Condition) -> int:
    return int(_value(condition))


# What a template's fields stand for.
FIELDS: dict[str, Callable[[Condition], object]] = {
    "number": lambda c: number(_value(c)),
    "tiny": lambda c: "under 10⁻¹²" if 0 < _value(c) < 1e-12 else number(_value(c)),
    "whole": _whole,
    "positions": lambda c: counted(_whole(c), "position") if _whole(c) else "no position",
    "nats": lambda c: nats(c.value),
    "in_unit": lambda c: nats(c.value, c.unit),
    "unit": lambda c: c.unit,
    "share": lambda c: share(c.value),
    "tenths": lambda c: share(c.value, 1),
    "law": lambda c: law(c.words[0]),
    "part": lambda c: part(c.words[0]),
    "name": lambda c: clean(c.words[0]),
    "token": lambda c: token(c.words),
    "stream": lambda c: stream(c.words[0]),
}


class _Fields(dict[str, object]):
    """The fields of one premise, each made when a template asks for it."""

    def __init__(self, condition: Condition) -> None:
        self.condition = condition

    def __missing__(self, name: str) -> object:
        return FIELDS[name](self.condition)


def _looks_up(condition: Condition) -> str:
    table, *rest = condition.words
    through = f" through {clean(rest.pop(0))}" if rest and head_index(rest[0]) else ""
    weight = "" if condition.value is None else f" (weight {number(condition.value)})"
    where = "the direct table" if table == "direct" else f"the table of {part(table)}"
    if condition.holds is None:
        return f"Its tables look up several tokens{through} in {where}: most is {token(rest)}{weight}"
    return f"Its tables look up {token(rest)}{through} in {where}{weight}"


def _most_attended(condition: Condition) -> str:
    after, *most = condition.words
    if not most:
        return f"After token {clean(after)} it attends to any token"
    return f"After token {clean(after)} it attends to {'token' if len(most) == 1 else 'tokens'} {some(most)}"


def _kind(condition: Condition) -> str:
    if condition.words[0] == "saddle":
        return f"The unigram point would be a saddle, left at rate {number(_value(condition))}"
    return f"The unigram point would be {'a minimum' if condition.words[0] == 'minimum' else 'flat to second order'}"


TERMS = {
    "Table": "a table of {tokens}",
    "PlacedTable": "a table of {tokens} at each position",
    "TurnTable": "a table of {tokens} that differs between even and odd positions",
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


# Premises that a claim's own sentence tells, by probe.
SILENT: dict[str, tuple[str, ...]] = {
    "behaviour": (
        "the uniform law is better than the unigram", "the loss is above the unigram's",
        "the loss is above the uniform law's", "less than chance",
        "possible", "chance", "share of places", "the nearest law is the best",
        "the nearest law is the unigram", "surer after", "less sure after", "surer at", "less sure at", "law there",
        "two equal states", "fails with before", "holds with before",
    ),
    "attention": (
        "one token to attend to", "tokens", "at every prediction", "effective tokens", "within its null",
        "modulo", "of one head", "at position",
    ),
    "alignment": ("law", "constant", "lag of the source", "only its direction", "a token that tells nothing", "all rows are equal", "slope"),
    "induction": (
        "takes from the law", "no match", "no key to edit", "no strong circuit", "through", "from", "to", "does harm",
        "not the law's", "some of it", "most of what there is", "finds after", "not for their predecessors",
        "more than an ideal head", "tokens matched", "carries nothing", "too sure",
    ),
    "ablation": (
        "loss", "least of them", "no single parent", "all parents have one law", "a swap contradicts the rest", "all stay as they are", "cut from the logits only",
        "worth together", "only undoes", "undo", "group", "one by one", "clearly needed",
    ),
    "storage": (
        "worth of all paths", "what there is of it", "corrected by", "corrects", "positions", "full rank", "too little to share", "the mean is it",
        "others undo it", "undone after", "undone at", "the paths lead away", "nothing to share", "only at another scale",
        "stored or from the context", "some from the context", "from the context", "the parent leads away",
        "the parent hardly leads there", "not by the parent", "the unigram is uniform", "the means lead away",
    ),
    "symmetry": (
        "cases",        "near the best", "not the walk model", "states", "states that a label counts",
        "states divide the length",
    ),
    "landscape": (
        "tied embeddings favour repeats", "beyond the best possible", "steps of L-BFGS", "stationary below", "growing directions", "directions", "to second order only",
        "no growing pattern", "on the subspace to the last bit", "already away", "seen", "by linear theory",
        "the law has zeros",
        "e", "w",
    ),
    "dynamics": ("the parent", "probed steps", "from the first probed step", "lost again", "with a better law", "gradient of its largest", "closest only"),
    "program": ("constant predictions", "numbers", "leaves", "of", "term"),
    "belief": ("hidden states", "hidden states have one law", "clean"),
    "graph": ("edges of the head", "edges to the predicted token", "edges of the graph", "edges of all such heads"),
    "degeneracy": (
        "parameters", "estimate of a bigram table", "exact for that table", "exactly", "chains agree",
        "below the loss here",
    ),
    "certificate": ("certified program", "no bound"),
}  # fmt: skip
_SILENT_NAMES = frozenset(name for names in SILENT.values() for name in names)

# The sentence of each premise that a claim may name; of those in `SILENT` the claim's own sentence tells.
CONDITIONS: dict[str, Template] = {
    # behaviour
    "coincide": lambda c: f"{listed([law(name) for name in c.words])} coincide on these sequences".replace("the ", "The ", 1),
    "next law": "Next is {law}, {nats} away",
    "floored": lambda c: f"It gives {counted(_whole(c), 'possible next state')} less than 10⁻¹², which its KL counts as that",
    "at chance": "It is right as often as chance",
    "near elsewhere": "Elsewhere it is at most {nats} away",
    "left at that temperature": "At that temperature {nats} are left",
    "left at those temperatures": "At those temperatures {nats} are left",
    "at its own temperature": "At its own temperature it is {nats} away",
    "unigram is told from the best": ("", "The unigram is within 0.01 nats of the best law"),
    "the best is the unigram": ("The best law is the unigram", ""),
    "loss on scores": ("The training loss is on scores, which has another optimum than cross-entropy", ""),
    "no step was made": ("No step was made yet", ""),
    "the loss fell": "Its loss fell by {nats} since step {name}",
    # attention
    "effective weights": lambda c: "Attention is here the share of "
    + ("a token's effective weight" if _value(c) <= 1 else f"a position's effective weight; it holds {_whole(c)} tokens"),
    "not the parent": "The next state depends on another token",
    "any token tells the next": "In this chain each token tells all others, so that one serves as well as another",
    "reach": "That is in the {share} of predictions that reach so far",
    "most attended after": _most_attended,
    # alignment
    "predicts by itself": lambda c: f"By itself such a table{', weighed with its attention,' if c.words else ''} is {nats(c.value)} from the law",
    "the unigram is away": "The unigram is {nats} away from it",
    "by mean output": ("An MLP's table is its mean output after each state", ""),
    "norm's scale at its mean": ("The norms' scale is taken at its mean", ""),
    "other rows": lambda c: f"There its rows are up to {nats(c.value)} from the law's" if len(c.words) > 1 else f"There its row is {nats(c.value)} from the law's",
    "no row is right": "Whatever its slope, a row is {nats} from the law's",
    "attends": "It reads {token} with {tenths} of its attention",
    "lags alike": "Tokens at other lags that tell the same are counted with it",
    # induction
    "write against the law": lambda c: f"What {heads(c.words)} {verb(c.words, 'writes', 'write')} makes what followed less likely, against the law",
    "moves the other way": lambda c: f"{heads(c.words)} looks away from keys after a copy, by {number(abs(_value(c)))} of the ideal",
    "moved less": lambda c: f"{heads(c.words)} {verb(c.words, 'is', 'are')} moved likewise, by {share(_value(c))} of the ideal{' at most' * (len(c.words) > 1)}",
    "on matches": "It gives keys after a copy of the current token {tenths} of its attention",
    "beyond lag and tokens": "That is {number} beyond what lag and tokens explain",
    "an ideal head has": "A head that is uniform on matches has {number}",
    "equal within intervals": "Their scores are equal within their intervals",
    "its own convolution": "Its own convolution reads the previous token",
    "previous token": "{name} gives the previous token {tenths} of its attention",
    "score before and after": "Intact, its score is {number}",
    "after the cut": "With that path cut it is {number}",
    "simpler law": lambda c: f"{law(c.words[0]).capitalize()} is {nats(c.value)} from that law".replace("In-", "in-"),
    # ablation
    "next part": "Next is {part}, {nats}",
    "largest of them": lambda c: f"By itself {part(c.words[0])} is worth most of them, {nats(c.value)}"
    if c.words
    else f"By itself each is worth {nats(c.value)} at most"
    if _value(c) > 0
    else "By itself none of them is needed",
    # storage
    "with it only": "With {part} only it would be {nats} away",
    "without it": "Without {part} it would be {nats} away",
    "held at temperature": "This is at temperature {number}, at which the model is nearest to the bigram",
    "not stable": "Which of them hold nine tenths changes with the sequences",
    "at the whole model's norm scale": "These are at the whole model's norm scale",
    "positions that follow the parent": "Averaged over states, predictions follow the last state at {positions} only",
    "positions that change with the parent": "Setting the last state moves predictions by 0.01 nats or more at {positions}",
    "rank that keeps 90 %": "Rank {whole} of {name} keeps 90% of the bigram part",
    "with such tokens only": lambda c: f"{parts(c.words)} {verb(c.words, 'writes', 'write')} it only if tokens come that often" if c.words else "",
    "half is stored": "Whether half of it is stored, not read from the context, is open ({share})",
    # symmetry
    "first gradient is flat": ("The first gradient is flat (information {tiny})", "The first gradient has information {tiny}"),
    "attention is flat": ("Attention is flat to {tiny} of uniform", "Attentions differ by {tiny} of a token's mean"),
    "rows of V are constant": ("The rows of V are constant to {tiny}", "A share {tiny} of the circuit depends on the state"),
    "stays for ever": ("Exact arithmetic stays there at every later step", ""),
    "its optimiser scales coordinates": "Its optimiser scales each coordinate, which need not keep the symmetry",
    "rounding took it out": "Rounding took it out: exact arithmetic would have stayed",
    "it started at random": "Its random start (sd {number}) breaks the symmetry",
    "its start is unknown": "Its start or its optimiser broke the symmetry",
    "the token mean tells": "The nearest class mean is right {tenths} of the time",
    "one step predicts": "One step from zero predicts with accuracy {tenths}",
    "reduced system's spread": "The reduced system has an attention spread of {tiny}",
    "away from the reduced system": lambda c: f"The run's V is {share(c.value, 1)} away from the reduced system's" if _value(c) <= 1 else "",
    # landscape
    "leaves inside the symmetric subspace": "Inside the symmetric subspace gradient descent leaves it, at rate {number}",
    "outside the symmetric subspace": "This is judged outside the symmetric subspace",
    "at a kink": "A ReLU is exactly at zero, where the loss has no second derivative",
    "states that sequences hardly show": "States that sequences hardly show add {nats} to its KL",
    "gradient": "The gradient is {number} {unit}",
    "largest eigenvalue": "The largest eigenvalue is {number}",
    "flat directions": ("Some directions are flat", ""),
    "flat within": "Within ±{number} an eigenvalue counts as zero",
    "from the stationary point": "It is {in_unit} from the stationary point",
    "theory knows only part": "Theory of {name} knows the straight path; the rest adds {share}",
    "the interval holds the prediction": "Its interval holds what theory predicts at {name}",
    "as predicted": ("This is as predicted at {name} (off by {tenths})", "This is not as predicted at {name} (off by {tenths})"),
    "predicted growth": "Theory predicts growth at rate {number} ({name})",
    "predicted smallest": "Theory predicts a smallest eigenvalue of {number}",
    "overlap with predicted modes": "The lowest eigenvectors lie in the predicted modes to {tenths}",
    "the unigram point would be": _kind,
    "drift": "Inside the symmetric subspace the gradient is {number}",
    "observed rate": "It grew at rate {number}",
    "predicted rate": "Linear theory predicts rate {number}",
    "predicted step": "Linear theory has it leave by step {whole}",
    "misses the log-odds by": "They miss its log-odds by {number}",
    # dynamics
    "without its sampling error": "Its steps leave out the sampling error of attention",
    "cannot be seen": "{name}",
    # program
    "at most": "On fresh sequences the fitted program leaves at most {nats}",
    "predictor leaves": "By KL from the model, {law} leaves {nats}",
    "looks up": _looks_up,
    "looks up matches": lambda c: f"Its tables look up tokens after copies of the current one, in the table of {part(c.words[0])}"
    + ("" if c.value is None else f" (favoured {number(c.value)} to 1)"),
    "looks up no lag": "Its tables look up no lag in particular in the table of {part} (weights up to {number})",
    "looks up many alike": "Its tables look up {whole} tokens alike in the table of {part}",
    # belief
    "tokens and predictions give": "The next law and the last tokens give R² {number}",
    "beyond them": lambda c: "A reading cannot tell a carried belief from a prediction"
    if c.holds is None
    else f"Of what they leave open the stream tells {share(c.value, 1)}",
    "after attention": "After the attention of layer {name} R² is {number}",
    "sums of one update a token": "Sums of one update a token reach R² {number}",
    "forced at": "A state is forced in {stream}, the earliest that is nearly as good",
    "at the logits": "A state forced there moves the logits, and shows only that they are read from it",
    "a forced token": "The embedding knows the current token only: this is like a forced token",
    # graph
    "edges from roots": lambda c: f"{counted(_whole(c), 'edge')} from tokens without a parent count neither way" if c.value else "",
    "chance of as many": "Chance gives as many in some head with probability {number} at most",
    "attention on parents": "Parents get {tenths} of its attention",
    "uniform gives": "Uniform attention gives them {tenths}",
    # degeneracy
    "devinterp gives": "Devinterp gives {number}",
    "devinterp's estimate of that table": ("", "Devinterp is not calibrated: {number} on that table"),
    # certificate
    "sequences": ("", "They are all sequences of its states, whether or not the source can give them"),
    "largest seen": "The largest that was seen is {nats}",
    "log ratio at most": "Log-probabilities are within {nats}",
    "every evaluation in float32": ("The bound covers every evaluation in float32", "The bound covers exact arithmetic only"),
}  # fmt: skip


def stream(name: str) -> str:
    """Returns a residual stream's name in words."""
    return "the embedding" if name == "embed" else f"the stream after layer {name[1:]}"


def sentence(condition: Condition) -> str:
    """Returns the sentence of a premise, without a full stop; "" where the claim's own sentence says it.

    A premise of a third party's probe that has no phrase here is told as its name and its number.
    """
    told = CONDITIONS.get(condition.name, "" if condition.name in _SILENT_NAMES else _by_name)
    if callable(told):
        return told(condition)
    if not isinstance(told, str):
        told = told[0 if condition.holds else 1]
    return told.format_map(_Fields(condition))


def _by_name(condition: Condition) -> str:
    """A premise of a third party's probe: its name and its number."""
    value = ""
    if condition.value is not None:
        value = f": {number(condition.value, condition.unit)} {condition.unit}".rstrip()
    holds = {True: "", False: "not ", None: "perhaps "}[condition.holds]
    return f"{holds}{clean(condition.name)}{value}".capitalize()
