"""A stand-in for a GPU: tensors that say they are on another device, and keep their values.

What a GPU would have to wait for is counted, not timed. The other device is called `meta`, since
autograd accepts that name without any hardware.
"""

from collections import Counter

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map

DEVICE = torch.device("meta")
# operators whose result or its size the host must know, so that it waits for the device
READS = {
    "_local_scalar_dense",
    "bincount",
    "equal",
    "is_nonzero",
    "masked_select",
    "nonzero",
    "unique_dim",
    "_unique2",
}


class OnDevice(torch.Tensor):
    """A tensor on the other device.

    Args:
        values: on the CPU.
    """

    @staticmethod
    def __new__(cls, values):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            values.shape,
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            device=DEVICE,
        )

    def __init__(self, values):
        self.values = values

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise AssertionError(f"{function} outside of Waits()")


class Waits(TorchDispatchMode):
    """Counts what the host waits for, by operator, while it is active.

    Attributes:
        reads: values that the host reads from the device, by operator.
        copies: tensors made on the CPU and copied to the device, by operator.
        operators: all others on the device, by operator.
    """

    def __init__(self):
        super().__init__()
        self.reads, self.copies, self.operators = Counter(), Counter(), Counter()
        self._factories = Factories(self)

    def __enter__(self):
        self._factories.__enter__()
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self._factories.__exit__(*error)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = function.overloadpacket.__name__
        flat, _ = tree_flatten((args, kwargs))
        tensors = [value for value in flat if isinstance(value, torch.Tensor)]
        is_here = any(isinstance(value, OnDevice) for value in tensors)
        wanted = kwargs.get("device")
        goes = wanted is not None and torch.device(wanted) == DEVICE
        if wanted is not None:
            kwargs["device"] = torch.device("cpu")
        if is_here:
            self._count(name, args, tensors, leaves=wanted is not None and not goes)
        elif goes and tensors:
            self.copies[name] += 1
        values = tree_map(lambda v: v.values if isinstance(v, OnDevice) else v, (args, kwargs))
        result = function(*values[0], **values[1])
        if not (is_here or goes) or (is_here and wanted is not None and not goes):
            return result
        if name == "copy_" and not isinstance(args[0], OnDevice):
            return args[0]
        wrapped = tree_map(lambda v: OnDevice(v) if isinstance(v, torch.Tensor) else v, result)
        if goes:
            return wrapped
        return return_and_correct_aliasing(function, args, kwargs, wrapped)

    def _count(self, name, args, tensors, *, leaves):
        indices = args[1] if name in ("index", "index_put", "index_put_") else ()
        masks = [v for v in indices if v is not None and v.dtype == torch.bool]
        is_copied = name == "copy_" and isinstance(args[0], OnDevice) != isinstance(
            args[1], OnDevice
        )
        if is_copied and isinstance(args[0], OnDevice):
            self.copies[name] += 1
        elif name in READS or leaves or is_copied:
            self.reads[name] += 1
        elif masks:
            self.reads["index by a mask"] += 1
        else:
            self.operators[name] += 1
            mixed = [v for v in tensors if not isinstance(v, OnDevice) and v.dim()]
            assert not mixed, f"{name} of tensors on two devices"


class Factories(TorchFunctionMode):
    """What dispatch does not see: `torch.tensor(..., device=...)` copies, `tolist` reads."""

    def __init__(self, waits):
        super().__init__()
        self._waits = waits

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if function is torch.Tensor.tolist and isinstance(args[0], OnDevice):
            self._waits.reads["tolist"] += 1
            return args[0].values.tolist()
        if function not in (torch.tensor, torch.as_tensor) or kwargs.get("device") != DEVICE:
            return function(*args, **kwargs)
        if isinstance(args[0], OnDevice):
            return args[0]
        with torch._C.DisableTorchFunctionSubclass():
            values = torch.as_tensor(args[0], dtype=kwargs.get("dtype"))
        self._waits.copies[function.__name__] += bool(values.numel())
        return OnDevice(values)


def to_device(model, inputs):
    """Move the weights and buffers of a model and a mapping of inputs to the other device."""
    moved = {}
    with Waits():
        for module in model.modules():
            for name, weight in module._parameters.items():
                if weight is None:
                    continue
                if weight not in moved:
                    there = OnDevice(weight.detach())
                    moved[weight] = torch.nn.Parameter(there, weight.requires_grad)
                module._parameters[name] = moved[weight]
            for name, buffer in module._buffers.items():
                if buffer is not None:
                    module._buffers[name] = OnDevice(buffer)
    return model, {name: OnDevice(values) for name, values in inputs.items()}
