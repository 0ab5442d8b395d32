"""Estimate what a collective costs over point-to-point connections: the model by which ranks choose a schedule.

A message of n bytes keeps both its ends busy for `message + n * byte` seconds and has arrived `latency` later; sending
and receiving do not hinder one another. Combining n bytes takes `n * combine`. With P ranks and a buffer of n bytes:

    doubling       R (latency + message + n (byte + combine))           R = log2 P
    direct         2 latency + 2 (P-1) message + n (P-1)/P (2 byte + combine)
    halving        2 R (latency + message) + n (P-1)/P (2 byte + combine)
    binomial       R (latency + message + n byte)
    chain          (P-1) latency + P message + n byte (2P-2)/P
    agreement      latency + (P-1) message                              on a call, up to 16 ranks
                   R (latency + message)                                beyond

Where P is no power of two, R is rounded up; doubling and halving fold the ranks beyond the power below it into
partners, one whole buffer each way, and go on with the rest.
The model is LogGP's with one gap (Alexandrov, Ionescu, Schauser, Scheiman 1995). docs/design/collectives.md compares it
with measurements and follows it to 10,000 ranks. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

TOGETHER = 16
"""Up to so many ranks everybody tells everybody what it calls: one latency, in which data is on its way already.
Beyond, P-1 messages cost more than log2 P rounds."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """The four costs, in seconds and seconds per byte. The defaults are those of two hosts of ours (veth, TCP)."""

    latency: float = 40e-6
    """Until the first byte of a message that nobody waits for yet has arrived and was noticed."""
    message: float = 10e-6
    """Of both processors, per message."""
    byte: float = 0.6e-9
    """Per byte sent while as much arrives: a TCP connection carries 1.6 GB/s each way."""
    combine: float = 0.1e-9
    """Per byte of a sum."""

    def doubling(self, size: int, nbytes: int) -> float:
        """all_reduce of whole buffers between partners."""
        power = 1 << (size.bit_length() - 1)
        return rounds(power) * (self._hop(nbytes) + nbytes * self.combine) + self._folding(size, nbytes)

    def direct(self, size: int, nbytes: int) -> float:
        """all_reduce in which every rank sums one part, which it is sent by all others, and sends the sum to all."""
        return 2 * self.latency + 2 * (size - 1) * self.message + self._shared(size, nbytes)

    def halving(self, size: int, nbytes: int) -> float:
        """all_reduce by recursive halving, then doubling."""
        power = 1 << (size.bit_length() - 1)
        return 2 * rounds(power) * self._hop(0) + self._shared(power, nbytes) + self._folding(size, nbytes)

    def binomial(self, size: int, nbytes: int) -> float:
        """broadcast (or, without the sums, reduce) of the whole buffer along a binomial tree."""
        return rounds(size) * self._hop(nbytes)

    def chain(self, size: int, nbytes: int) -> float:
        """broadcast or reduce along a line of ranks, in P parts one behind the other."""
        return (size - 1) * self.latency + size * self.message + nbytes * self.byte * (2 * size - 2) / size

    def agreement(self, size: int) -> float:
        """Hearing from every rank: from itself, or through others where that would be too many messages."""
        if size <= TOGETHER:
            return self.latency * (size > 1) + (size - 1) * self.message
        return rounds(size) * self._hop(0)

    def _hop(self, nbytes: float) -> float:
        return self.latency + self.message + nbytes * self.byte

    def _shared(self, size: int, nbytes: int) -> float:
        return nbytes * (2 * self.byte + self.combine) * (size - 1) / size

    def _folding(self, size: int, nbytes: int) -> float:
        return 0.0 if size & (size - 1) == 0 else 2 * self._hop(nbytes) + nbytes * self.combine


def rounds(size: int) -> int:
    """log2 of `size`, rounded up."""
    return (size - 1).bit_length()
