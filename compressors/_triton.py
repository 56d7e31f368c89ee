# mypy: ignore-errors
"""The Triton source of gpu.py. Read _kernels.c beside it: the same steps in the same order.

A program holds [CHUNKS, 512] values. Triton is looked up by name: it is there only with CUDA builds of torch.
"""

import importlib

triton = importlib.import_module("triton")
tl = importlib.import_module("triton.language")


@triton.jit
def _mix(h):
    h ^= (h >> 16) & 0xFFFF
    h *= 0x7FEB352D
    h ^= (h >> 15) & 0x1FFFF
    h *= -2073254261  # 0x846CA68B
    h ^= (h >> 16) & 0xFFFF
    return h


@triton.jit
def _word(i, key0, key1):
    return _mix(_mix(i + key0) ^ key1)


@triton.jit
def _tree_sum(v, CHUNKS: tl.constexpr):
    """Row sums of [CHUNKS, 512] by halves."""
    v = tl.sum(tl.reshape(v, (CHUNKS, 2, 256)), 1)
    v = tl.sum(tl.reshape(v, (CHUNKS, 2, 128)), 1)
    v = tl.sum(tl.reshape(v, (CHUNKS, 2, 64)), 1)
    v = tl.sum(tl.reshape(v, (CHUNKS, 2, 32)), 1)
    v = tl.sum(tl.reshape(v, (CHUNKS, 2, 16)), 1)
    v = tl.sum(tl.reshape(v, (CHUNKS, 2, 8)), 1)
    v = tl.sum(tl.reshape(v, (CHUNKS, 2, 4)), 1)
    v = tl.sum(tl.reshape(v, (CHUNKS, 2, 2)), 1)
    return tl.sum(v, 1)


