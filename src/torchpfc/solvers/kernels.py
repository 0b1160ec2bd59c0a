"""The loops of `FISTA` and `Implicit` as Triton kernels.

`fista`, `pull_back` and `conjugate_residuals` take all steps of a solve in one launch. Where a step is worth its own
launch, `torchpfc.solvers.row_kernels` has what it needs beside the product.

No row of a batch depends on another. So a group of programs takes a few rows through every step without asking anybody
outside of the group. Each program of a group owns a slice of the columns of h. After each step it writes its slice to
memory, waits for the others of its group, and reads theirs, through the second-level cache; a group of one program
waits for nobody.

The file can be imported where Triton is missing; its functions then cannot be called.

Names of compile-time arguments, in capitals:

- SLICES: programs in a group
- ROWS: rows of a group; a power of two, at least 16
- TILES, WIDTH: columns of a program, in so many tiles of this width; WIDTH is a power of two, at least 16
- DEPTH: rows of C that are fetched at a time; STAGES: how many such fetches are under way at once
- ALIGN: a power of two that divides r, which lets several numbers be fetched at once
- PRECISION: that of products, as `tl.dot` names it
- C_SCALE: what C has been multiplied by, for the range of half precision, in which it may be
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
def _meet(counter, arrivals, SLICES: tl.constexpr):
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
def _load(base, rows, inside, first, r, TILES: tl.constexpr, WIDTH: tl.constexpr):
    """The tiles of this program out of a matrix of shape (n, r), zero beyond its edges."""
    tiles = ()
    for tile in tl.static_range(TILES):
        columns = first + tile * WIDTH + tl.arange(0, WIDTH)
        mask = inside[:, None] & (columns < r)[None, :]
        tiles = tiles + (tl.load(base + rows[:, None] * r + columns[None, :], mask=mask, other=0.0),)
    return tiles


@jit  # gpu-only: compiled for the device
def _store(base, tiles, rows, inside, first, r, TILES: tl.constexpr, WIDTH: tl.constexpr):
    """Writes the tiles of this program to a matrix of shape (n, r)."""
    for tile in tl.static_range(TILES):
        columns = first + tile * WIDTH + tl.arange(0, WIDTH)
        mask = inside[:, None] & (columns < r)[None, :]
        tl.store(base + rows[:, None] * r + columns[None, :], tiles[tile], mask=mask)


@jit  # gpu-only: compiled for the device
def _zeros(TILES: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Tiles of zeros."""
    tiles = ()
    for _ in tl.static_range(TILES):
        tiles = tiles + (tl.zeros([ROWS, WIDTH], dtype=tl.float32),)
    return tiles


@jit  # gpu-only: compiled for the device
def _scaled(tiles, scale, TILES: tl.constexpr):
    """Tiles with each row multiplied by a number."""
    scaled = ()
    for tile in tl.static_range(TILES):
        scaled = scaled + (scale[:, None] * tiles[tile],)
    return scaled


@jit  # gpu-only: compiled for the device
def _difference(tiles, others, TILES: tl.constexpr):
    """What is left of tiles when others are taken away."""
    differences = ()
    for tile in tl.static_range(TILES):
        differences = differences + (tiles[tile] - others[tile],)
    return differences


@jit  # gpu-only: compiled for the device
def _product(
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
    C_SCALE: tl.constexpr,
):
    """The tiles of this program of the product of some rows, which the whole group has written, with C."""
    sums = _zeros(TILES, ROWS, WIDTH)
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
            grown = grown + (tl.dot(a, b.to(tl.float32), sums[tile], input_precision=PRECISION),)
        sums = grown
    if C_SCALE != 1.0:
        grown = ()
        for tile in tl.static_range(TILES):
            grown = grown + (sums[tile] * (1.0 / C_SCALE),)
        sums = grown
    return sums


