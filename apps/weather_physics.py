"""The physics of apps/weather as compiled kernels: a toy, but with the costs of a real one.

Temperatures of cells are (longitudes, latitudes, levels), level 0 on top.  The columns of air don't know each other: one
costs more by day (light is followed through many bands), and most in a storm (it is stirred until it is stable again).
Every cell is computed by the same operations in the same order, whatever cells are computed together: no fast-math, no
sums over cells.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lb_mpi.kernels import njit

Floats = npt.NDArray[np.float64]

NIGHT_BANDS, DAY_BANDS = 4, 16  # of radiation
MOST_STIRS = 200
STEPS_A_DAY = 240
STORMS = ((0.05, 0.30), (0.22, 0.62), (0.48, 0.45), (0.70, 0.25), (0.81, 0.75))  # longitude, latitude; 1: all around
STORM_SIZE = 0.07


class Climate:
    """What sun and storms do to the (lon, lat) columns of a block of the grid."""

    def __init__(self, shape: tuple[int, int], longitudes: slice, latitudes: slice) -> None:
        # Of the whole grid, then cut: a vector instruction may round otherwise at the end of a shorter array.
        self._lon = ((np.arange(shape[1]) + 0.5) / shape[1])[longitudes]
        lat = (np.arange(shape[0]) + 0.5) / shape[0]
        self._lat, self._cos_lat = lat[latitudes], np.sin(np.pi * lat)[latitudes]
        self._all_lon, self._longitudes = (np.arange(shape[1]) + 0.5) / shape[1], longitudes

    def initial(self, levels: int) -> Floats:
        """(lon, lat, levels) temperatures: colder upwards and polewards."""
        height = 1.0 - (np.arange(levels) + 0.5) / levels
        surface = 260.0 + 40.0 * self._cos_lat
        air = surface[None, :, None] - 60.0 * height[None, None, :]
        return np.ascontiguousarray(np.broadcast_to(air, (len(self._lon), len(self._lat), levels)))

    def sun(self, step: int) -> Floats:
        """(lon * lat,) sunlight on each column, 0 at night."""
        hour = np.cos(2.0 * np.pi * (self._all_lon - step / STEPS_A_DAY))[self._longitudes]
        light: Floats = np.maximum(0.0, hour[:, None] * self._cos_lat[None, :])
        return light.ravel()

    def storm(self, step: int) -> Floats:
        """(lon * lat,) heat that storms bring to the ground of each column; they drift eastwards."""
        heat = np.zeros((len(self._lon), len(self._lat)))
        for lon, lat in STORMS:
            east = (self._lon - lon - 1.5 * step / STEPS_A_DAY + 0.5) % 1.0 - 0.5
            north = 0.5 * (self._lat - lat)
            heat += np.maximum(0.0, 1.0 - (east[:, None] ** 2 + north[None, :] ** 2) / STORM_SIZE**2)
        return heat.ravel()


def _jit(function: Any) -> Any:
    return njit(cache=True)(function)


@_jit
def physics(columns: Floats, sun: Floats, storm: Floats) -> Floats:
    """(n, levels) temperatures after radiation and convection in each column; sun and storm (n,)."""
    n, levels = columns.shape
    after = columns.copy()
    heating = np.empty(levels)
    for k in range(n):
        air = after[k]
        radiate(air, heating, sun[k])
        air[levels - 1] += 0.6 * sun[k] + 8.0 * storm[k]
        stir(air)
    return after


@_jit
def radiate(air: Floats, heating: Floats, sun: float) -> None:
    """Let all levels of a column warm each other in many bands; the sun shines from the top, heat is lost to space."""
    levels = len(air)
    for i in range(levels):
        heating[i] = 0.002 * (220.0 - air[i])
    for band in range(DAY_BANDS if sun > 0.0 else NIGHT_BANDS):
        opacity = 0.02 / (1.0 + band)
        beam = sun
        for i in range(levels):
            absorbed = beam * opacity
            beam -= absorbed
            gained = absorbed
            here = air[i]
            for j in range(i + 1, levels):
                distance = 1.0 + j - i
                flow = opacity * (air[j] - here) / (distance * distance)
                gained += flow
                heating[j] -= flow
            heating[i] += gained
    for i in range(levels):
        air[i] += 0.5 * heating[i]


@_jit
def stir(air: Floats) -> None:
    """Mix neighbouring levels as long as the lower of them is much warmer."""
    levels = len(air)
    steepest = 64.0 / levels
    for _ in range(MOST_STIRS):
        stable = True
        for i in range(levels - 1, 0, -1):
            excess = air[i] - air[i - 1] - steepest
            if excess > 1e-4:
                stable = False
                air[i] -= 0.45 * excess
                air[i - 1] += 0.45 * excess
        if stable:
            break


@_jit
def wind(air: Floats, after: Floats) -> None:
    """One step of the stencil: the air moves eastwards and mixes with its four neighbours.

    `air` is (lon + 2, lat + 2, levels) with a halo of the neighbours' cells; `after`, (lon, lat, levels), is written.
    """
    n, m, levels = air.shape
    for i in range(1, n - 1):
        for j in range(1, m - 1):
            for level in range(levels):
                here = air[i, j, level]
                west, east = air[i - 1, j, level], air[i + 1, j, level]
                mixed = 0.04 * ((west + east) + (air[i, j - 1, level] + air[i, j + 1, level]) - 4.0 * here)
                after[i - 1, j - 1, level] = here + 0.1 * (west - here) + mixed


def compile_kernels() -> None:
    """Compile, or load what was cached."""
    air = np.full((3, 3, 2), 250.0)
    wind(air, air[1:-1, 1:-1].copy())
    physics(air.reshape(9, 2), np.ones(9), np.ones(9))
