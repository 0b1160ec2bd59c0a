"""The loops of `FISTA` and `Implicit` as Triton kernels.

`fista`, `pull_back` and `conjugate_residuals` take all steps of a solve in one launch. Where a step is worth its own
launch, `torchpfc.solvers.cuda.row_kernels` has what it needs beside the product.

No row of a batch depends on another. So a group of programs takes a few rows through every step without asking anybody
outside of the group. Each program of a group owns a slice of the columns of h. After each step it writes its slice to
memory, waits for the others of its group, and reads theirs, through the second-level cache; a group of one program
waits for nobody. Where products may be rounded and there is room, a group is one program, and all of C stays on its
processor, in half precision: then nothing is read between two steps.

The file can be imported where Triton is missing; its functions then cannot be called.

Names of compile-time arguments, in capitals:

- SLICES: programs in a group
- ROWS: rows of a group; a power of two, at least 16
- TILES, WIDTH: columns of a program, in so many tiles of this width; WIDTH is a power of two, at least 16
- DEPTH: rows of C that are fetched at a time; STAGES: how many such fetches are under way at once
- ALIGN: a power of two that divides r, which lets several numbers be fetched at once
- PRECISION: that of products, as `tl.dot` names it
- KEEP: whether a program takes whole rows, and C in half precision stays in the memory of its processor
- C_SCALE: what C has been multiplied by then, for the range of half precision
"""

from __future__ import annotations

from contextlib import suppress

from torchpfc.solvers.cuda.tiles import (
    cap,
    difference,
    dot_rows,
    find_place,
    jit,
    keep,
    largest_of,
    load_tiles,
    meet,
    product_with,
    product_with_kept,
    read_shares,
    scaled,
    share,
    store_tiles,
    zeros,
)

