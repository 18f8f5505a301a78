"""The sentence of each relation: subject, verb, object and number, by status; at most 20 words."""

from mechmarkov.report.words.phrases.homes import HOMES
from mechmarkov.report.words.phrases.laws import LAWS
from mechmarkov.report.words.phrases.others import OTHERS
from mechmarkov.report.words.phrases.parts import PARTS
from mechmarkov.report.words.phrases.training import TRAINING

PHRASES = LAWS | PARTS | HOMES | TRAINING | OTHERS