@triton.jit
def _pack(planes, codes, chunk, known, P: tl.constexpr, SHIFT: tl.constexpr, CHUNKS: tl.constexpr):
    """P bits per code from SHIFT on, to this plane's bytes of the chunks."""
    field = (codes >> SHIFT) & ((1 << P) - 1)
    runs = tl.reshape(field, (CHUNKS, 8 // P, 64 * P))
    shifts = tl.arange(0, 8 // P)[None, :, None] * P
    packed = tl.sum(runs << shifts, 1)
    at = chunk[:, None].to(tl.int64) * (64 * P) + tl.arange(0, 64 * P)[None, :]
    tl.store(planes + at, packed.to(tl.uint8), mask=known[:, None])


@triton.jit
def _unpack(planes, place, chunk, known, P: tl.constexpr, SHIFT: tl.constexpr):
    at = chunk[:, None].to(tl.int64) * (64 * P) + (place % (64 * P))[None, :]
    byte = tl.load(planes + at, mask=known[:, None], other=0).to(tl.int32)
    return ((byte >> (place // (64 * P) * P)[None, :]) & ((1 << P) - 1)) << SHIFT


@triton.jit
def encode_kernel(
    x,
    tables,
    planes,
    n,
    rows,
    columns,
    bound,
    offset,
    key0,
    key1,
    STAT: tl.constexpr,
    CODE: tl.constexpr,
    WIDTH: tl.constexpr,
    SHIFT: tl.constexpr,
    NEAREST: tl.constexpr,
    CHUNKS: tl.constexpr,
):
    chunk = tl.program_id(0) * CHUNKS + tl.arange(0, CHUNKS)
    known = chunk < n // 512
    place = tl.arange(0, 512)
    i = chunk[:, None].to(tl.int64) * 512 + place[None, :]
    v = tl.load(x + i, mask=known[:, None], other=0.0)
    if STAT == 1:
        scale = tl.max(v.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 1).to(tl.float32, bitcast=True)
        tl.store(tables + chunk, scale, mask=known)
        scale = scale[:, None]
    elif STAT == 2:
        mean = (_tree_sum(tl.abs(v).to(tl.float64), CHUNKS) / 512.0).to(tl.float32)
        tl.store(tables + chunk, mean, mask=known)
    elif CODE < 2:
        scale = tl.load(tables + i // columns, mask=known[:, None], other=0.0)

    if CODE < 2:
        low = -bound
        if CODE == 1:
            origin = scale * 0.5
            scale = tl.load(tables + rows + i // columns, mask=known[:, None], other=0.0) * 0.5 - origin
            v = v * 0.5 - origin
            low = 0.0
        a = tl.where(scale < 2.0**-64, 2.0**64, tl.where(scale > 2.0**64, 2.0**-64, 1.0)).to(tl.float32)
        b = tl.where(scale == 0, 0.0, tl.div_rn(tl.zeros_like(scale) + bound, scale * a))
        v = v * a * b
        v = tl.where(v < low, low, v)
        v = tl.where(v > bound, bound, v)
        if NEAREST:
            noise = 1 << (SHIFT - 1)
        else:
            noise = (_word(i.to(tl.int32), key0, key1) >> (32 - SHIFT)) & ((1 << SHIFT) - 1)
        codes = (v.to(tl.int32) + offset + noise) >> SHIFT
    elif CODE == 2:
        codes = (v >= 0).to(tl.int32)
    else:
        v = tl.where(v < -(2.0**127), -(2.0**127), v)
        v = tl.where(v > 2.0**127, 2.0**127, v)
        noise = _word(i.to(tl.int32), key0, key1) & 0x7FFFFF
        codes = ((v.to(tl.int32, bitcast=True) + noise) >> 23) & 0x1FF

    n = n.to(tl.int64)
    if WIDTH >= 8:
        tl.store(planes + i, (codes & 255).to(tl.uint8), mask=known[:, None])
        planes += n
    if WIDTH == 16:
        tl.store(planes + i, (codes >> 8).to(tl.uint8), mask=known[:, None])
    else:
        DONE: tl.constexpr = WIDTH // 8 * 8
        if WIDTH & 4:
            _pack(planes, codes, chunk, known, 4, DONE, CHUNKS)
            planes += (n * 4 + 7) // 8
        if WIDTH & 2:
            _pack(planes, codes, chunk, known, 2, DONE + (WIDTH & 4), CHUNKS)
            planes += (n * 2 + 7) // 8
        if WIDTH & 1:
            _pack(planes, codes, chunk, known, 1, DONE + (WIDTH & 6), CHUNKS)


@triton.jit
def decode_kernel(
    planes,
    tables,
    out,
    n,
    rows,
    columns,
    step,
    alpha,
    CODE: tl.constexpr,
    TABLES: tl.constexpr,
    WIDTH: tl.constexpr,
    LEVELS: tl.constexpr,
    ADD: tl.constexpr,
    CHUNKS: tl.constexpr,
):
    chunk = tl.program_id(0) * CHUNKS + tl.arange(0, CHUNKS)
    known = chunk < n // 512
    place = tl.arange(0, 512)
    i = chunk[:, None].to(tl.int64) * 512 + place[None, :]
    row = i // columns
    n = n.to(tl.int64)
    codes = tl.zeros((CHUNKS, 512), tl.int32)
    if WIDTH >= 8:
        codes = tl.load(planes + i, mask=known[:, None], other=0).to(tl.int32)
        planes += n
    if WIDTH == 16:
        codes |= tl.load(planes + i, mask=known[:, None], other=0).to(tl.int32) << 8
    else:
        DONE: tl.constexpr = WIDTH // 8 * 8
        if WIDTH & 4:
            codes |= _unpack(planes, place, chunk, known, 4, DONE)
            planes += (n * 4 + 7) // 8
        if WIDTH & 2:
            codes |= _unpack(planes, place, chunk, known, 2, DONE + (WIDTH & 4))
            planes += (n * 2 + 7) // 8
        if WIDTH & 1:
            codes |= _unpack(planes, place, chunk, known, 1, DONE + (WIDTH & 6))

    if TABLES >= 1:
        first = tl.load(tables + row, mask=known[:, None], other=0.0)
        second = -first
    if TABLES == 2:
        second = tl.load(tables + rows + row, mask=known[:, None], other=0.0)
    if CODE == 0:
        v = (codes - LEVELS).to(tl.float32) * step * first
    elif CODE == 1:
        origin = first * 0.5
        v = codes.to(tl.float32) * step * (second * 0.5 - origin) + origin
        half: tl.constexpr = 1.7014117331926443e38
        v = tl.where(v < -half, -half, v)
        v = tl.where(v > half, half, v) * 2.0
    elif CODE == 2:
        v = tl.where(codes != 0, first, second)
    else:
        v = (codes << 23).to(tl.float32, bitcast=True)
    if ADD:
        v = tl.load(out + i, mask=known[:, None], other=0.0) + v * alpha
    tl.store(out + i, v, mask=known[:, None])