with suppress(ImportError):
    import triton.language as tl


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
    KEEP: tl.constexpr,
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
    group, member, model, rows = find_place(tl.program_id(0), n, ROWS, SLICES)
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

    z = load_tiles(start, rows, inside, first, r, TILES, WIDTH)  # the iterate before the cap
    d = load_tiles(offset + model * size, rows, inside, first, r, TILES, WIDTH)
    last_g = zeros(TILES, ROWS, WIDTH)
    scale = tl.full([ROWS], 1.0, dtype=tl.float32)
    if CAP:
        allowed = tl.load(limit + model * n + rows, mask=inside, other=1.0)
        largest = read_shares(maxima, ROWS, 0) if SLICES > 1 else tl.zeros([ROWS], dtype=tl.float32)
    if KEEP:
        kept = keep(C, r, TILES, WIDTH)
    top = largest_of(z, TILES)
    momentum = 0.0
    clock = 1.0
    for k in tl.range(0, steps, num_stages=1):
        if KEEP:
            product = product_with_kept(z, top, kept, ROWS, TILES, WIDTH, C_SCALE)
        else:
            source = tl.where(k == 0, start, exchange + (k + 1) % 2 * size)
            product = product_with(source, C, rows, inside, first, r, TILES, WIDTH, ROWS, DEPTH, STAGES, PRECISION)
        if k > 0:
            if CAP:
                # Only now, after the product: so the loads of both are under way together.
                scale = cap(largest, allowed, SLICES)
            if TRACE:
                store_tiles(h_out + k * size, scaled(z, scale, TILES), rows, inside, first, r, TILES, WIDTH)
                if CAP and member == 0:
                    tl.store(scale_out + (k - 1) * n + rows, scale, mask=inside)
        g = ()
        moved = ()
        for tile in tl.static_range(TILES):
            here = scale[:, None] * (z[tile] - product[tile])
            there = d[tile] + here + momentum * (here - last_g[tile])
            there = tl.where(there < floor, floor, there)  # not a maximum, so that NaN stays NaN
            g = g + (here,)
            moved = moved + (there,)
        last_g = g
        z = moved
        top = largest_of(z, TILES)
        if not KEEP:
            store_tiles(exchange + k % 2 * size, z, rows, inside, first, r, TILES, WIDTH)
            if CAP and SLICES > 1:
                share(top, maxima + k % 2 * (SLICES * ROWS), member, ROWS)
            meet(counters, (k + 1) * SLICES, SLICES)
        if CAP:
            largest = read_shares(maxima + k % 2 * (SLICES * ROWS), ROWS, SLICES) if SLICES > 1 else top
        later = (1.0 + tl.sqrt(1.0 + 4.0 * clock * clock)) / 2.0
        momentum = (clock - 1.0) / later
        clock = later
        if TRACE:
            tl.store(momentum_out + k, momentum, mask=tl.program_id(0) == 0)
    if CAP:
        scale = cap(largest, allowed, SLICES)
        if TRACE:
            scale_out += (steps - 1) * n
        if member == 0:
            tl.store(scale_out + rows, scale, mask=inside)
    if TRACE:
        h_out += steps * size
    store_tiles(h_out, scaled(z, scale, TILES), rows, inside, first, r, TILES, WIDTH)


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
    KEEP: tl.constexpr,
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
    group, member, model, rows = find_place(tl.program_id(0), n, ROWS, SLICES)
    inside = rows < n
    first = member * (TILES * WIDTH)
    C += model * r * r
    h += model * (steps + 1) * size
    scale += model * steps * n
    v_out += model * steps * size
    counters += group * 32

    arriving = load_tiles(gradient + model * size, rows, inside, first, r, TILES, WIDTH)
    code = load_tiles(h + steps * size, rows, inside, first, r, TILES, WIDTH)
    s = tl.full([ROWS], 1.0, dtype=tl.float32)
    if CAP:
        s = tl.load(scale + (steps - 1) * n + rows, mask=inside, other=0.0)
    after = 0.0
    u = zeros(TILES, ROWS, WIDTH)
    total = zeros(TILES, ROWS, WIDTH)
    if KEEP:
        kept = keep(C, r, TILES, WIDTH)
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
        store_tiles(v_out + k * size, v, rows, inside, first, r, TILES, WIDTH)
        if k > 0:  # under way during the product
            code = load_tiles(h + k * size, rows, inside, first, r, TILES, WIDTH)
            if CAP:
                s = tl.load(scale + (k - 1) * n + rows, mask=inside, other=0.0)
        if KEEP:
            product = product_with_kept(v, largest_of(v, TILES), kept, ROWS, TILES, WIDTH, C_SCALE)
        else:
            meet(counters, (past + 1) * SLICES, SLICES)
            source = v_out + k * size
            product = product_with(source, C, rows, inside, first, r, TILES, WIDTH, ROWS, DEPTH, STAGES, PRECISION)
        arriving = difference(v, product, TILES)
    store_tiles(total_out + model * size, total, rows, inside, first, r, TILES, WIDTH)
    store_tiles(start_out + model * size, arriving, rows, inside, first, r, TILES, WIDTH)


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
    KEEP: tl.constexpr,
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
    group, member, model, rows = find_place(tl.program_id(0), n, ROWS, SLICES)
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
    code = load_tiles(h + model * size, rows, inside, first, r, TILES, WIDTH)
    arriving = load_tiles(gradient + model * size, rows, inside, first, r, TILES, WIDTH)
    support = ()
    residual = ()
    for tile in tl.static_range(TILES):
        free = code[tile] > threshold[:, None]
        support = support + (free,)
        residual = residual + (tl.where(free, arriving[tile], 0.0),)
    u = zeros(TILES, ROWS, WIDTH)
    direction = zeros(TILES, ROWS, WIDTH)
    direction_image = zeros(TILES, ROWS, WIDTH)
    curvature = tl.zeros([ROWS], dtype=tl.float32)
    squared = tl.zeros([ROWS], dtype=tl.float32)  # the norm of the direction's image
    if KEEP:
        kept = keep(C, r, TILES, WIDTH)
    for k in tl.range(0, steps, num_stages=1):
        if KEEP:
            product = product_with_kept(residual, largest_of(residual, TILES), kept, ROWS, TILES, WIDTH, C_SCALE)
        else:
            store_tiles(exchange, residual, rows, inside, first, r, TILES, WIDTH)
            meet(counters, (2 * k + 1) * SLICES, SLICES)
            product = product_with(exchange, C, rows, inside, first, r, TILES, WIDTH, ROWS, DEPTH, STAGES, PRECISION)
        image = ()
        for tile in tl.static_range(TILES):
            image = image + (tl.where(support[tile], product[tile] + ridge[:, None] * residual[tile], 0.0),)
        left = dot_rows(residual, image, TILES)
        size_left = dot_rows(residual, residual, TILES)
        own = dot_rows(image, image, TILES)
        cross = dot_rows(image, direction_image, TILES)
        if SLICES > 1:
            share(left, sums, member, ROWS)
            share(size_left, sums + SLICES * ROWS, member, ROWS)
            share(own, sums + 2 * SLICES * ROWS, member, ROWS)
            share(cross, sums + 3 * SLICES * ROWS, member, ROWS)
        if not KEEP:  # nor may anybody write the next residual while others still read this one
            meet(counters, (2 * k + 2) * SLICES, SLICES)
        if SLICES > 1:
            left = tl.sum(read_shares(sums, ROWS, SLICES), axis=1)
            size_left = tl.sum(read_shares(sums + SLICES * ROWS, ROWS, SLICES), axis=1)
            own = tl.sum(read_shares(sums + 2 * SLICES * ROWS, ROWS, SLICES), axis=1)
            cross = tl.sum(read_shares(sums + 3 * SLICES * ROWS, ROWS, SLICES), axis=1)
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
    store_tiles(u_out + model * size, scaled(u, inverse, TILES), rows, inside, first, r, TILES, WIDTH)
