"""Stochastic rounding to a grid of fixed step: noise of absolute size, whatever the message."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from . import kernels
from .base import Compressor, PayloadError, check_finite, check_header, option, raise_nonfinite, register
from .blocks import block_shape, check_block, max_abs
from .kernels import CHUNK
from .noise import key_words, rounding_noise
from .packing import from_bytes, pack, packed_bytes, to_bytes, unpack

_LIMIT = 1 << 15  # |q| below this; float32 arithmetic moves E q by less than 2^-8 then
_RAW = 32  # width code of a row sent as float32


@register("grid")
@dataclass(frozen=True)
class Grid(Compressor):
    """C(v)_i = step * q_i with integer q_i, E q_i = v_i / step; |v - C(v)| < step, whatever ||v||.

    That is the bounded noise which ECD-PSGD's theory assumes (Tang et al. 2018, arXiv 1803.06443): step^2/4
    per value at most. Each row of `block` values takes as many bits as its range of q needs, 0 to 16; a row
    with values beyond 2^15 steps is sent as float32, without noise. At most 32 bits per value, then.

        +---------------------+----------------------+-----------------------------------------------+
        | rows x int32: least | rows x uint8: width  | for each width present, ascending:            |
        | q of the row        | (32: float32 values) | q_i - least of all rows of this width, packed |
        +---------------------+----------------------+-----------------------------------------------+

    Width 32 holds the values themselves. The last row is filled up with copies of the last value.
    """

    step: float = option(0.001, "distance of the grid's points, in units of the message")
    block: int | str = option(512, "values that share one width, or `tensor` for all")

    paper = "Tang et al. 2018, arXiv 1803.06443"
    unbiased = True
    relative_noise = False
    fixed_size = False

    def __post_init__(self) -> None:
        if not 1e-30 <= self.step <= 1e30:
            raise ValueError(f"grid: step={self.step} given; 1e-30 to 1e30 fits, e.g. grid:step=0.001")
        check_block("grid", self.block)

    def max_bytes(self, n: int) -> int:
        rows, columns = block_shape(n, self.block)
        return 5 * rows + 4 * rows * columns if n else 0

    def encode(self, x: Tensor, key: int) -> Tensor:
        n = x.numel()
        if n == 0:
            return to_bytes(x)
        rows, columns = block_shape(n, self.block)
        if kernels.usable(x) and columns % CHUNK == 0:
            return self._kernel_encode(x, key)
        y = torch.cat([x, x[-1:].expand(rows * columns - n)]).view(rows, columns)
        noise = rounding_noise(y.numel(), key, y.device).view(rows, columns)
        q = noise.add_(y * (1 / self.step)).round_()
        least, most = q.amin(1), q.amax(1)
        raw = ~(torch.maximum(most, -least) < _LIMIT)
        widths = torch.frexp(most - least).exponent.masked_fill_(raw, _RAW).to(torch.uint8)
        least.masked_fill_(raw, 0)
        q.sub_(least[:, None])
        parts = [least.to(torch.int32), widths]
        for width in widths.unique().tolist():
            chosen = widths == width
            if width == _RAW:
                parts.append(y[chosen])
            elif width:
                codes = q[chosen].view(-1).to(torch.int32 if width > 8 else torch.uint8)
                parts += pack(codes, width)
        check_finite(max_abs(y), self)
        return to_bytes(*parts)

    def decode(self, payload: Tensor, n: int) -> Tensor:
        out = torch.empty(n, dtype=torch.float32, device=payload.device)
        self._decode_into(payload, out, 1.0, add=False)
        return out

    def decode_add(self, payload: Tensor, out: Tensor, alpha: float = 1) -> None:
        self._decode_into(payload, out, float(alpha), add=True)

    def _decode_into(self, payload: Tensor, out: Tensor, alpha: float, add: bool) -> None:
        n = out.numel()
        rows, columns = block_shape(n, self.block)
        check_header(payload, 5 * rows, n, self)
        widths = payload[4 * rows : 5 * rows]
        groups = self._groups(widths, columns)
        if any(16 < width != _RAW for width in groups):
            raise PayloadError(f"grid: rows of {[*groups]} bits per value; 0-16 or 32 fits")
        size = 5 * rows + sum(packed_bytes(values, width) for width, values in groups.items())
        if payload.numel() != size:
            raise PayloadError(f"grid: {size} bytes expected for {n} values, got {payload.numel()}")
        if n and kernels.usable(payload, out) and columns % CHUNK == 0:
            places, starts = _places(widths.numpy(), columns)
            job = self._job(n, columns, payload, places=places.ctypes.data, groups=starts.ctypes.data)
            job.out, job.alpha, job.add = out.data_ptr(), alpha, add
            kernels.lib().gossip_grid_decode(job)
            return
        least = from_bytes(payload[: 4 * rows], torch.int32)
        data = payload[5 * rows :]
        table = torch.empty(rows, columns, dtype=torch.float32, device=payload.device)
        for width, values in groups.items():
            chosen = widths == width
            part, data = data.split([size := packed_bytes(values, width), data.numel() - size])
            if width == _RAW:
                table[chosen] = from_bytes(part, torch.float32).view(-1, columns)
                continue
            codes = unpack(part, values, width).view(-1, columns) if width else 0
            table[chosen] = (
                (codes + least[chosen, None]).to(torch.float32).mul_(self.step).expand(-1, columns)
            )
        decoded = table.view(-1)[:n]
        if add:
            out.add_(decoded.mul_(alpha) if alpha != 1 else decoded)
        else:
            out.copy_(decoded)

    def _kernel_encode(self, x: Tensor, key: int) -> Tensor:
        """Twice over x: widths, then codes. Only where rows are whole chunks of 512."""
        n = x.numel()
        rows, columns = block_shape(n, self.block)
        key0, key1 = key_words(key)
        tables = torch.empty(5 * rows, dtype=torch.uint8)
        job = self._job(n, columns, tables, x=x.data_ptr(), key0=key0, key1=key1)
        kernels.lib().gossip_grid_widths(job)
        if job.bad:
            raise_nonfinite(self)
        widths = tables[4 * rows :]
        sizes = (packed_bytes(values, width) for width, values in self._groups(widths, columns).items())
        payload = torch.empty(5 * rows + sum(sizes), dtype=torch.uint8)
        payload[: 5 * rows] = tables
        places, starts = _places(widths.numpy(), columns)
        job.payload, job.places, job.groups = payload.data_ptr(), places.ctypes.data, starts.ctypes.data
        kernels.lib().gossip_grid_encode(job)
        return payload

    def _job(self, n: int, columns: int, payload: Tensor, **values: object) -> kernels.Job:
        tile = columns * max(1, kernels.TILE // columns)
        inverse = 1 / self.step
        return kernels.job(
            n, tile, block=columns, payload=payload.data_ptr(), bound=inverse, step=self.step, **values
        )

    def _groups(self, widths: Tensor, columns: int) -> dict[int, int]:
        """Each width there is, ascending -> how many values have it."""
        found = zip(*(t.tolist() for t in widths.unique(return_counts=True)), strict=True)
        return {width: count * columns for width, count in found}

    def contraction_gamma(self) -> float:
        """1: the noise is a matter of the step, not of the message."""
        return 1.0


def _places(widths: NDArray[np.uint8], columns: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For the kernels: of each row its number among the rows of its width, [rows]; of each width where its
    bytes start in the message and how many values have it, [33, 2].
    """
    counts = np.bincount(widths, minlength=_RAW + 1)
    order = np.argsort(widths, kind="stable")
    places = np.empty(widths.size, np.int64)
    places[order] = np.arange(widths.size) - np.repeat(np.cumsum(counts) - counts, counts)
    values = counts * columns
    sizes = [packed_bytes(int(v), width) for width, v in enumerate(values)]
    starts = 5 * widths.size + np.cumsum([0, *sizes[:-1]])
    return places, np.ascontiguousarray(np.stack([starts, values], 1), np.int64)
