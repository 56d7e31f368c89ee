"""The one source of randomness of all codecs: a 64-bit key and a counter in, random words out.

    word(key, i) = mix(mix(i + key0) ^ key1)    mod 2^32, with (key0, key1) the halves of fmix64(key)

mix is the 32-bit finaliser with the lowest known bias of its kind (Ellis, `lowbias32`), fmix64 the one of
MurmurHash3. A word depends on nothing but its key and place: the same on every device, for any number of
threads, and inside the kernels, which compute it where it is used. Nothing here reads or moves a global
random generator.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import kernels

_MASK = (1 << 64) - 1


def random_words(n: int, key: int, device: torch.device | str = "cpu", start: int = 0) -> Tensor:
    """int32 [n]: the uniform 32-bit words of `key` from place `start` on."""
    key0, key1 = key_words(key)
    words = torch.empty(n, dtype=torch.int32, device=device)
    if kernels.usable(words):
        key0 = (key0 + start) & 0xFFFFFFFF
        kernels.lib().gossip_noise(kernels.job(n, kernels.TILE, index=words.data_ptr(), key0=key0, key1=key1))
        return words
    torch.arange(n, out=words).add_(_signed(start + key0))
    _mix_(words)
    words.bitwise_xor_(_signed(key1))
    return _mix_(words)


def rounding_noise(n: int, key: int, device: torch.device | str = "cpu") -> Tensor:
    """float32 [n], uniform on [-1/2, 1/2]: round(y + noise) is y in expectation, and 0 stays 0."""
    return random_words(n, key, device).to(torch.float32).mul_(2.0**-32)


def key_words(key: int) -> tuple[int, int]:
    """(key0, key1), 32 bits each. Keys that differ in one bit have nothing in common here."""
    z = key & _MASK
    z = ((z ^ (z >> 33)) * 0xFF51AFD7ED558CCD) & _MASK
    z = ((z ^ (z >> 33)) * 0xC4CEB9FE1A85EC53) & _MASK
    z ^= z >> 33
    return z & 0xFFFFFFFF, z >> 32


def derive_key(key: int, index: int) -> int:
    """An independent 64-bit key for the `index`-th inner use of `key` (splitmix64's finaliser)."""
    z = (key + (index + 1) * 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def _mix_(h: Tensor) -> Tensor:
    """mix of every int32 word, in place. Products wrap round; shifts are made logical by masks."""
    h.bitwise_xor_((h >> 16).bitwise_and_(0xFFFF)).mul_(_signed(0x7FEB352D))
    h.bitwise_xor_((h >> 15).bitwise_and_(0x1FFFF)).mul_(_signed(0x846CA68B))
    return h.bitwise_xor_((h >> 16).bitwise_and_(0xFFFF))


def _signed(word: int) -> int:
    """The int32 with these 32 bits."""
    word &= 0xFFFFFFFF
    return word - (1 << 32) if word >> 31 else word
