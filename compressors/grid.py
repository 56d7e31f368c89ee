"""Stochastic rounding to a grid of fixed step: noise of absolute size, whatever the message."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .base import Compressor, PayloadError, check_finite, check_header, option, register
from .blocks import block_shape, check_block, max_abs
from .noise import rounding_noise
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
        if x.numel() == 0:
            return to_bytes(x)
        rows, columns = block_shape(x.numel(), self.block)
        y = torch.cat([x, x[-1:].expand(rows * columns - x.numel())]).view(rows, columns)
        noise = rounding_noise(y.numel(), key, y.device).view(rows, columns)
        q = torch.add(noise, y, alpha=1 / self.step).round_()
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
        rows, columns = block_shape(n, self.block)
        check_header(payload, 5 * rows, n, self)
        least = from_bytes(payload[: 4 * rows], torch.int32)
        widths = payload[4 * rows : 5 * rows]
        data = payload[5 * rows :]
        values = torch.empty(rows, columns, device=payload.device)
        for width, count in zip(*(t.tolist() for t in widths.unique(return_counts=True)), strict=True):
            if width > 16 and width != _RAW:
                raise PayloadError(f"grid: a row of {width} bits per value; 0-16 or 32 fits")
            size = packed_bytes(count * columns, width)
            if data.numel() < size:
                raise PayloadError(f"grid: the message for {n} values ends early")
            chosen = widths == width
            if width == _RAW:
                values[chosen] = from_bytes(data[:size], torch.float32).view(count, columns)
            elif width:
                codes = unpack(data[:size], count * columns, width).view(count, columns)
                values[chosen] = (codes + least[chosen, None]).to(torch.float32).mul_(self.step)
            else:
                values[chosen] = least[chosen, None].to(torch.float32).mul_(self.step)
            data = data[size:]
        if data.numel():
            raise PayloadError(f"grid: {data.numel()} bytes too many for {n} values")
        return values.view(-1)[:n].clone()

    def contraction_gamma(self) -> float:
        """1: the noise is a matter of the step, not of the message."""
        return 1.0
