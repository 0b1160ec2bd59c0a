"""What the kernels of `torchpfc.solvers.cuda.kernels` are made of.

A program holds whole rows of a batch, or a slice of their columns, as a tuple of tiles. Names in capitals are explained
where that file begins.

The file can be imported where Triton is missing; its functions then cannot be called.
"""

from __future__ import annotations

from typing import Any

try:
    import triton
    import triton.language as tl  # gpu-only: Triton comes with devices for it
except ImportError:
    triton = None

# Sizes that vary from call to call: a kernel serves all of them without being compiled again.
_SIZES = ["n", "units", "steps"]


def jit(function: Any) -> Any:
    """Compiles a kernel when it is first called, where Triton is there."""
    return function if triton is None else triton.jit(function, do_not_specialize=_SIZES)


@jit  # gpu-only: compiled for the device
def meet(counter, arrivals, SLICES: tl.constexpr):
    """Waits for the programs of this group, and lets each of them see what the others have written.

    Args:
        counter: How often a program of this group has come to a meeting.
        arrivals: What the counter must reach.
        SLICES: Programs in a group.
    """
    tl.debug_barrier()
    if SLICES > 1:
        arrived = tl.atomic_add(counter, 1, sem="acq_rel", scope="gpu") + 1
        while arrived < arrivals:
            arrived = tl.atomic_add(counter, 0, sem="acquire", scope="gpu")


@jit  # gpu-only: compiled for the device
def load_tiles(base, rows, inside, first, r, TILES: tl.constexpr, WIDTH: tl.constexpr):
    """The tiles of this program out of a matrix of shape (n, r), zero beyond its edges."""
    tiles = ()
    for tile in tl.static_range(TILES):
        columns = first + tile * WIDTH + tl.arange(0, WIDTH)
        mask = inside[:, None] & (columns < r)[None, :]
        tiles = tiles + (tl.load(base + rows[:, None] * r + columns[None, :], mask=mask, other=0.0),)
    return tiles


@jit  # gpu-only: compiled for the device
def store_tiles(base, tiles, rows, inside, first, r, TILES: tl.constexpr, WIDTH: tl.constexpr):
    """Writes the tiles of this program to a matrix of shape (n, r)."""
    for tile in tl.static_range(TILES):
        columns = first + tile * WIDTH + tl.arange(0, WIDTH)
        mask = inside[:, None] & (columns < r)[None, :]
        tl.store(base + rows[:, None] * r + columns[None, :], tiles[tile], mask=mask)