@jit  # gpu-only: compiled for the device
def _place(program, n, ROWS: tl.constexpr, SLICES: tl.constexpr):
    """Where a program works: its group, its place in the group, its problem in the stack, and its rows there."""
    group = program // SLICES
    blocks = tl.cdiv(n, ROWS)
    model = (group // blocks).to(tl.int64)
    return group, program % SLICES, model, group % blocks * ROWS + tl.arange(0, ROWS)


@jit  # gpu-only: compiled for the device
def _share(sums, place, member, ROWS: tl.constexpr):
    """Writes a number per row for the other programs of the group."""
    tl.store(place + member * ROWS + tl.arange(0, ROWS), sums)


@jit  # gpu-only: compiled for the device
def _shares(place, ROWS: tl.constexpr, SLICES: tl.constexpr):
    """The numbers that the programs of the group have written, one column for each; zero where there is none."""
    members = tl.arange(0, 16)
    at = place + members[None, :] * ROWS + tl.arange(0, ROWS)[:, None]
    return tl.load(at, mask=(members < SLICES)[None, :], other=0.0, cache_modifier=".cg")


@jit  # gpu-only: compiled for the device
def _scale(largest, limit, SLICES: tl.constexpr):
    """What brings the largest entry of each row under the limit; a row whose limit is zero has the scale zero."""
    if SLICES > 1:
        largest = tl.max(largest, axis=1)
    scale = limit / tl.maximum(largest, 1.1754943508222875e-38)
    return tl.where(scale > 1.0, 1.0, scale)


@jit  # gpu-only: compiled for the device
def fista(
    h_out,
    scale_out,
    momentum_out,
    start,
    C,
    offset,
    limit,
    exchange,
    maxima,
    counters,
    floor,
    n,
    units,
    steps,
    CAP: tl.constexpr,
    TRACE: tl.constexpr,
    ALIGN: tl.constexpr,
    SLICES: tl.constexpr,
    TILES: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
    STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
    C_SCALE: tl.constexpr,
):
    r"""Takes every step of FISTA.

    With $g_k = h_k - C h_k$, the step $y_k + d - C y_k$ from $y_k = h_k + b_{k-1} (h_k - h_{k-1})$ is
    $d + g_k + b_{k-1} (g_k - g_{k-1})$. So programs exchange iterates, and not the points ahead of them. They do so
    before the cap has scaled them, together with their largest entries: one meeting a step is enough.

    Args:
        h_out: The last iterate, or all of them with the start, which is there already.
        scale_out: The scales of the last step, or of all.
        momentum_out: The momentum after each step, where there is a trace.
        start: The first iterate.
        C: The matrix of the step.
        offset: What the step adds, d.
        limit: The largest value that an entry of each row may take.
        exchange: Room for two iterates.
        maxima: Room for a number per row and program, twice.
        counters: A zero for each group.
        floor: The smallest value of an entry.
        n: Rows of each problem.
        units: r / ALIGN.
        steps: How many to take, K.
        CAP: Whether there is a limit.
        TRACE: Whether to keep every iterate.
        ALIGN: This and the rest: see where the file begins.

    Shape:
        - h_out: $(*, n, r)$, or $(*, K + 1, n, r)$
        - scale_out: $(*, n)$, or $(*, K, n)$
        - momentum_out: $(K)$
        - start, offset: $(*, n, r)$
        - C: $(*, r, r)$
        - limit: $(*, n)$
        - exchange: $(*, 2, n, r)$
        - maxima: (groups, 2, SLICES, ROWS)
        - counters: $(\text{groups}, 32)$, a line of the cache each, so that groups do not wait for each other's
    """
    r = units * ALIGN
    size = n.to(tl.int64) * r  # a trace holds more numbers than 32 bits can count
    group, member, model, rows = _place(tl.program_id(0), n, ROWS, SLICES)
    inside = rows < n
    first = member * (TILES * WIDTH)
    start += model * size
    C += model * r * r
    exchange += model * 2 * size
    maxima += group * (2 * SLICES * ROWS)
    counters += group * 32
    if TRACE:
        h_out += model * (steps + 1) * size
        scale_out += model * steps * n
    else:
        h_out += model * size
        scale_out += model * n

    z = _load(start, rows, inside, first, r, TILES, WIDTH)  # the iterate before the cap
    d = _load(offset + model * size, rows, inside, first, r, TILES, WIDTH)
    last_g = _zeros(TILES, ROWS, WIDTH)
    scale = tl.full([ROWS], 1.0, dtype=tl.float32)
    if CAP:
        allowed = tl.load(limit + model * n + rows, mask=inside, other=1.0)
        largest = _shares(maxima, ROWS, 0) if SLICES > 1 else tl.zeros([ROWS], dtype=tl.float32)
    momentum = 0.0
    clock = 1.0
    for k in tl.range(0, steps, num_stages=1):
        source = tl.where(k == 0, start, exchange + (k + 1) % 2 * size)
        product = _product(source, C, rows, inside, first, r, TILES, WIDTH, ROWS, DEPTH, STAGES, PRECISION, C_SCALE)
        if k > 0:
            if CAP:
                # Only now, after the product: so the loads of both are under way together.
                scale = _scale(largest, allowed, SLICES)
            if TRACE:
                _store(h_out + k * size, _scaled(z, scale, TILES), rows, inside, first, r, TILES, WIDTH)
                if CAP and member == 0:
                    tl.store(scale_out + (k - 1) * n + rows, scale, mask=inside)
        g = ()
        moved = ()
        top = tl.zeros([ROWS], dtype=tl.float32)
        for tile in tl.static_range(TILES):
            here = scale[:, None] * (z[tile] - product[tile])
            there = d[tile] + here + momentum * (here - last_g[tile])
            there = tl.where(there < floor, floor, there)  # not a maximum, so that NaN stays NaN
            top = tl.maximum(top, tl.max(there, axis=1))
            g = g + (here,)
            moved = moved + (there,)
        last_g = g
        z = moved
        _store(exchange + k % 2 * size, z, rows, inside, first, r, TILES, WIDTH)
        if CAP and SLICES > 1:
            _share(top, maxima + k % 2 * (SLICES * ROWS), member, ROWS)
        _meet(counters, (k + 1) * SLICES, SLICES)
        if CAP:
            largest = _shares(maxima + k % 2 * (SLICES * ROWS), ROWS, SLICES) if SLICES > 1 else top
        later = (1.0 + tl.sqrt(1.0 + 4.0 * clock * clock)) / 2.0
        momentum = (clock - 1.0) / later
        clock = later
        if TRACE:
            tl.store(momentum_out + k, momentum, mask=tl.program_id(0) == 0)
    if CAP:
        scale = _scale(largest, allowed, SLICES)
        if TRACE:
            scale_out += (steps - 1) * n
        if member == 0:
            tl.store(scale_out + rows, scale, mask=inside)
    if TRACE:
        h_out += steps * size
    _store(h_out, _scaled(z, scale, TILES), rows, inside, first, r, TILES, WIDTH)


@jit  # gpu-only: compiled for the device
def pull_back(
    v_out,
    total_out,
    start_out,
    gradient,
    h,
    scale,
    momentum,
    C,
    counters,
    floor,
    n,
    units,
    steps,
    CAP: tl.constexpr,
    ALIGN: tl.constexpr,
    SLICES: tl.constexpr,
    TILES: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
    STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
    C_SCALE: tl.constexpr,
):
    r"""Sends a gradient back through every step of FISTA: the equations of `torchpfc.solvers.gradient`.

    Args:
        v_out: All $v_k$; also where the programs of a group read each other's.
        total_out: Their sum.
        start_out: The gradient with respect to the start.
        gradient: The gradient with respect to the result.
        h: All iterates, the start included.
        scale: The scale of each step.
        momentum: The momentum after each step.
        C: The matrix of the step.
        counters: A zero for each group.
        floor: The smallest value of an entry.
        n: Rows of each problem.
        units: r / ALIGN.
        steps: How many there were, K.
        CAP: Whether there was a limit.
        ALIGN: This and the rest: see where the file begins.

    Shape:
        - v_out: $(*, K, n, r)$
        - total_out, start_out, gradient: $(*, n, r)$
        - h: $(*, K + 1, n, r)$
        - scale: $(*, K, n)$
        - momentum: $(K)$
        - C: $(*, r, r)$
        - counters: $(\text{groups}, 32)$, a line of the cache each, so that groups do not wait for each other's
    """
    r = units * ALIGN
    size = n.to(tl.int64) * r  # a trace holds more numbers than 32 bits can count
    group, member, model, rows = _place(tl.program_id(0), n, ROWS, SLICES)
    inside = rows < n
    first = member * (TILES * WIDTH)
    C += model * r * r
    h += model * (steps + 1) * size
    scale += model * steps * n
    v_out += model * steps * size
    counters += group * 32

    arriving = _load(gradient + model * size, rows, inside, first, r, TILES, WIDTH)
    code = _load(h + steps * size, rows, inside, first, r, TILES, WIDTH)
    s = tl.full([ROWS], 1.0, dtype=tl.float32)
    if CAP:
        s = tl.load(scale + (steps - 1) * n + rows, mask=inside, other=0.0)
    after = 0.0
    u = _zeros(TILES, ROWS, WIDTH)
    total = _zeros(TILES, ROWS, WIDTH)
    for past in tl.range(0, steps, num_stages=1):
        k = steps - 1 - past
        before = tl.load(momentum + k - 1, mask=k > 0, other=0.0)
        earlier = ()
        v = ()
        grown = ()
        for tile in tl.static_range(TILES):
            free = code[tile] > (floor * s)[:, None]
            here = tl.where(free, s[:, None] * arriving[tile], 0.0)
            change = (1.0 + before) * here - after * u[tile]
            earlier = earlier + (here,)
            v = v + (change,)
            grown = grown + (total[tile] + change,)
        u = earlier
        total = grown
        after = before
        _store(v_out + k * size, v, rows, inside, first, r, TILES, WIDTH)
        if k > 0:  # under way during the product
            code = _load(h + k * size, rows, inside, first, r, TILES, WIDTH)
            if CAP:
                s = tl.load(scale + (k - 1) * n + rows, mask=inside, other=0.0)
        _meet(counters, (past + 1) * SLICES, SLICES)
        product = _product(
            v_out + k * size, C, rows, inside, first, r, TILES, WIDTH, ROWS, DEPTH, STAGES, PRECISION, C_SCALE
        )
        arriving = _difference(v, product, TILES)
    _store(total_out + model * size, total, rows, inside, first, r, TILES, WIDTH)
    _store(start_out + model * size, arriving, rows, inside, first, r, TILES, WIDTH)


@jit  # gpu-only: compiled for the device
def conjugate_residuals(
    u_out,
    gradient,
    h,
    scale,
    C,
    L,
    exchange,
    sums,
    counters,
    floor,
    damping,
    n,
    units,
    steps,
    CAP: tl.constexpr,
    ALIGN: tl.constexpr,
    SLICES: tl.constexpr,
    TILES: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
    STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
    C_SCALE: tl.constexpr,
):
    r"""Solves the linear system of `Implicit` on the support of h by a fixed number of steps.

    A step needs two meetings: one to exchange residuals before the product, one to add up products of rows after it.

    Args:
        u_out: The solution.
        gradient: The gradient with respect to h.
        h: The code.
        scale: What the cap scaled h by in the last step.
        C: The matrix of the step.
        L: The Lipschitz constant.
        exchange: Room for the residuals.
        sums: Room for four numbers per row and program.
        counters: A zero for each group.
        floor: The smallest value of an entry of h.
        damping: Ridge added to the system.
        n: Rows of each problem.
        units: r / ALIGN.
        steps: How many to take.
        CAP: Whether there was a cap.
        ALIGN: This and the rest: see where the file begins.

    Shape:
        - u_out, gradient, h, exchange: $(*, n, r)$
        - scale: $(*, n)$
        - C: $(*, r, r)$
        - L: $(*)$
        - sums: (groups, 4, SLICES, ROWS)
        - counters: $(\text{groups}, 32)$, a line of the cache each, so that groups do not wait for each other's
    """
    r = units * ALIGN
    size = n.to(tl.int64) * r  # a trace holds more numbers than 32 bits can count
    group, member, model, rows = _place(tl.program_id(0), n, ROWS, SLICES)
    inside = rows < n
    first = member * (TILES * WIDTH)
    C += model * r * r
    exchange += model * size
    sums += group * (4 * SLICES * ROWS)
    counters += group * 32

    threshold = tl.full([ROWS], 1.0, dtype=tl.float32) * floor
    ridge = tl.full([ROWS], 1.0, dtype=tl.float32) * damping
    if CAP:
        s = tl.load(scale + model * n + rows, mask=inside, other=1.0)
        threshold *= s
        ridge += (1.0 - s) / tl.maximum(s, 1.1754943508222875e-38)
    code = _load(h + model * size, rows, inside, first, r, TILES, WIDTH)
    arriving = _load(gradient + model * size, rows, inside, first, r, TILES, WIDTH)
    support = ()
    residual = ()
    for tile in tl.static_range(TILES):
        free = code[tile] > threshold[:, None]
        support = support + (free,)
        residual = residual + (tl.where(free, arriving[tile], 0.0),)
    u = _zeros(TILES, ROWS, WIDTH)
    direction = _zeros(TILES, ROWS, WIDTH)
    direction_image = _zeros(TILES, ROWS, WIDTH)
    curvature = tl.zeros([ROWS], dtype=tl.float32)
    squared = tl.zeros([ROWS], dtype=tl.float32)  # the norm of the direction's image
    for k in tl.range(0, steps, num_stages=1):
        _store(exchange, residual, rows, inside, first, r, TILES, WIDTH)
        _meet(counters, (2 * k + 1) * SLICES, SLICES)
        product = _product(exchange, C, rows, inside, first, r, TILES, WIDTH, ROWS, DEPTH, STAGES, PRECISION, C_SCALE)
        image = ()
        left = tl.zeros([ROWS], dtype=tl.float32)
        size_left = tl.zeros([ROWS], dtype=tl.float32)
        own = tl.zeros([ROWS], dtype=tl.float32)
        cross = tl.zeros([ROWS], dtype=tl.float32)
        for tile in tl.static_range(TILES):
            here = tl.where(support[tile], product[tile] + ridge[:, None] * residual[tile], 0.0)
            left += tl.sum(residual[tile] * here, axis=1)
            size_left += tl.sum(residual[tile] * residual[tile], axis=1)
            own += tl.sum(here * here, axis=1)
            cross += tl.sum(here * direction_image[tile], axis=1)
            image = image + (here,)
        if SLICES > 1:
            _share(left, sums, member, ROWS)
            _share(size_left, sums + SLICES * ROWS, member, ROWS)
            _share(own, sums + 2 * SLICES * ROWS, member, ROWS)
            _share(cross, sums + 3 * SLICES * ROWS, member, ROWS)
        _meet(counters, (2 * k + 2) * SLICES, SLICES)
        if SLICES > 1:
            left = tl.sum(_shares(sums, ROWS, SLICES), axis=1)
            size_left = tl.sum(_shares(sums + SLICES * ROWS, ROWS, SLICES), axis=1)
            own = tl.sum(_shares(sums + 2 * SLICES * ROWS, ROWS, SLICES), axis=1)
            cross = tl.sum(_shares(sums + 3 * SLICES * ROWS, ROWS, SLICES), axis=1)
        # What is left once only collinear parts disagree has no curvature: stop there instead of chasing rounding.
        if k > 0:
            left = tl.where(left > 1.1920928955078125e-07 * size_left, left, 0.0)
        ratio = left / tl.maximum(curvature, 1.1754943508222875e-38)
        ratio = tl.where(k > 0, ratio, 0.0)
        squared = own + ratio * (2.0 * cross + ratio * squared)
        curvature = left
        length = curvature / tl.maximum(squared, 1.1754943508222875e-38)
        ahead = ()
        ahead_image = ()
        closer = ()
        rest = ()
        for tile in tl.static_range(TILES):
            new = residual[tile] + ratio[:, None] * direction[tile]
            new_image = image[tile] + ratio[:, None] * direction_image[tile]
            ahead = ahead + (new,)
            ahead_image = ahead_image + (new_image,)
            closer = closer + (u[tile] + length[:, None] * new,)
            rest = rest + (residual[tile] - length[:, None] * new_image,)
        direction = ahead
        direction_image = ahead_image
        u = closer
        residual = rest
    inverse = tl.full([ROWS], 1.0, dtype=tl.float32) / tl.load(L + model)
    _store(u_out + model * size, _scaled(u, inverse, TILES), rows, inside, first, r, TILES, WIDTH)
