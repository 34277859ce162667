"""`Net`: a network in the forms in which it is trained, evaluated and saved."""

from __future__ import annotations

import contextlib
import copy as copies
import inspect
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import GradBucket  # type: ignore[attr-defined]
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.flop_counter import FlopCounterMode

from .config import Config, is_function_name
from .distributed import Ranks
from .model import copy, fixed_statistics, norms, unflatten
from .optim import Ema
from .plan import Plan

HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Net:
    """A network with its compiled, distributed and averaged forms.

    model: the plain network, which is evaluated and saved; its state_dict has no "module." prefix.
    trained: the same network, through torch.compile and DDP if they are used. Training calls it.
    """

    def __init__(
        self, model: nn.Module, config: Config, plan: Plan, ranks: Ranks, shape: torch.Size
    ) -> None:
        self.model, self.config, self.ranks, self.plan = model, config, ranks, plan
        self.parameters = list(model.parameters())
        self.trainable = [p for p in self.parameters if p.requires_grad]
        self.ema = Ema(model, config.ema) if config.ema else None
        self.trained: nn.Module = model
        if config.compile:
            self.trained = torch.compile(model, mode=config.compile_mode)  # type: ignore[assignment]
        self.exact = config.grad_exchange == "fp64"
        self._earlier: dict[torch.Tensor, torch.Tensor] = {}  # sums so far, in float64
        if ranks.world_size > 1 and not config.canonical_shards:
            find_unused = is_function_name(config.model) and bool(unused(model, shape))
            self.trained = self._in_ddp(self.trained, find_unused)
        self._sizes = {-(-plan.global_batch // plan.parts), plan.global_batch // plan.parts}
        others = norms(model) if config.bn != "local" else []  # their statistics are equal anyway
        equal = {id(buffer) for module in others for buffer in module.buffers()}
        self.moving = [b for b in model.buffers() if b.is_floating_point() and id(b) not in equal]

    def __call__(self, x: torch.Tensor, fixed: bool) -> torch.Tensor:
        """Return the logits of a micro-batch in training. If `fixed`, batch norms use their running
        statistics. The network is not compiled for unusual sizes, because that would not pay off."""
        odd = fixed or len(x) not in self._sizes
        stance = torch.compiler.set_stance("force_eager" if odd else "default")
        with stance, fixed_statistics(self.model, when=fixed), self.autocast():
            return self.trained(x)

    def autocast(self) -> contextlib.AbstractContextManager[None]:
        if self.config.amp == "off":
            return contextlib.nullcontext()
        return torch.autocast(self.ranks.device.type, dtype=HALVES[self.config.amp])

    @contextlib.contextmanager
    def evaluated(self) -> Iterator[nn.Module]:
        """Context manager: yield the network to evaluate and export, averaged if --ema is set."""
        with self.ema.in_place() if self.ema else contextlib.nullcontext():
            yield self.model

    def exchanging(self, when: bool) -> contextlib.AbstractContextManager[None]:
        """Return a context manager for a forward and backward pass. DDP adds up the ranks'
        gradients only if `when` is true."""
        if isinstance(self.trained, DistributedDataParallel) and not when:
            return self.trained.no_sync()
        return contextlib.nullcontext()

    def backward(self, loss: torch.Tensor, *, last: bool) -> None:
        """Add the gradient of a micro-batch's share of the loss. After the last one of a step, every
        rank's parameters have the gradient of the whole batch."""
        several = isinstance(self.trained, DistributedDataParallel)
        if not self.exact:
            (loss * self.ranks.world_size if several else loss).backward()  # DDP averages them
            return
        loss.backward()
        # `_sum` has added up the gradients, or there is only one.
        if last and (several or not self._earlier):
            self._earlier.clear()
            return
        for parameter in self.trainable:
            if parameter.grad is not None:
                total = self._earlier.get(parameter, 0.0) + parameter.grad.double()
                self._earlier[parameter] = total
                parameter.grad.copy_(total if last else torch.zeros(()))
        if last:
            self._earlier.clear()

    def part_buffers(self) -> PartBuffers:
        return PartBuffers(self.model, self.moving, self.ranks.device)

    def _in_ddp(self, model: nn.Module, find_unused: bool) -> DistributedDataParallel:
        """Wrap a network. Compiling happens inside DDP, which keeps DDP's hooks out of the compiled
        graph. Running statistics are averaged after each step, not sent before each forward pass."""
        renamed = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
        sync: dict[str, Any] = {"forward_sync_buffers" if renamed else "broadcast_buffers": False}
        on_gpu = self.ranks.device.type == "cuda"
        net = DistributedDataParallel(
            model,
            device_ids=[self.ranks.device.index] if on_gpu else None,
            gradient_as_bucket_view=True,
            find_unused_parameters=find_unused,
            **sync,  # torch 2.13 renamed this argument
        )
        if self.exact:
            net.register_comm_hook(None, lambda _, bucket: self._sum(bucket))
        elif self.config.grad_exchange == "bf16":
            # DDP refuses the original hook without NCCL, although Gloo supports it.
            net.register_comm_hook(None, lambda group, bucket: bf16_compress_hook(group, bucket))
        return net

    def _sum(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Add up gradients in float64, where float32 values of similar size add up exactly, so that
        the sum does not depend on how the micro-batches are spread over ranks."""
        buffer = bucket.buffer()
        total = buffer.double()
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            if parameter in self._earlier:
                at = gradient.storage_offset() - buffer.storage_offset()
                view = total.as_strided(gradient.size(), gradient.stride(), at)
                view.add_(self._earlier[parameter])
        future = dist.all_reduce(total, async_op=True).get_future()
        return future.then(lambda done: buffer.copy_(done.value()[0]))


class PartBuffers:
    """Lets every micro-batch of a step start from the same running statistics. The step changes
    these by the mean of the micro-batches' changes, no matter which rank runs which micro-batch."""

    def __init__(self, model: nn.Module, moving: list[torch.Tensor], device: torch.device) -> None:
        """moving: the buffers that training changes."""
        self._all, self._moving = list(model.buffers()), moving
        self._none = torch.zeros(0, dtype=torch.float64, device=device)
        self._before = [buffer.clone() for buffer in self._all]
        self._values = self._flat()

    def restore(self) -> None:
        copy(self._before, self._all)

    def change(self) -> torch.Tensor:
        """Return by how much each value has changed since `restore`, as one float64 vector."""
        return self._flat() - self._values

    def apply(self, change: torch.Tensor) -> None:
        copy(unflatten(self._values + change, self._moving), self._moving)

    def _flat(self) -> torch.Tensor:
        return torch.cat([self._none, *(buffer.reshape(-1).double() for buffer in self._moving)])


def unused(model: nn.Module, shape: torch.Size) -> list[str]:
    """Return the names of parameters that need a gradient but get none. shape: the shape of an image.

    Runs the network on the meta device, where tensors have no values, so nothing is computed. If the
    network cannot run on that device, returns ["unknown"].
    """
    trial = copies.deepcopy(model).to("meta").train()
    try:
        trial(torch.empty(2, *shape, device="meta")).sum().backward()
    except Exception:  # a network that looks at values cannot run on the meta device
        return ["unknown"]
    return [name for name, p in trial.named_parameters() if p.requires_grad and p.grad is None]


def flops(model: nn.Module, shape: torch.Size) -> int | None:
    """Return the number of floating-point operations in one image's forward and backward passes. A
    multiply-add counts as two. Returns None if the network cannot run on the meta device.
    shape: the shape of one image."""
    trial = copies.deepcopy(model).to("meta").eval()
    try:
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            trial(torch.empty(1, *shape, device="meta"))
    except Exception:  # the network looks at values
        return None
    return 3 * int(counter.get_total_flops())  # backward computes two gradients for each product
