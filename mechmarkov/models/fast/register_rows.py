"""Some rows of a matrix in registers at once, in functions that numba compiles.

A tuple of registers holds a piece of each row. How many rows there are is part of its type, so that all
products of a piece are written out and its sums never leave the registers. Matrices are flat arrays: a number
of row `r` is `r * step` behind that of the first row.
"""

from typing import no_type_check

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from mechmarkov.models.fast.registers import FLOATS, INTS, WIDTH, place_of, register, splat_of

FOUR = types.UniTuple(register, 4)


@no_type_check
def _fused(builder, a, b, c):
    """`a + b c`."""
    return builder.fadd(a, builder.fmul(b, c, flags=("contract",)), flags=("contract",))


@no_type_check
def _following(builder, at, step, count):
    """Places that are `step` apart."""
    for _ in range(count):
        yield at
        at = builder.add(at, step)


@no_type_check
def _splats(context, builder, array_type, array, at):
    """Four numbers that follow each other, each in every place of a register."""
    one = ir.Constant(at.type, 1)
    for place in _following(builder, at, one, 4):
        number = builder.load(place_of(context, builder, array_type, array, place, ir.FloatType()))
        yield splat_of(builder, number)


@no_type_check
@intrinsic
def zeros(typing_context, rows):
    """Zeros, a register for each entry of a tuple."""

    def generate(context, builder, signature, arguments):
        return context.make_tuple(builder, signature.return_type, [ir.Constant(FLOATS, None)] * rows.count)

    return types.UniTuple(register, rows.count)(rows), generate


@no_type_check
@intrinsic
def load_rows(typing_context, rows, array, at, step):
    """A register of each row, as many as a tuple has entries. Nothing checks that they are there."""

    def generate(context, builder, signature, arguments):
        _, array, at, step = arguments
        places = _following(builder, at, step, rows.count)
        found = [
            builder.load(place_of(context, builder, signature.args[1], array, p), align=4) for p in places
        ]
        return context.make_tuple(builder, signature.return_type, found)

    return types.UniTuple(register, rows.count)(rows, array, types.intp, types.intp), generate


@no_type_check
@intrinsic
def store_rows(typing_context, array, at, step, registers):
    """Write a register into each row."""

    def generate(context, builder, signature, arguments):
        array, at, step, registers = arguments
        places = _following(builder, at, step, registers.type.count)
        for place, numbers in zip(places, cgutils.unpack_tuple(builder, registers), strict=True):
            builder.store(numbers, place_of(context, builder, signature.args[0], array, place), align=4)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, registers), generate


@no_type_check
@intrinsic
def dots(typing_context, start, rows, left, at, step, right, right_at, right_step):
    """Four registers, `start + sum_r left[r] right[r, a]`: a register of `left` times a number of `right`."""

    def generate(context, builder, signature, arguments):
        start, _, left, at, step, right, right_at, right_step = arguments
        found = [start] * 4
        places = _following(builder, at, step, rows.count)
        right_places = _following(builder, right_at, right_step, rows.count)
        for place, right_place in zip(places, right_places, strict=True):
            numbers = builder.load(place_of(context, builder, signature.args[2], left, place), align=4)
            factors = _splats(context, builder, signature.args[5], right, right_place)
            found = [_fused(builder, sum_, numbers, f) for sum_, f in zip(found, factors, strict=True)]
        return context.make_tuple(builder, signature.return_type, found)

    step_type = types.intp
    return FOUR(register, rows, left, step_type, step_type, right, step_type, step_type), generate


@no_type_check
@intrinsic
def add_weighted(typing_context, registers, weights, array, at, step):
    """`registers[r] + sum_a weights[a] array[r, a]`, with a register of weights for each number of a row."""

    def generate(context, builder, signature, arguments):
        registers, weights, array, at, step = arguments
        weights = cgutils.unpack_tuple(builder, weights)
        found = []
        places = _following(builder, at, step, registers.type.count)
        for place, total in zip(places, cgutils.unpack_tuple(builder, registers), strict=True):
            for offset, weight in enumerate(weights):
                own = builder.add(place, ir.Constant(place.type, offset))
                own = place_of(context, builder, signature.args[2], array, own, ir.FloatType())
                total = _fused(builder, total, weight, splat_of(builder, builder.load(own)))
            found.append(total)
        return context.make_tuple(builder, signature.return_type, found)

    return registers(registers, weights, array, types.intp, types.intp), generate


@no_type_check
@intrinsic
def transposed(typing_context, array):
    """The columns of a flat matrix of as many rows as a register has places."""

    def generate(context, builder, signature, arguments):
        places = _following(
            builder, ir.Constant(ir.IntType(64), 0), ir.Constant(ir.IntType(64), WIDTH), WIDTH
        )
        rows = [
            builder.load(place_of(context, builder, signature.args[0], *arguments, place), align=4)
            for place in places
        ]
        step = 1
        while step < WIDTH:  # blocks of `step` rows and columns change places with those across the diagonal
            upper = [(place ^ step) + WIDTH if place & step else place for place in range(WIDTH)]
            lower = [place + WIDTH if place & step else place ^ step for place in range(WIDTH)]
            for row in range(WIDTH):
                if not row & step:
                    pair = rows[row], rows[row | step]
                    rows[row], rows[row | step] = (
                        builder.shuffle_vector(*pair, ir.Constant(INTS, places)) for places in (upper, lower)
                    )
            step *= 2
        return context.make_tuple(builder, signature.return_type, rows)

    return types.UniTuple(register, WIDTH)(array), generate


@no_type_check
@intrinsic
def where_within(typing_context, first, last, numbers, others):
    """Numbers in the places where `first` plus the place is 0 to `last`, others elsewhere."""

    def generate(context, builder, signature, arguments):
        first, last, numbers, others = arguments
        first, last = (splat_of(builder, builder.trunc(x, ir.IntType(32)), INTS) for x in (first, last))
        place = builder.add(first, ir.Constant(INTS, list(range(WIDTH))))
        inside = builder.icmp_unsigned("<=", place, last)  # what is below 0 is a large number
        return builder.select(inside, numbers, others)

    return register(types.intp, types.intp, register, register), generate