@jit  # gpu-only: compiled for the device
def zeros(TILES: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Tiles of zeros."""
    tiles = ()
    for _ in tl.static_range(TILES):
        tiles = tiles + (tl.zeros([ROWS, WIDTH], dtype=tl.float32),)
    return tiles


@jit  # gpu-only: compiled for the device
def scaled(tiles, scale, TILES: tl.constexpr):
    """Tiles with each row multiplied by a number."""
    scaled = ()
    for tile in tl.static_range(TILES):
        scaled = scaled + (scale[:, None] * tiles[tile],)
    return scaled


@jit  # gpu-only: compiled for the device
def difference(tiles, others, TILES: tl.constexpr):
    """What is left of tiles when others are taken away."""
    differences = ()
    for tile in tl.static_range(TILES):
        differences = differences + (tiles[tile] - others[tile],)
    return differences


@jit  # gpu-only: compiled for the device
def dot_rows(tiles, others, TILES: tl.constexpr):
    """The products of rows with each other, entry by entry, added up."""
    sums = tiles[0] * others[0]
    for tile in tl.static_range(1, TILES):
        sums += tiles[tile] * others[tile]
    return tl.sum(sums, axis=1)


@jit  # gpu-only: compiled for the device
def product_with(
    source,
    C,
    rows,
    inside,
    first,
    r,
    TILES: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
    STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """The tiles of this program of the product of some rows, which the whole group has written, with C."""
    sums = zeros(TILES, ROWS, WIDTH)
    for k in tl.range(0, r, DEPTH, num_stages=STAGES):
        depth = k + tl.arange(0, DEPTH)
        mask = inside[:, None] & (depth < r)[None, :]
        # Past the first-level cache: other processors have written this.
        a = tl.load(source + rows[:, None] * r + depth[None, :], mask=mask, other=0.0, cache_modifier=".cg")
        grown = ()
        for tile in tl.static_range(TILES):
            columns = first + tile * WIDTH + tl.arange(0, WIDTH)
            mask = (depth < r)[:, None] & (columns < r)[None, :]
            # C is symmetric: reading it as its transpose puts numbers side by side that are multiplied together.
            b = tl.load(C + columns[None, :] * r + depth[:, None], mask=mask, other=0.0)
            grown = grown + (tl.dot(a, b, sums[tile], input_precision=PRECISION),)
        sums = grown
    return sums


@jit  # gpu-only: compiled for the device
def keep(C, r, TILES: tl.constexpr, WIDTH: tl.constexpr):
    """All tiles of C, row by row of tiles; they stay in the memory of the processor."""
    kept = ()
    for above in tl.static_range(TILES):
        down = above * WIDTH + tl.arange(0, WIDTH)
        for left in tl.static_range(TILES):
            columns = left * WIDTH + tl.arange(0, WIDTH)
            mask = (down < r)[:, None] & (columns < r)[None, :]
            kept = kept + (tl.load(C + down[:, None] * r + columns[None, :], mask=mask, other=0.0),)
    return kept


@jit  # gpu-only: compiled for the device
def largest_of(tiles, TILES: tl.constexpr):
    """The largest magnitude in each row."""
    largest = tl.abs(tiles[0])
    for tile in tl.static_range(1, TILES):
        largest = tl.maximum(largest, tl.abs(tiles[tile]))
    return tl.max(largest, axis=1)


@jit  # gpu-only: compiled for the device
def power_below(largest):
    """The power of two at or below a number, which is not negative; 1 for zero."""
    power = (largest.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)  # without its mantissa
    return tl.where(power == 0.0, 1.0, power)


@jit  # gpu-only: compiled for the device
def product_with_kept(
    tiles,
    largest,
    kept,
    ROWS: tl.constexpr,
    TILES: tl.constexpr,
    WIDTH: tl.constexpr,
    C_SCALE: tl.constexpr,
):
    """The product of whole rows with C, in half precision: each is divided by a power of two first, to be near 1."""
    power = power_below(largest)
    sums = zeros(TILES, ROWS, WIDTH)
    for above in tl.static_range(TILES):
        a = (tiles[above] * (1.0 / power)[:, None]).to(tl.float16)
        grown = ()
        for left in tl.static_range(TILES):
            grown = grown + (tl.dot(a, kept[above * TILES + left], sums[left]),)
        sums = grown
    return scaled(sums, power * (1.0 / C_SCALE), TILES)


@jit  # gpu-only: compiled for the device
def find_place(program, n, ROWS: tl.constexpr, SLICES: tl.constexpr):
    """Where a program works: its group, its place in the group, its problem in the stack, and its rows there."""
    group = program // SLICES
    blocks = tl.cdiv(n, ROWS)
    model = (group // blocks).to(tl.int64)
    return group, program % SLICES, model, group % blocks * ROWS + tl.arange(0, ROWS)


@jit  # gpu-only: compiled for the device
def share(sums, place, member, ROWS: tl.constexpr):
    """Writes a number per row for the other programs of the group."""
    tl.store(place + member * ROWS + tl.arange(0, ROWS), sums)


@jit  # gpu-only: compiled for the device
def read_shares(place, ROWS: tl.constexpr, SLICES: tl.constexpr):
    """The numbers that the programs of the group have written, one column for each; zero where there is none."""
    members = tl.arange(0, 16)
    at = place + members[None, :] * ROWS + tl.arange(0, ROWS)[:, None]
    return tl.load(at, mask=(members < SLICES)[None, :], other=0.0, cache_modifier=".cg")


@jit  # gpu-only: compiled for the device
def cap(largest, limit, SLICES: tl.constexpr):
    """What brings the largest entry of each row under the limit; a row whose limit is zero has the scale zero."""
    if SLICES > 1:
        largest = tl.max(largest, axis=1)
    scale = limit / tl.maximum(largest, 1.1754943508222875e-38)
    return tl.where(scale > 1.0, 1.0, scale)
