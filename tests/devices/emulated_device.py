"""A GPU emulated on a processor: tensors that say they are elsewhere, over values that are here.

What fails on a GPU fails on it: tensors of two devices in one operation, `.numpy()`, a generator of the other
device. It counts kernel launches, copies from the host and waits for the device. It changes torch for the
whole process, so that only a process of its own uses it (`on_device.py`).
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch._dynamo  # holds the real torch.Generator before it is replaced
import torch.nn.functional as F
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

NAME = "gpu"  # torch's name for a device of a third party; "cuda" would need CUDA
COUNTS: Counter[str] = Counter()

# Operations that start no kernel: they make a view, or memory that is not filled.
VIEWS = {
    "view",
    "_unsafe_view",
    "transpose",
    "permute",
    "expand",
    "unsqueeze",
    "squeeze",
    "slice",
    "select",
    "t",
    "detach",
    "alias",
    "split",
    "split_with_sizes",
    "unbind",
    "as_strided",
    "reshape",
    "_reshape_alias",
    "unfold",
    "diagonal",
    "narrow",
    "lift_fresh",
    "empty",
    "empty_like",
    "new_empty",
    "empty_strided",
    "new_empty_strided",
    "movedim",
    "",
}
# Operations that take indices from the host: CUDA copies them.
INDEXING = {"index", "index_put_", "_index_put_impl_", "index_put", "_unsafe_index", "_unsafe_index_put"}


class Backend(backend_registration._DummyBackendModule):
    """What torch asks of a device's module."""

    def get_amp_supported_dtype(self):
        return [torch.bfloat16, torch.float16]

    def is_available(self):
        return True

    def current_device(self):
        return 0

    def device_count(self):
        return 1


backend_registration._setup_privateuseone_for_python_backend(NAME, Backend())
GPU = torch.device(NAME, 0)


class OnDevice(torch.Tensor):
    """A tensor on the device; `values_here` are its values."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, values):
        wrapped = torch.Tensor._make_wrapper_subclass(
            cls,
            values.size(),
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            device=GPU,
        )
        wrapped.values_here = values
        return wrapped

    def __repr__(self):
        return f"OnDevice({self.values_here!r})"

    def __getitem__(self, index):
        return super().__getitem__(lists_as_tensors(index))

    def __setitem__(self, index, value):
        super().__setitem__(lists_as_tensors(index), value)

    def tolist(self):
        COUNTS["waits"] += 1
        return self.values_here.tolist()

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return carry_out(func, args, kwargs or {})


def lists_as_tensors(index):
    """C++ puts the numbers of a list on the device, where nothing of Python is asked."""
    items = index if isinstance(index, tuple) else (index,)
    return tuple(tensor_here(item) if isinstance(item, list) else item for item in items)


class Dispatch(TorchDispatchMode):
    """Sees operations that make tensors, which have no argument on the device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return carry_out(func, args, kwargs or {})


def elsewhere(device) -> bool:
    return device is not None and torch.device(device).type == NAME


def here(value):
    return value.values_here if isinstance(value, OnDevice) else value


def carry_out(func, args, kwargs):
    """An operation on the values, checked and counted as a GPU would have it."""
    name = func._schema.name.split("::")[1]
    tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, torch.Tensor)]
    there = [x for x in tensors if isinstance(x, OnDevice)]
    host = [x for x in tensors if not isinstance(x, OnDevice)]
    device = kwargs.get("device")
    result_there = elsewhere(device) or (device is None and bool(there))
    check_devices(name, args, there, host)
    check_generator(name, kwargs.get("generator"), result_there)
    count(name, args, there, host, result_there)
    args, kwargs = tree_map(here, (args, kwargs))
    if elsewhere(device):
        kwargs["device"] = torch.device("cpu")
    if "pin_memory" in kwargs:
        kwargs["pin_memory"] = False
    out = func(*args, **kwargs)
    returns = func._schema.returns
    known = {id(x.values_here): x for x in there}
    if returns and returns[0].alias_info is not None and returns[0].alias_info.is_write:
        changed = kwargs.get("out", args[0])
        return known.get(id(changed), changed)
    if not result_there or name in ("_local_scalar_dense", "item"):
        return out
    return tree_map(
        lambda x: known.get(id(x), OnDevice(x)) if isinstance(x, torch.Tensor) else x,
        out,
    )


