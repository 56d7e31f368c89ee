"""Values at chosen places of a vector, of which the receiver knows some or all: a parameter server's message.

    +-------------------+-------------------------+------------------------------+
    | uint32: signature | count x uint32: keys,   | the values' payload, made by |
    |                   | strictly increasing     | the `values` codec           |
    +-------------------+-------------------------+------------------------------+

Key caching (Li et al. 2014, "Scaling Distributed Machine Learning with the Parameter Server", OSDI): keys
that both sides hold in a list stay at home, and the signature of that list, a CRC-32 of its keys as uint32,
travels in their place, so that the receiver notices when its own list is another one. Keys that it cannot
know, `count` of them, come along. Where the values belong is settled between the two; a codec only carries
them.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from .base import Compressor, PayloadError, check_header
from .identity import Identity
from .packing import from_bytes, to_bytes

HEADER = 4


@dataclass(frozen=True, eq=False)
class Keyed(Compressor):
    """`values` behind a signature and `count` keys; it has no name in specs, since the keys are the sender's.

    Encoding needs them, see `of`; decoding gives the values, and `signature_of` and `keys_of` the rest. `n`
    always counts the values.
    """

    values: Compressor = Identity()  # noqa: RUF009
    count: int = 0
    signature: int = 0
    keys: Tensor | None = None

    name = "keyed"

    @property
    def fixed_size(self) -> bool:  # type: ignore[override]
        return self.values.fixed_size

    def of(self, signature: int, keys: Tensor | None = None) -> Keyed:
        """This codec for one message: with these `count` keys, ascending int64 [count], on any device."""
        if (0 if keys is None else keys.numel()) != self.count:
            raise ValueError(f"keyed: {0 if keys is None else keys.numel()} keys given; {self.count} fit")
        return replace(self, signature=signature, keys=keys)

    def max_bytes(self, n: int) -> int:
        return HEADER + 4 * self.count + self.values.max_bytes(n)

    def encode(self, x: Tensor, key: int) -> Tensor:
        header = torch.from_numpy(np.array([self.signature], np.uint32).view(np.int32)).to(x.device)
        keys = x.new_empty(0) if self.keys is None else self.keys.to(x.device, torch.int32)
        return to_bytes(header, keys, self.values.encode(x, key))

    def decode(self, payload: Tensor, n: int) -> Tensor:
        return self.values.decode(payload[self._start(payload, n) :], n)

    def decode_add(self, payload: Tensor, out: Tensor, alpha: float = 1) -> None:
        self.values.decode_add(payload[self._start(payload, out.numel()) :], out, alpha)

    def signature_of(self, payload: Tensor) -> int:
        """The signature in a message."""
        self._start(payload, 0)
        return int(from_bytes(payload[:HEADER], torch.int32)) & 0xFFFFFFFF

    def keys_of(self, payload: Tensor, size: int) -> Tensor:
        """The keys in a message, int64 [count]: ascending and below `size`, or PayloadError is raised."""
        keys = from_bytes(payload[HEADER : self._start(payload, 0)], torch.int32)
        if self.count and not bool((keys[0] >= 0) & (keys[-1] < size) & (keys[1:] > keys[:-1]).all()):
            raise PayloadError(f"keyed: keys are not strictly increasing within 0..{size - 1}")
        return keys.to(torch.int64)

    def _start(self, payload: Tensor, n: int) -> int:
        """Where the values begin."""
        check_header(payload, HEADER + 4 * self.count, n, self)
        return HEADER + 4 * self.count


def signature(keys: Tensor) -> int:
    """CRC-32 of the keys, int64 [k], as uint32."""
    return zlib.crc32(keys.to("cpu", torch.int32).numpy().data)
