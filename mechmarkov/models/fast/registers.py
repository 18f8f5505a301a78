"""Vector registers in functions that numba compiles: `load` and `store`, arithmetic, and powers of two.

Where code loops over numbers, the compiler decides whether it uses registers, and how wide they are. Here the
code says so. A product and a sum in one expression are fused.
"""

import operator
from functools import partial
from typing import no_type_check

from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, lower_builtin, models, register_model, type_callable

# float32 numbers: one register of AVX-512 or AVX2, two of NEON.
WIDTH = 16 if binding.get_host_cpu_features().get("avx512f") else 8

FLOATS = ir.VectorType(ir.FloatType(), WIDTH)
INTS = ir.VectorType(ir.IntType(32), WIDTH)


class Register(types.Type):
    """Numba's type of `WIDTH` float32 numbers."""


register = Register(name=f"Register{WIDTH}")


register_model(Register)(lambda manager, numba_type: models.PrimitiveModel(manager, numba_type, FLOATS))


@no_type_check
def _infix(function, write):
    """Let compiled functions use an infix operator between registers."""

    @type_callable(function)
    def typed(context):
        return lambda a, b: register if a is register and b is register else None

    @lower_builtin(function, Register, Register)
    def lowered(context, builder, signature, arguments):
        return getattr(builder, write)(*arguments, flags=("contract",))


_infix(operator.add, "fadd")
_infix(operator.sub, "fsub")
_infix(operator.mul, "fmul")
_infix(operator.truediv, "fdiv")


@no_type_check
def place_of(context, builder, array_type, array, at, kind=FLOATS):
    """The address of what begins at an offset of a flat array."""
    data = cgutils.create_struct_proxy(array_type)(context, builder, value=array).data
    return builder.bitcast(builder.gep(data, [at]), kind.as_pointer())


@no_type_check
@intrinsic
def load(typing_context, array, at):
    """The numbers of a flat array from an offset on. Nothing checks that they are there."""

    def generate(context, builder, signature, arguments):
        return builder.load(place_of(context, builder, signature.args[0], *arguments), align=4)

    return register(array, types.intp), generate


@no_type_check
@intrinsic
def store(typing_context, array, at, numbers):
    """Write numbers into a flat array from an offset on."""

    def generate(context, builder, signature, arguments):
        array, at, numbers = arguments
        builder.store(numbers, place_of(context, builder, signature.args[0], array, at), align=4)
        return context.get_dummy_value()

    return types.void(array, types.intp, register), generate


@no_type_check
@intrinsic
def splat(typing_context, number):
    """A number in every place."""
    return register(types.float32), lambda context, builder, signature, arguments: splat_of(
        builder, *arguments
    )


@no_type_check
@intrinsic
def load_splat(typing_context, array, at):
    """One number of a flat array in every place. Nothing checks that it is there."""

    def generate(context, builder, signature, arguments):
        place = place_of(context, builder, signature.args[0], *arguments, ir.FloatType())
        return splat_of(builder, builder.load(place))

    return register(array, types.intp), generate


@no_type_check
def splat_of(builder, number, kind=FLOATS):
    """A number in every place of a vector."""
    nothing = ir.Constant(kind, ir.Undefined)
    first = builder.insert_element(nothing, number, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(first, nothing, ir.Constant(INTS, [0] * WIDTH))


@no_type_check
@intrinsic
def add_totals(typing_context, array, at, step, registers):
    """Add the sums of sixteen registers to a flat array: four side by side, the next four `step` on."""

    def generate(context, builder, signature, arguments):
        array, at, step, registers = arguments
        sums = cgutils.unpack_tuple(builder, registers)
        for _ in range(WIDTH.bit_length() - 1):  # neighbours' sums, half of each from one of two registers
            sums = [_neighbours(builder, a, b) for a, b in zip(sums[::2], sums[1::2], strict=True)]
        for four in range(4):
            first = 4 * four % WIDTH
            part = _pick(builder, sums[4 * four // WIDTH], sums[0], range(first, first + 4))
            place = place_of(context, builder, signature.args[0], array, at, part.type)
            builder.store(builder.fadd(builder.load(place, align=4), part), place, align=4)
            at = builder.add(at, step)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, types.UniTuple(register, 16)), generate


@no_type_check
@intrinsic
def add_total(typing_context, array, at, numbers):
    """Add the sum of a register to one number of a flat array."""

    def generate(context, builder, signature, arguments):
        array, at, numbers = arguments
        half = WIDTH
        while half > 1:
            half //= 2
            parts = (_pick(builder, numbers, numbers, range(a, a + half)) for a in (0, half))
            numbers = builder.fadd(*parts)
        place = place_of(context, builder, signature.args[0], array, at, ir.FloatType())
        total = builder.extract_element(numbers, ir.Constant(ir.IntType(32), 0))
        builder.store(builder.fadd(builder.load(place), total), place)
        return context.get_dummy_value()

    return types.void(array, types.intp, register), generate


@no_type_check
def _neighbours(builder, a, b):
    """The sums of neighbours, of `a` in the first half."""
    return builder.fadd(*(_pick(builder, a, b, range(odd, 2 * WIDTH, 2)) for odd in (0, 1)))


@no_type_check
def _pick(builder, a, b, places):
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(ir.IntType(32), len(places)), list(places)))


@no_type_check
@intrinsic
def at_least(typing_context, numbers, bounds):
    """The larger of two numbers in each place; NaN in the first stays."""
    return register(register, register), partial(_bounded, "<")


@no_type_check
@intrinsic
def at_most(typing_context, numbers, bounds):
    """The smaller of two numbers in each place; NaN in the first stays."""
    return register(register, register), partial(_bounded, ">")


@no_type_check
def _bounded(outside, context, builder, signature, arguments):
    numbers, bounds = arguments
    return builder.select(builder.fcmp_ordered(outside, numbers, bounds), bounds, numbers)


@no_type_check
@intrinsic
def square_root(typing_context, numbers):
    """Square roots."""

    def generate(context, builder, signature, arguments):
        kind, name = ir.FunctionType(FLOATS, [FLOATS]), f"llvm.sqrt.v{WIDTH}f32"
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)

    return register(register), generate


@no_type_check
@intrinsic
def times_power(typing_context, numbers, exponents):
    """Numbers times two to the power of integers, which stand in the last bits of `exponents`."""

    def generate(context, builder, signature, arguments):
        numbers, exponents = (builder.bitcast(x, INTS) for x in arguments)
        shifted = builder.shl(exponents, ir.Constant(INTS, [23] * WIDTH))
        return builder.bitcast(builder.add(numbers, shifted), FLOATS)

    return register(register, register), generate


@no_type_check
@intrinsic
def zero_up_to(typing_context, tested, bounds, numbers):
    """Numbers, and zero in the places where what is tested is at most a bound; NaN is not."""

    def generate(context, builder, signature, arguments):
        tested, bounds, numbers = arguments
        return builder.select(builder.fcmp_ordered("<=", tested, bounds), ir.Constant(FLOATS, None), numbers)

    return register(register, register, register), generate