def check_devices(name, args, there, host):
    copies = name in ("_to_copy", "copy_")
    indices = name in INDEXING and isinstance(args[0], OnDevice)
    if there and any(x.dim() for x in host) and not copies and not indices:
        raise RuntimeError(f"{name}: expected all tensors on one device, found some on both")


def check_generator(name, generator, result_there):
    if generator is not None and (generator._cdata in GENERATORS_THERE) != result_there:
        raise RuntimeError(f"{name}: the generator is on one device, the result on the other")


def count(name, args, there, host, result_there):
    if name in ("_local_scalar_dense", "item"):
        COUNTS["waits"] += bool(there)
    elif name in ("_to_copy", "copy_") and there != [] and not result_there:
        COUNTS["waits"] += 1
    elif result_there and (name in ("_to_copy", "copy_") or name in INDEXING) and host:
        COUNTS["copies from the host"] += 1
    elif result_there and name not in VIEWS:
        COUNTS["launches"] += 1
        by_mask = any(x.dtype == torch.bool for x in tree_flatten(args[1:])[0] if isinstance(x, torch.Tensor))
        COUNTS["waits"] += name == "nonzero" or (name in ("masked_select", "index") and by_mask)


class Fused(torch.autograd.Function):
    """Scaled dot product attention, one launch forward and three backward: it cannot be split into others."""

    @staticmethod
    def forward(ctx, query, key, value, mask, options):
        COUNTS["launches"] += 1
        given = [x for x in (query, key, value, mask) if x is not None]
        with torch.enable_grad():
            ctx.leaves = [x.values_here.detach().requires_grad_(x.requires_grad) for x in given]
            ctx.out = attention_here(*ctx.leaves, **options)
        return OnDevice(ctx.out.detach())

    @staticmethod
    def backward(ctx, gradient):
        COUNTS["launches"] += 3
        wanted = [leaf for leaf in ctx.leaves if leaf.requires_grad]
        found = iter(torch.autograd.grad(ctx.out, wanted, here(gradient)))
        slopes = [OnDevice(next(found)) if leaf.requires_grad else None for leaf in ctx.leaves]
        return (*slopes, *[None] * (5 - len(slopes)))  # of the mask, where there is none, and of the options


attention_here = F.scaled_dot_product_attention


def attention(query, key, value, attn_mask=None, **options):
    if not isinstance(query, OnDevice):
        return attention_here(query, key, value, attn_mask=attn_mask, **options)
    if attn_mask is not None and not isinstance(attn_mask, OnDevice):
        raise RuntimeError("scaled_dot_product_attention: the mask is on the host")
    return Fused.apply(query, key, value, attn_mask, options)


GeneratorHere = torch.Generator


# By address, which is all that an operation sees of a generator. They are kept, or addresses recur.
GENERATORS_THERE = {}


class GeneratorThere(GeneratorHere):
    """A generator of the device: it gives the processor's numbers."""

    def __init__(self):
        GENERATORS_THERE[self._cdata] = self

    @property
    def device(self):
        return GPU


def generator(device="cpu"):
    return GeneratorThere() if elsewhere(device) else GeneratorHere()


tensor_here = torch.tensor


def tensor(data, *, device=None, **options):
    made = tensor_here(data, **options)
    return made if device is None else made.to(device)


@contextmanager
def emulated() -> Iterator[None]:
    """Run what is inside with the device; once a process."""
    casts = torch.library.Library("_", "IMPL", "AutocastPrivateUse1")
    casts.fallback(torch.library.fallthrough_kernel)
    torch.Generator, torch.tensor, F.scaled_dot_product_attention = generator, tensor, attention
    with Dispatch():
        yield
