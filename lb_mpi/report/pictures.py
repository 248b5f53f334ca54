"""Pictures of a run as bytes of PNG: the strip of ranks and time, and matrices.   (pure)

With 16 colours, half a byte a pixel: so a thousand ranks fit into a page.  The encoder is ours, in ten lines, since no
package that lb_mpi needs has one.
"""

from __future__ import annotations

import struct
import zlib
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lb_mpi.record.events import Phase
from lb_mpi.report.run import Floats, Run, timeline

# Of Okabe and Ito, told apart by the colour-blind; computing is blue, what costs is warm.
COLOURS = {
    Phase.OWN: "#0072b2",
    Phase.FOREIGN: "#56b4e9",
    Phase.PROTOCOL: "#d55e00",
    Phase.PACKING: "#cc79a7",
    Phase.WAITING: "#f0e442",
    Phase.RESTING: "#7f9fb0",
    Phase.OUTSIDE: "#c8c8c8",
}
# Ranks on a map: of Okabe and Ito, then lighter and darker ones of other hues.
RANK_COLOURS = [
    "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442",
    "#7b3294", "#a6dba0", "#8c510a", "#35978f", "#b2abd2", "#666666", "#fdae61",
]  # fmt: skip
NOTHING = len(Phase)  # the index of what isn't known: transparent
COLUMNS, HALVINGS = 1000, 3  # of the strip: half as many, until the picture is small enough
MOST_BYTES = 150_000  # of a picture
MOST_ROWS, ROW_PIXELS = 1024, 20
LEVELS = 15  # of a matrix, beside nothing


class Picture(NamedTuple):
    """A picture, and what it shows."""

    png: bytes
    width: int  # pixels
    height: int  # pixels
    each: int  # ranks in a row of pixels; 1 where a rank has one row or more


def strip(run: Run, most_bytes: int = MOST_BYTES) -> Picture:
    """Draw each rank's time from left to right, its phases one above the other in the parts that they take of it."""
    parts = timeline(run, COLUMNS)
    for halving in range(HALVINGS + 1):
        if halving:
            parts = 0.5 * (parts[:, 0::2] + parts[:, 1::2])
        pixels, each = strip_pixels(parts)
        picture = Picture(encode(pixels, [*COLOURS.values()]), pixels.shape[1], len(pixels), each)
        if len(picture.png) <= most_bytes:
            break
    return picture


def strip_pixels(parts: Floats) -> tuple[NDArray[np.uint8], int]:
    """Turn a timeline into indices of colours, (rows, columns), and say how many ranks are in a row of them."""
    each = -(-len(parts) // MOST_ROWS)
    if each > 1:
        parts = np.add.reduceat(parts, np.arange(0, len(parts), each)) / each
    n_ranks, n_columns, n_phases = parts.shape
    if n_ranks > MOST_ROWS // 4:  # a row of pixels for each: what took most
        pixels = parts.argmax(axis=2).astype(np.uint8)
        pixels[parts.sum(axis=2) < 0.5] = NOTHING
        return pixels, each
    rows = max(3, min(ROW_PIXELS, MOST_ROWS // n_ranks))
    levels = (np.arange(rows) + 0.5) / rows
    sums = np.cumsum(parts, axis=2)
    stacked = (sums[:, None, :, :] < levels[None, :, None, None]).sum(axis=3).astype(np.uint8)
    stacked[stacked >= n_phases] = NOTHING
    if rows >= 8:
        stacked[:, -1] = NOTHING  # a line between ranks
    return stacked.reshape(n_ranks * rows, n_columns), each


def table(values: Floats) -> Picture:
    """Draw a matrix (n, m) of numbers >= 0: the darker, the more; of a large one, sums of neighbours."""
    each = -(-len(values) // 256)
    if each > 1:
        edges = np.arange(0, len(values), each)
        values = np.add.reduceat(np.add.reduceat(values, edges, axis=0), edges, axis=1)
    most = float(values.max(initial=0.0))
    pixels = np.ceil(LEVELS * np.sqrt(values / most)).astype(np.uint8) if most else np.zeros(values.shape, np.uint8)
    return Picture(encode((LEVELS - pixels).astype(np.uint8), ramp()), values.shape[1], values.shape[0], each)


def map_of(owners: NDArray[np.int64], most_pixels: int = 512) -> Picture:
    """Draw (h, w) ranks, -1 for nobody, each in its colour of RANK_COLOURS; they repeat where there are more ranks."""
    height, width = owners.shape
    each = max(1, most_pixels // max(height, width))
    pixels = np.where(owners < 0, len(RANK_COLOURS), owners % len(RANK_COLOURS)).astype(np.uint8)
    large = pixels.repeat(each, axis=0).repeat(each, axis=1)
    return Picture(encode(large, RANK_COLOURS), large.shape[1], large.shape[0], 1)


def ramp() -> list[str]:
    """Colours of a matrix, from the most to the least; nothing is transparent."""
    dark, light = np.array([68.0, 1.0, 84.0]), np.array([253.0, 231.0, 37.0])
    middle = np.array([33.0, 145.0, 140.0])
    colours = []
    for k in range(LEVELS):
        at = k / (LEVELS - 1)
        colour = dark + 2 * at * (middle - dark) if at < 0.5 else middle + (2 * at - 1) * (light - middle)
        colours.append("#" + "".join(f"{int(part):02x}" for part in colour))
    return colours


def encode(pixels: NDArray[np.uint8], colours: list[str]) -> bytes:
    """A PNG of (rows, columns) indices of at most 15 colours; the index behind the last one is transparent."""
    height, width = pixels.shape
    padded = np.pad(pixels, ((0, 0), (0, width % 2)))
    packed = padded[:, 0::2] << 4 | padded[:, 1::2]
    lines = np.hstack([np.zeros((height, 1), np.uint8), packed])  # each begins with the number of its filter: none
    palette = b"".join(bytes.fromhex(colour[1:]) for colour in [*colours, "#000000"])
    return b"".join([
        b"\x89PNG\r\n\x1a\n",
        _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 4, 3, 0, 0, 0)),
        _chunk(b"PLTE", palette),
        _chunk(b"tRNS", b"\xff" * len(colours) + b"\x00"),
        _chunk(b"IDAT", zlib.compress(lines.tobytes(), 9)),
        _chunk(b"IEND", b""),
    ])  # fmt: skip


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
