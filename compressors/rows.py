"""Codecs that send a few numbers per block and one code per value: all they share.

    +----------------------------+--------------------------------------+
    | tables x rows x float32    | n x width bits: codes, packed        |    packing.py
    +----------------------------+--------------------------------------+

A codec of this kind is a `Stat` (what is computed of each block: stats.py) and a `Rule` (how values become
codes: rules.py). The C kernels encode and decode in one pass, on CUDA the Triton kernels; without them torch
goes over the vector slab by slab. All give the same bytes.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from . import gpu, kernels
from .base import Compressor, check_length, raise_nonfinite
from .blocks import block_shape
from .kernels import CHUNK, LONGEST_ROW
from .noise import key_words, random_words
from .packing import from_bytes, pack_into, packed_bytes, unpack_part
from .rules import Rule
from .stats import Stat, row_tables


class RowCodec(Compressor):
    """A codec made of a `stat` and a `rule`; a field `block` says how many values share the tables."""

    block: int | str = "tensor"

    @property
    @abstractmethod
    def stat(self) -> Stat:
        """What is computed of each block."""

    @property
    @abstractmethod
    def rule(self) -> Rule:
        """How values become codes."""

    def max_bytes(self, n: int) -> int:
        return 4 * self.stat.tables * block_shape(n, self.block)[0] + packed_bytes(n, self.rule.width)

    def encode(self, x: Tensor, key: int) -> Tensor:
        payload = torch.empty(self.max_bytes(x.numel()), dtype=torch.uint8, device=x.device)
        if x.numel():
            encode = self._kernel_encode if kernels.usable(x) else self._torch_encode
            if not encode(x, payload, key):
                raise_nonfinite(self)
        return payload

    def decode(self, payload: Tensor, n: int) -> Tensor:
        check_length(payload, self.max_bytes(n), n, self)
        out = torch.empty(n, dtype=torch.float32, device=payload.device)
        self._decode_into(payload, out, 1.0, add=False)
        return out

    def decode_add(self, payload: Tensor, out: Tensor, alpha: float = 1) -> None:
        check_length(payload, self.max_bytes(out.numel()), out.numel(), self)
        self._decode_into(payload, out, float(alpha), add=True)

    def _decode_into(self, payload: Tensor, out: Tensor, alpha: float, add: bool) -> None:
        n = out.numel()
        if n and kernels.usable(payload, out):
            job = self._job(n, kernels.TILE, payload, alpha=alpha, add=add)
            job.out, job.code = out.data_ptr(), self.rule.back
            kernels.lib().gossip_decode(job)
            return
        rows, columns = block_shape(n, self.block)
        size = 4 * rows * self.stat.tables
        tables = from_bytes(payload[:size], torch.float32).view(self.stat.tables, rows)
        done = 0
        if gpu.usable(payload, out):
            done = gpu.decode(payload[size:], tables, out, columns, self.rule, alpha, add)
        for start, stop in _slabs(done, n, columns, out.device):
            codes = unpack_part(payload[size:], self.rule.width, start, stop, n).to(torch.int32)
            values = self.rule.decode(codes, [_spread(t, columns, start, stop) for t in tables])
            if add:
                out[start:stop].add_(values.mul_(alpha) if alpha != 1 else values)
            else:
                out[start:stop] = values

    def _torch_encode(self, x: Tensor, payload: Tensor, key: int) -> bool:
        """Fill the payload; whether all values are finite. On CUDA Triton, if there, does whole chunks."""
        stat, rule, n = self.stat, self.rule, x.numel()
        rows, columns = block_shape(n, self.block)
        size = 4 * rows * stat.tables
        tables = payload[:size].view(torch.float32).view(stat.tables, rows)
        on_gpu = gpu.usable(x)
        first = (
            n // CHUNK if on_gpu and gpu.fuses(stat, columns) else 0
        )  # row whose tables are to be computed
        if stat.tables and first < rows:
            tables[:, first:] = row_tables(x[first * columns :], columns, stat, _slab(x.device))
        done = gpu.encode(x, payload, columns, stat, rule, key, fused=first > 0) if on_gpu else 0
        scaling = rule.scaling(tables)
        for start, stop in _slabs(done, n, columns, x.device):
            words = random_words(stop - start, key, x.device, start) if rule.noisy else None
            codes = rule.encode(x[start:stop], [_spread(s, columns, start, stop) for s in scaling], words)
            pack_into(payload[size:], codes, rule.width, start, n)
        numbers = tables if stat.tables else torch.stack([x.amax(), x.amin()])
        return bool(torch.isfinite(numbers).all())

    def _kernel_encode(self, x: Tensor, payload: Tensor, key: int) -> bool:
        """The same in one pass, in two where rows and chunks do not meet early, or rows are very long."""
        n, stat = x.numel(), self.stat
        _, columns = block_shape(n, self.block)
        lib = kernels.lib()
        key0, key1 = key_words(key)
        both = kernels.tile_of(columns if stat.tables else CHUNK)
        job = self._job(n, both, payload)
        job.x, job.key0, job.key1 = x.data_ptr(), key0, key1
        job.do_tables = job.do_codes = 1
        if min(both, n) > LONGEST_ROW:
            if columns > LONGEST_ROW:
                if not self._long_rows(x, payload, columns):
                    return False
            else:
                job.tile, job.do_codes = columns * max(1, kernels.TILE // columns), 0
                lib.gossip_encode(job)
                if job.bad:
                    return False
                job.do_codes = 1
            job.tile, job.do_tables = kernels.TILE, 0
        lib.gossip_encode(job)
        return not job.bad

    def _long_rows(self, x: Tensor, payload: Tensor, columns: int) -> bool:
        """Tables of rows of more than LONGEST_ROW values."""
        stat, tables = self.stat, []
        for row in x.split(columns):
            parts = torch.empty(-(-row.numel() // CHUNK), 3, dtype=torch.float64)
            job = self._job(row.numel(), kernels.TILE, payload)
            job.x, job.stats = row.data_ptr(), parts.data_ptr()
            kernels.lib().gossip_stats(job)
            if job.bad:
                return False
            combined = stat.combine(parts[:, : len(stat.how)].T)
            lengths = torch.tensor(float(row.numel()), dtype=torch.float64)
            tables.append(torch.stack(stat.finish(combined, lengths)).to(torch.float32))
        data = torch.cat(tables, 1).view(-1).view(torch.uint8)
        payload[: data.numel()] = data
        return True

    def _job(self, n: int, tile: int, payload: Tensor, **values: object) -> kernels.Job:
        stat, rule = self.stat, self.rule
        return kernels.job(
            n,
            tile,
            payload=payload.data_ptr(),
            block=block_shape(n, self.block)[1],
            stat=stat.code,
            tables=stat.tables,
            clip=stat.clip,
            code=rule.code,
            width=rule.width,
            shift=rule.shift,
            offset=rule.offset,
            bound=rule.bound,
            step=rule.step,
            nearest=rule.nearest,
            **values,
        )


def _slab(device: torch.device) -> int:
    """Values whose temporaries stay in a core's cache; on a GPU, in a small part of its memory."""
    return 1 << 17 if device.type == "cpu" else 1 << 24


def _slabs(done: int, n: int, columns: int, device: torch.device) -> list[tuple[int, int]]:
    """Pieces of done..n that start with a chunk if `done` does; where that costs little, with a row too."""
    slab = _slab(device)
    both = kernels.tile_of(columns)
    length = both * max(1, slab // both) if both <= slab else slab
    return [(start, min(start + length, n)) for start in range(done, n, length)]


def _spread(table: Tensor, columns: int, start: int, stop: int) -> Tensor:
    """The table's number for each of the values start..stop-1; a view of one where they share it."""
    first, last = start // columns, (stop - 1) // columns
    if first == last:
        return table[first]
    if start % columns == 0:
        return table[first : last + 1, None].expand(-1, columns).reshape(-1)[: stop - start]
    row = torch.arange(start, stop, device=table.device).div_(columns, rounding_mode="floor")
    return table[row]
